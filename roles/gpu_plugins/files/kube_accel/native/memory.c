// SPDX-License-Identifier: Apache-2.0
// Device memory by pointer, and how much of it there is to see.
#include "shim.h"

#define ALLOCATE(bytes, call, pointer)                \
    struct charge charge;                             \
    tells();                                          \
    CUresult result = charge_current(&charge, bytes); \
    if (result) return result;                        \
    result = call;                                    \
    return charged(&charge, result, POINTER, result ? 0 : *pointer)

HOOK(cuMemAlloc)(CUdeviceptr_v1 *pointer, unsigned bytes) {
    ALLOCATE(bytes, REAL(cuMemAlloc)(pointer, bytes), pointer);
}

HOOK(cuMemAlloc_v2)(CUdeviceptr *pointer, size_t bytes) {
    ALLOCATE(bytes, REAL(cuMemAlloc_v2)(pointer, bytes), pointer);
}

HOOK(cuMemAllocManaged)(CUdeviceptr *pointer, size_t bytes, unsigned flags) {
    ALLOCATE(bytes, REAL(cuMemAllocManaged)(pointer, bytes, flags), pointer);
}

static uint64_t area(uint64_t pitch, uint64_t height) {
    uint64_t bytes;
    return __builtin_mul_overflow((pitch + 511) / 512 * 512, height, &bytes) ? UINT64_MAX : bytes;
}

// The driver chooses the pitch: what it takes beyond the guess is charged afterwards, and given back if that is
// refused.
static CUresult pitched(struct charge *charge, CUresult result, CUdeviceptr pointer, uint64_t pitch, uint64_t height) {
    uint64_t bytes = area(pitch, height);
    if (!result && charge->index >= 0 && bytes > charge->bytes) {
        if (account_reserve(charge->index, bytes - charge->bytes)) {
            REAL(cuMemFree_v2)(pointer);
            account_release(charge->index, charge->bytes);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        charge->bytes = bytes;
    }
    return charged(charge, result, POINTER, pointer);
}

HOOK(cuMemAllocPitch)(CUdeviceptr_v1 *pointer, unsigned *pitch, unsigned width, unsigned height, unsigned element) {
    struct charge charge;
    tells();
    CUresult result = charge_current(&charge, area(width, height));
    if (result) return result;
    result = REAL(cuMemAllocPitch)(pointer, pitch, width, height, element);
    return pitched(&charge, result, result ? 0 : *pointer, result ? 0 : *pitch, height);
}

HOOK(cuMemAllocPitch_v2)(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element) {
    struct charge charge;
    tells();
    CUresult result = charge_current(&charge, area(width, height));
    if (result) return result;
    result = REAL(cuMemAllocPitch_v2)(pointer, pitch, width, height, element);
    return pitched(&charge, result, result ? 0 : *pointer, result ? 0 : *pitch, height);
}

// Either kind of free takes either kind of pointer.
#define FREE(pointer, call)                             \
    struct record record;                               \
    bool known = table_take(POINTER, pointer, &record); \
    return released(call, POINTER, pointer, known ? &record : NULL)

HOOK(cuMemFree)(CUdeviceptr_v1 pointer) {
    tells();
    FREE(pointer, REAL(cuMemFree)(pointer));
}

HOOK(cuMemFree_v2)(CUdeviceptr pointer) {
    tells();
    FREE(pointer, REAL(cuMemFree_v2)(pointer));
}

HOOK(cuMemFreeAsync)(CUdeviceptr pointer, CUstream stream) { FREE(pointer, REAL(cuMemFreeAsync)(pointer, stream)); }

HOOK(cuMemFreeAsync_ptsz)(CUdeviceptr pointer, CUstream stream) {
    FREE(pointer, REAL(cuMemFreeAsync_ptsz)(pointer, stream));
}

// What the driver says, cut to the share. Where memory is refused for want of a policy, none is free.
static void cut(CUdevice device, uint64_t *free, uint64_t *total) {
    uint64_t limit, used;
    int index = device_index(device);
    if (index == NO_SUCH_DEVICE) return;
    reserved_settle_all();
    if (!account_view(index, &limit, &used)) {
        *free = 0;
        return;
    }
    if (!limit) return;
    uint64_t left = limit > used ? limit - used : 0;
    if (*total > limit) *total = limit;
    if (*free > left) *free = left;
}

static CUresult info(CUresult result, uint64_t *free, uint64_t *total) {
    CUdevice device;
    if (!result && !current_device(&device)) cut(device, free, total);
    return result;
}

HOOK(cuMemGetInfo)(unsigned *free, unsigned *total) {
    unsigned free_real = 0, total_real = 0;
    CUresult result = REAL(cuMemGetInfo)(&free_real, &total_real);
    uint64_t left = free_real, all = total_real;
    info(result, &left, &all);
    if (!result && free) *free = (unsigned)left;
    if (!result && total) *total = (unsigned)all;
    return result;
}

HOOK(cuMemGetInfo_v2)(size_t *free, size_t *total) {
    uint64_t left = 0, all = 0;
    CUresult result = info(REAL(cuMemGetInfo_v2)(&left, &all), &left, &all);
    if (!result && free) *free = left;
    if (!result && total) *total = all;
    return result;
}

HOOK(cuDeviceTotalMem)(unsigned *bytes, CUdevice device) {
    CUresult result = REAL(cuDeviceTotalMem)(bytes, device);
    uint64_t free = 0, total = result ? 0 : *bytes;
    if (!result) cut(device, &free, &total);
    if (!result) *bytes = (unsigned)total;
    return result;
}

HOOK(cuDeviceTotalMem_v2)(size_t *bytes, CUdevice device) {
    CUresult result = REAL(cuDeviceTotalMem_v2)(bytes, device);
    uint64_t free = 0;
    if (!result) cut(device, &free, bytes);
    return result;
}
