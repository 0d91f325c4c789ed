// SPDX-License-Identifier: Apache-2.0
// Devices by UUID: the order a program sees them in is its own choice. Contexts, and what goes with them.
#include "shim.h"

#define ORDINALS 64

static struct devices {
    int8_t index[ORDINALS]; // plus one; 0: not looked up
    CUcontext primary[ORDINALS];
    uint32_t lock;
    uint32_t contexts[KA_DEVICES];
    uint64_t overhead[KA_DEVICES];
} *devices(void) {
    static void *memory;
    return wiped(&memory, sizeof(struct devices));
}

static int look_up(CUdevice device) {
    uint8_t uuid[16];
    int index = NOT_IN_POLICY;
    if (HAS(cuDeviceGetUuid_v2)) { // of a MIG device its own
        if (REAL(cuDeviceGetUuid_v2)(uuid, device)) return NO_SUCH_DEVICE;
        index = policy_index(uuid);
    }
    if (index >= 0) return index;
    return REAL(cuDeviceGetUuid)(uuid, device) ? NO_SUCH_DEVICE : policy_index(uuid);
}

int device_index(CUdevice device) {
    struct devices *mine = devices();
    if (device < 0 || device >= ORDINALS || !mine) return NO_SUCH_DEVICE;
    int known = __atomic_load_n(&mine->index[device], __ATOMIC_RELAXED);
    if (known) return known - 1;
    int index = look_up(device);
    if (index >= 0) __atomic_store_n(&mine->index[device], (int8_t)(index + 1), __ATOMIC_RELAXED);
    return index;
}

CUresult current_device(CUdevice *device) { return REAL(cuCtxGetDevice)(device); }

// Charges the overhead of a process's first context on a device.
static CUresult enter(int index) {
    struct devices *mine = devices();
    struct ka_policy_device policy;
    CUresult result = CUDA_SUCCESS;
    if (!mine || !policy_read(index, &policy)) return result;
    spin_lock(&mine->lock);
    if (!mine->contexts[index] && !(result = account_reserve(index, policy.context_overhead_bytes)))
        mine->overhead[index] = policy.context_overhead_bytes;
    if (!result) mine->contexts[index]++;
    spin_unlock(&mine->lock);
    return result;
}

static void leave(int index) {
    struct devices *mine = index < 0 ? NULL : devices();
    if (!mine) return;
    spin_lock(&mine->lock);
    if (mine->contexts[index] && !--mine->contexts[index]) account_release(index, mine->overhead[index]);
    spin_unlock(&mine->lock);
}

// After the driver was asked for a context that enter() let in.
static CUresult entered(CUresult result, int index, const void *context) {
    struct record known;
    if (result || table_has(CONTEXT, (uintptr_t)context, &known) ||
        !table_put(CONTEXT, (uintptr_t)context, (struct record){.holders = 1, .index = (int16_t)index, .pool = -1}))
        leave(index);
    return result;
}

static bool belongs(enum kind kind, uint64_t key, struct record *record, void *context) {
    (void)key;
    if (kind == CONTEXT || kind == MAPPING || kind == HANDLE || record->owner != (uintptr_t)context) return false;
    if (record->pool < 0) account_release(record->index, record->bytes);
    return true;
}

static void ended(CUcontext context, int index) {
    table_each(belongs, context);
    reserved_settle_all();
    leave(index);
}

static void gone(CUcontext context) {
    struct record record;
    if (table_take(CONTEXT, (uintptr_t)context, &record)) ended(context, record.index);
}

#define CREATE(call, context)         \
    int index = device_index(device); \
    CUresult result = enter(index);   \
    if (result) return result;        \
    result = call;                    \
    return entered(result, index, result ? NULL : *context)

HOOK(cuCtxCreate)(CUcontext *context, unsigned flags, CUdevice device) {
    CREATE(REAL(cuCtxCreate)(context, flags, device), context);
}

HOOK(cuCtxCreate_v2)(CUcontext *context, unsigned flags, CUdevice device) {
    CREATE(REAL(cuCtxCreate_v2)(context, flags, device), context);
}

HOOK(cuCtxCreate_v3)(CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device) {
    CREATE(REAL(cuCtxCreate_v3)(context, affinity, count, flags, device), context);
}

HOOK(cuCtxCreate_v4)(CUcontext *context, void *parameters, unsigned flags, CUdevice device) {
    CREATE(REAL(cuCtxCreate_v4)(context, parameters, flags, device), context);
}

