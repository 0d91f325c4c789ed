// SPDX-License-Identifier: Apache-2.0
// The policy: mapped once, read anew each time.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "shim.h"

#define FRESH_NS 2000000000u
#define QUICK    256 // tries before it sleeps between them

const char *policy_path(const char *fixed, const char *variable) {
    if (access(KA_POLICY_PATH, F_OK) == 0 || (errno != ENOENT && errno != ENOTDIR)) return fixed;
    const char *other = getenv(variable);
    return other ? other : fixed;
}

static const char *fault(const struct ka_policy *policy, off_t size) {
    if (size < (off_t)sizeof *policy) return "is too short";
    if (memcmp(policy->magic, KA_POLICY_MAGIC, sizeof policy->magic)) return "is not a policy";
    if (policy->layout != KA_LAYOUT) return "has a layout this build does not know";
    if (policy->size < sizeof *policy || policy->size > size) return "is not as long as it says";
    if (policy->device_count < 1 || policy->device_count > KA_DEVICES) return "names no device, or too many";
    return NULL;
}

static const struct ka_policy *mapped;
const uint32_t *policy_changes; // of what is mapped

static const struct ka_policy *policy_map(void) {
    const struct ka_policy *policy = __atomic_load_n(&mapped, __ATOMIC_ACQUIRE), *none = NULL;
    if (policy) return policy;
    const char *path = policy_path(KA_POLICY_PATH, "KUBE_ACCEL_POLICY");
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        say("GPU memory is refused: policy %s: %s", path, strerror(errno));
        return NULL;
    }
    off_t size = lseek(file, 0, SEEK_END);
    policy = mmap(NULL, sizeof *policy, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    const char *why = policy == MAP_FAILED ? strerror(errno) : fault(policy, size);
    if (why) {
        say("GPU memory is refused: policy %s %s", path, why);
        if (policy != MAP_FAILED) munmap((void *)policy, sizeof *policy);
        return NULL;
    }
    if (__atomic_compare_exchange_n(&mapped, &none, policy, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        __atomic_store_n(&policy_changes, &policy->generation, __ATOMIC_RELEASE);
        return policy;
    }
    munmap((void *)policy, sizeof *policy);
    return none;
}

const uint32_t *policy_generation(void) {
    const struct ka_policy *policy = policy_map();
    return policy ? &policy->generation : NULL;
}

int policy_devices(void) {
    const struct ka_policy *policy = policy_map();
    return policy ? (int)policy->device_count : 0;
}

int policy_index(const uint8_t uuid[16]) {
    const struct ka_policy *policy = policy_map();
    for (int i = 0; policy && i < (int)policy->device_count; i++)
        if (!memcmp(policy->device[i].uuid, uuid, 16)) return i;
    return -1;
}

// Waits for a writer as long as one takes that has lost the processor. One that died half way leaves limits old and new
// beside each other, each whole: good enough, and waited for once only.
bool policy_read(int index, struct ka_policy_device *device) {
    static uint32_t left; // the generation of a dead writer
    const struct ka_policy *policy = policy_map();
    if (!policy || index < 0 || index >= (int)policy->device_count || index >= KA_DEVICES) return false;
    const uint64_t *from = (const uint64_t *)&policy->device[index];
    uint64_t words[sizeof *device / 8], at = 0;
    for (int tries = 1;; tries++) {
        uint32_t before = __atomic_load_n(&policy->generation, __ATOMIC_ACQUIRE);
        for (size_t i = 0; i < sizeof words / 8; i++) words[i] = __atomic_load_n(&from[i], __ATOMIC_ACQUIRE);
        at = __atomic_load_n(&policy->feedback_at_ns, __ATOMIC_ACQUIRE);
        if (before % 2 == 0 && before == __atomic_load_n(&policy->generation, __ATOMIC_RELAXED)) break;
        if (before % 2 && before == __atomic_load_n(&left, __ATOMIC_RELAXED)) break;
        if (tries > QUICK) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        if (tries == QUICK + 1000) __atomic_store_n(&left, before | 1, __ATOMIC_RELAXED);
        if (tries > QUICK + 1000) break;
    }
    __builtin_memcpy(device, words, sizeof *device);
    if (!at || now_ns() - at >= FRESH_NS) {
        device->feedback_uncounted_bytes = KA_UNKNOWN64;
        device->feedback_busy_permille = device->feedback_others_permille = KA_UNKNOWN32;
    }
    return true;
}
