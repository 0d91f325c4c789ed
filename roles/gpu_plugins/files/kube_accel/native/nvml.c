// SPDX-License-Identifier: Apache-2.0
// libnvidia-ml.so.1 as a container with a share sees it: memory and processes from the same account that refuses
// allocations.
#include <string.h>

#include "shim.h"

enum { NVML_SUCCESS = 0, NVML_ERROR_INSUFFICIENT_SIZE = 7 };

typedef struct nvml_device *nvmlDevice_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    unsigned pid;
    unsigned long long used;
} nvmlProcessInfo_v1_t;

typedef struct {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
} nvmlProcessInfo_t;

int nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length);
int nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);
int nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory);
int nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *processes);
int nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *processes);
int nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *processes);

void reserved_settle_all(void) {} // what the CUDA library of this process has reserved, that one settles

static int digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

// The policy's device, -1 also where there is no limit: then everything is as the driver says.
static int limited(nvmlDevice_t device, uint64_t *limit, uint64_t *used) {
    char text[96] = "";
    uint8_t uuid[16] = {0};
    int digits = 0;
    if (REAL(nvmlDeviceGetUUID)(device, text, sizeof text)) return -1;
    for (const char *at = strchr(text, '-'); at && *at && digits < 32; at++)
        if (digit(*at) >= 0) {
            uuid[digits / 2] = (uint8_t)(uuid[digits / 2] << 4 | digit(*at));
            digits++;
        }
    int index = digits == 32 ? policy_index(uuid) : -1;
    return account_view(index, limit, used) && *limit ? index : -1;
}

HOOK(nvmlDeviceGetMemoryInfo)(nvmlDevice_t device, nvmlMemory_t *memory) {
    uint64_t limit, used;
    int result = REAL(nvmlDeviceGetMemoryInfo)(device, memory);
    if (result || limited(device, &limit, &used) < 0) return result;
    if (memory->total > limit) memory->total = limit;
    memory->used = used < memory->total ? used : memory->total;
    if (memory->free > memory->total - memory->used) memory->free = memory->total - memory->used;
    return result;
}

HOOK(nvmlDeviceGetMemoryInfo_v2)(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    uint64_t limit, used;
    int result = REAL(nvmlDeviceGetMemoryInfo_v2)(device, memory);
    if (result || limited(device, &limit, &used) < 0) return result;
    if (memory->total > limit) memory->total = limit;
    memory->reserved = 0;
    memory->used = used < memory->total ? used : memory->total;
    if (memory->free > memory->total - memory->used) memory->free = memory->total - memory->used;
    return result;
}

// The container's own, by the PIDs they know themselves.
static unsigned processes_of(int index, nvmlProcessInfo_t *processes, unsigned room) {
    struct ka_state *state = state_map();
    unsigned count = 0;
    for (uint32_t i = 0; i < KA_SLOTS && i < __atomic_load_n(&state->slots_high, __ATOMIC_ACQUIRE); i++) {
        uint64_t bytes = __atomic_load_n(&state->slot[i].charged_bytes[index], __ATOMIC_RELAXED);
        if (!bytes || __atomic_load_n(&state->slot[i].flags, __ATOMIC_ACQUIRE) != KA_SLOT_LIVE) continue;
        if (count < room)
            processes[count] = (nvmlProcessInfo_t){
                .pid = state->slot[i].pid, .used = bytes, .gpu_instance = -1u, .compute_instance = -1u};
        count++;
    }
    return count;
}

static int tell(int index, unsigned *count, nvmlProcessInfo_t *processes) {
    unsigned room = processes ? *count : 0;
    *count = processes_of(index, processes, room);
    return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

HOOK(nvmlDeviceGetComputeRunningProcesses)(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *processes) {
    uint64_t limit, used;
    nvmlProcessInfo_t own[KA_SLOTS];
    int index = count ? limited(device, &limit, &used) : -1;
    if (index < 0) return REAL(nvmlDeviceGetComputeRunningProcesses)(device, count, processes);
    unsigned room = processes ? *count : 0;
    *count = processes_of(index, own, KA_SLOTS);
    for (unsigned i = 0; i < *count && i < room; i++)
        processes[i] = (nvmlProcessInfo_v1_t){.pid = own[i].pid, .used = own[i].used};
    return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

HOOK(nvmlDeviceGetComputeRunningProcesses_v2)(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *processes) {
    uint64_t limit, used;
    int index = count ? limited(device, &limit, &used) : -1;
    return index < 0 ? REAL(nvmlDeviceGetComputeRunningProcesses_v2)(device, count, processes)
                     : tell(index, count, processes);
}

HOOK(nvmlDeviceGetComputeRunningProcesses_v3)(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *processes) {
    uint64_t limit, used;
    int index = count ? limited(device, &limit, &used) : -1;
    return index < 0 ? REAL(nvmlDeviceGetComputeRunningProcesses_v3)(device, count, processes)
                     : tell(index, count, processes);
}