HOOK(cuGLCtxCreate)(CUcontext *context, unsigned flags, CUdevice device) {
    CREATE(REAL(cuGLCtxCreate)(context, flags, device), context);
}

HOOK(cuGLCtxCreate_v2)(CUcontext *context, unsigned flags, CUdevice device) {
    CREATE(REAL(cuGLCtxCreate_v2)(context, flags, device), context);
}

HOOK(cuVDPAUCtxCreate)(CUcontext *context, unsigned flags, CUdevice device, unsigned vdpau, void *get_address) {
    CREATE(REAL(cuVDPAUCtxCreate)(context, flags, device, vdpau, get_address), context);
}

HOOK(cuVDPAUCtxCreate_v2)(CUcontext *context, unsigned flags, CUdevice device, unsigned vdpau, void *get_address) {
    CREATE(REAL(cuVDPAUCtxCreate_v2)(context, flags, device, vdpau, get_address), context);
}

HOOK(cuGreenCtxCreate)(CUgreenCtx *context, CUdevResourceDesc resources, CUdevice device, unsigned flags) {
    CREATE(REAL(cuGreenCtxCreate)(context, resources, device, flags), context);
}

HOOK(cuDevicePrimaryCtxRetain)(CUcontext *context, CUdevice device) {
    int index = device_index(device);
    CUresult result = enter(index);
    if (result) return result;
    result = REAL(cuDevicePrimaryCtxRetain)(context, device);
    if (!result && device >= 0 && device < ORDINALS && devices())
        __atomic_store_n(&devices()->primary[device], *context, __ATOMIC_RELAXED);
    return entered(result, index, result ? NULL : *context);
}

static CUresult destroyed(CUresult result, CUcontext context) {
    gate_destroyed(result ? NULL : context);
    if (!result) gone(context);
    return result;
}

HOOK(cuCtxDestroy)(CUcontext context) {
    gate_destroying();
    return destroyed(REAL(cuCtxDestroy)(context), context);
}

HOOK(cuCtxDestroy_v2)(CUcontext context) {
    gate_destroying();
    return destroyed(REAL(cuCtxDestroy_v2)(context), context);
}

HOOK(cuCtxAttach)(CUcontext *context, unsigned flags) {
    struct record last;
    CUresult result = REAL(cuCtxAttach)(context, flags);
    if (!result) table_hold(CONTEXT, (uintptr_t)*context, 1, &last);
    return result;
}

// It destroys the context that it was the last to hold.
HOOK(cuCtxDetach)(CUcontext context) {
    struct record last;
    gate_destroying();
    CUresult result = REAL(cuCtxDetach)(context);
    bool end = !result && table_hold(CONTEXT, (uintptr_t)context, -1, &last) == 0;
    gate_destroyed(end ? context : NULL);
    if (end) ended(context, last.index);
    return result;
}

HOOK(cuGreenCtxDestroy)(CUgreenCtx green) {
    CUcontext context = NULL;
    if (HAS(cuCtxFromGreenCtx) && REAL(cuCtxFromGreenCtx)(&context, green)) context = NULL;
    gate_destroying();
    CUresult result = REAL(cuGreenCtxDestroy)(green);
    gate_destroyed(result ? NULL : context);
    if (!result) gone((CUcontext)green);
    return result;
}

// The last release ends the primary context, a reset does so at once.
static CUresult primary_released(CUresult result, CUdevice device) {
    unsigned flags;
    int active = 1;
    CUcontext context = NULL;
    if (!result && device >= 0 && device < ORDINALS && devices() &&
        !REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) && !active)
        context = __atomic_load_n(&devices()->primary[device], __ATOMIC_RELAXED);
    gate_destroyed(context);
    if (context) {
        pools_sleep(device);
        gone(context);
    }
    return result;
}

HOOK(cuDevicePrimaryCtxRelease)(CUdevice device) {
    gate_destroying();
    return primary_released(REAL(cuDevicePrimaryCtxRelease)(device), device);
}

HOOK(cuDevicePrimaryCtxRelease_v2)(CUdevice device) {
    gate_destroying();
    return primary_released(REAL(cuDevicePrimaryCtxRelease_v2)(device), device);
}

HOOK(cuDevicePrimaryCtxReset)(CUdevice device) {
    gate_destroying();
    return primary_released(REAL(cuDevicePrimaryCtxReset)(device), device);
}

HOOK(cuDevicePrimaryCtxReset_v2)(CUdevice device) {
    gate_destroying();
    return primary_released(REAL(cuDevicePrimaryCtxReset_v2)(device), device);
}
