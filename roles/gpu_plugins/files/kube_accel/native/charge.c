// SPDX-License-Identifier: Apache-2.0
// A charge and what it is for.
#include "shim.h"

#define SMALL 512u        // the driver carves small pieces out of larger ones,
#define LARGE (2ull << 20) // and takes from 1 MiB on whole pages of 2 MiB

static uint64_t rounded(uint64_t bytes) {
    uint64_t unit = bytes > LARGE / 2 ? LARGE : SMALL;
    return bytes > UINT64_MAX - unit ? UINT64_MAX : (bytes + unit - 1) / unit * unit;
}

CUresult charge_device(struct charge *charge, CUdevice device, uint64_t bytes) {
    *charge = (struct charge){.index = device_index(device), .bytes = rounded(bytes)};
    if (charge->index == NO_SUCH_DEVICE) return CUDA_SUCCESS;
    return charge->index < 0 ? account_denied_by_policy() : account_reserve(charge->index, charge->bytes);
}

CUresult charge_current(struct charge *charge, uint64_t bytes) {
    CUdevice device;
    *charge = (struct charge){.index = NO_SUCH_DEVICE};
    return current_device(&device) ? CUDA_SUCCESS : charge_device(charge, device, bytes);
}

// Managed memory without a preferred device can go to any: it is the current one's, as that of cuMemAllocManaged.
CUresult place_of_memory(const CUmemLocation *location, int type, CUdevice *device) {
    bool managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
    if (!managed && type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    switch (location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        *device = location->id;
        return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN:
        *device = location->localized.device;
        return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_NONE:
        if (!managed) return CUDA_ERROR_INVALID_VALUE;
        // fall through
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
        if (!managed) *device = ON_HOST;
        else if (current_device(device)) *device = 0;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult charged(struct charge *charge, CUresult result, enum kind kind, uint64_t key) {
    if (charge->index < 0) return result;
    if (result) {
        account_release(charge->index, charge->bytes);
        if (result == CUDA_ERROR_OUT_OF_MEMORY) account_denied_by_device(charge->index);
        return result;
    }
    CUcontext context = NULL;
    REAL(cuCtxGetCurrent)(&context);
    struct record record = {
        .bytes = charge->bytes, .owner = (uintptr_t)context, .holders = 1, .index = (int16_t)charge->index, .pool = -1};
    if (!table_put(kind, key, record))
        say("more allocations than can be remembered: some stay charged until this process ends");
    return result;
}

// The record was taken before the driver was asked, or another thread could have been given the same handle meanwhile.
CUresult released(CUresult result, enum kind kind, uint64_t key, const struct record *record) {
    if (!record) return result;
    if (result) table_put(kind, key, *record);
    else if (record->pool >= 0) pool_settle(record->pool);
    else account_release(record->index, record->bytes);
    return result;
}
