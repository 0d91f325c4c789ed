// SPDX-License-Identifier: Apache-2.0
// Physical memory without an address: it lives while somebody holds the handle or has it mapped. What is imported was
// charged to who made it.
#include "shim.h"

static void let_go(CUmemGenericAllocationHandle handle) {
    struct record last;
    if (table_hold(HANDLE, handle, -1, &last) == 0) account_release(last.index, last.bytes);
}

HOOK(cuMemCreate)(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                  unsigned long long flags) {
    struct charge charge = {.index = NO_SUCH_DEVICE};
    CUdevice device;
    if (!properties) return REAL(cuMemCreate)(handle, bytes, properties, flags);
    if (flags || properties->handle_types & ~CU_MEM_HANDLE_TYPES || properties->usage & ~CU_MEM_CREATE_USAGES)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = place_of_memory(&properties->location, properties->type, &device);
    if (!result && device != ON_HOST) result = charge_device(&charge, device, bytes);
    if (result) return result;
    result = REAL(cuMemCreate)(handle, bytes, properties, flags);
    return charged(&charge, result, HANDLE, result ? 0 : *handle);
}

HOOK(cuMemRelease)(CUmemGenericAllocationHandle handle) {
    struct record last = {0};
    int holders = table_hold(HANDLE, handle, -1, &last);
    CUresult result = REAL(cuMemRelease)(handle);
    last.holders = 1;
    if (result && holders == 0) table_put(HANDLE, handle, last);
    if (result && holders > 0) table_hold(HANDLE, handle, 1, &last);
    if (!result && holders == 0) account_release(last.index, last.bytes);
    return result;
}

HOOK(cuMemRetainAllocationHandle)(CUmemGenericAllocationHandle *handle, void *address) {
    struct record last;
    CUresult result = REAL(cuMemRetainAllocationHandle)(handle, address);
    if (!result) table_hold(HANDLE, *handle, 1, &last);
    return result;
}

HOOK(cuMemMap)(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
               unsigned long long flags) {
    struct record last;
    bool held = table_hold(HANDLE, handle, 1, &last) > 0;
    CUresult result = REAL(cuMemMap)(pointer, bytes, offset, handle, flags);
    if (held && result) let_go(handle);
    if (!result)
        table_put(MAPPING, pointer,
                  (struct record){.bytes = bytes, .owner = held ? handle : 0, .index = -1, .pool = -1});
    return result;
}

HOOK(cuMemUnmap)(CUdeviceptr pointer, size_t bytes) {
    CUdeviceptr end = pointer + bytes;
    struct record mapping;
    tells();
    CUresult result = REAL(cuMemUnmap)(pointer, bytes);
    while (!result && pointer < end && table_take(MAPPING, pointer, &mapping)) {
        let_go(mapping.owner);
        pointer += mapping.bytes;
    }
    return result;
}
