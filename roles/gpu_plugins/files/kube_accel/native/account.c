// SPDX-License-Identifier: Apache-2.0
// One account for all processes of the container, without a lock: used_bytes decides, the slots remember whose it is. A
// process killed between the two leaves them apart; that is found and mended before anybody is refused.
#include "shim.h"

#define ABSURD (1ull << 48) // more than any GPU has; sums of less cannot overflow

static void enter(struct ka_slot *slot, struct ka_state_device *device) {
    __atomic_fetch_add(&slot->busy, 1, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&device->changes, 1, __ATOMIC_SEQ_CST);
}

static void leave(struct ka_slot *slot) { __atomic_fetch_sub(&slot->busy, 1, __ATOMIC_SEQ_CST); }

static bool take(struct ka_slot *slot, int index, struct ka_state_device *device, uint64_t bytes, uint64_t limit) {
    uint64_t used;
    enter(slot, device);
    used = __atomic_load_n(&device->used_bytes, __ATOMIC_SEQ_CST);
    do
        if (used > limit || bytes > limit - used) {
            leave(slot);
            return false;
        }
    while (!__atomic_compare_exchange_n(&device->used_bytes, &used, used + bytes, true, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST));
    __atomic_fetch_add(&slot->charged_bytes[index], bytes, __ATOMIC_SEQ_CST);
    leave(slot);
    return true;
}

static uint64_t uncounted(const struct ka_policy_device *policy) {
    return policy->feedback_uncounted_bytes < ABSURD ? policy->feedback_uncounted_bytes : 0; // KA_UNKNOWN64 is none
}

// What a container had already when NVML's word came, it may have again: that word makes nothing fail that fitted.
static void note_held(struct ka_state_device *device, const struct ka_policy_device *policy) {
    uint64_t used = __atomic_load_n(&device->used_bytes, __ATOMIC_SEQ_CST), other = uncounted(policy);
    if (!other || used >= ABSURD || used + other <= __atomic_load_n(&device->held_bytes, __ATOMIC_RELAXED)) return;
    __atomic_store_n(&device->held_bytes, used + other, __ATOMIC_RELAXED);
}

// Of the limit, what is left for the account beside what NVML alone sees; never more than the limit.
static uint64_t allowed(const struct ka_state_device *device, const struct ka_policy_device *policy) {
    uint64_t limit = policy->memory_limit_bytes ? policy->memory_limit_bytes : UINT64_MAX, other = uncounted(policy),
             held = __atomic_load_n(&device->held_bytes, __ATOMIC_RELAXED), all = held > limit ? held : limit;
    all = all > other ? all - other : 0;
    return all < limit ? all : limit;
}

static void less(uint64_t *from, uint64_t bytes) {
    uint64_t had = __atomic_load_n(from, __ATOMIC_SEQ_CST);
    while (!__atomic_compare_exchange_n(from, &had, had > bytes ? had - bytes : 0, true, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST)) {}
}

void account_drop(struct ka_state_device *device, uint64_t bytes) {
    __atomic_fetch_add(&device->changes, 1, __ATOMIC_SEQ_CST);
    less(&device->used_bytes, bytes);
}

void account_release(int index, uint64_t bytes) {
    struct ka_slot *slot = index < 0 || !bytes ? NULL : state_slot();
    if (!slot) return;
    struct ka_state_device *device = &state_map()->device[index];
    struct ka_policy_device policy;
    if (policy_read(index, &policy)) note_held(device, &policy);
    enter(slot, device);
    less(&slot->charged_bytes[index], bytes);
    less(&device->used_bytes, bytes);
    leave(slot);
}

void account_add(int index, uint64_t bytes) {
    struct ka_slot *slot = index < 0 || !bytes ? NULL : state_slot();
    if (slot) take(slot, index, &state_map()->device[index], bytes, UINT64_MAX);
}

// What is in used_bytes beyond the live slots' charges was left by a process killed on its way. Told apart from charges
// under way by nobody being busy and nothing having changed while all slots were read; the change of `changes` picks
// one mender.
static void mend(struct ka_state *state, struct ka_slot *mine, int index) {
    struct ka_state_device *device = &state->device[index];
    __atomic_fetch_add(&mine->busy, 1, __ATOMIC_SEQ_CST);
    for (int tries = 0; tries < 8; tries++) {
        uint64_t changes = __atomic_load_n(&device->changes, __ATOMIC_SEQ_CST), sum = 0;
        bool quiet = __atomic_load_n(&mine->busy, __ATOMIC_SEQ_CST) == 1;
        uint32_t high = __atomic_load_n(&state->slots_high, __ATOMIC_SEQ_CST);
        for (uint32_t i = 0; quiet && i < high && i < KA_SLOTS; i++) {
            struct ka_slot *slot = &state->slot[i];
            if (__atomic_load_n(&slot->flags, __ATOMIC_SEQ_CST) != KA_SLOT_LIVE) continue;
            quiet = slot == mine || !__atomic_load_n(&slot->busy, __ATOMIC_SEQ_CST);
            sum += __atomic_load_n(&slot->charged_bytes[index], __ATOMIC_SEQ_CST);
        }
        uint64_t used = __atomic_load_n(&device->used_bytes, __ATOMIC_SEQ_CST);
        if (!quiet || !__atomic_compare_exchange_n(&device->changes, &changes, changes + 1, false, __ATOMIC_SEQ_CST,
                                                   __ATOMIC_SEQ_CST))
            continue;
        if (used > sum) less(&device->used_bytes, used - sum);
        if (used < sum) __atomic_fetch_add(&device->used_bytes, sum - used, __ATOMIC_SEQ_CST);
        break;
    }
    leave(mine);
}

static CUresult denied(uint64_t *counter) {
    __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

// Without a usable policy, on a device it does not name, or without an account.
CUresult account_denied_by_policy(void) {
    struct ka_state *state = state_map();
    return state ? denied(&state->denied_policy) : CUDA_ERROR_OUT_OF_MEMORY;
}

void account_denied_by_device(int index) {
    struct ka_state *state = index < 0 ? NULL : state_map();
    if (state) denied(&state->device[index].denied_device);
}

CUresult account_reserve(int index, uint64_t bytes) {
    struct ka_policy_device policy;
    struct ka_slot *slot = state_slot();
    if (!policy_read(index, &policy) || !slot) return account_denied_by_policy();
    struct ka_state *state = state_map();
    struct ka_state_device *device = &state->device[index];
    note_held(device, &policy);
    uint64_t limit = allowed(device, &policy);
    if (bytes >= ABSURD) return denied(&device->denied_limit);
    if (take(slot, index, device, bytes, limit)) return CUDA_SUCCESS;
    reserved_settle_all();
    state_sweep();
    mend(state, slot, index);
    return take(slot, index, device, bytes, limit) ? CUDA_SUCCESS : denied(&device->denied_limit);
}

bool account_view(int index, uint64_t *limit, uint64_t *used) {
    struct ka_policy_device policy;
    struct ka_state *state = state_map();
    if (!policy_read(index, &policy) || !state) return false;
    state_sweep();
    struct ka_state_device *device = &state->device[index];
    note_held(device, &policy);
    *limit = policy.memory_limit_bytes;
    *used = __atomic_load_n(&device->used_bytes, __ATOMIC_SEQ_CST);
    *used = *used < ABSURD ? *used + (*limit ? *limit - allowed(device, &policy) : 0) : ABSURD;
    return true;
}
