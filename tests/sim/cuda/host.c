// SPDX-License-Identifier: Apache-2.0
//
// Memory of the host that a device can reach: it takes nothing of the device's.

#include "simcuda.h"

struct pinned {
    struct pinned *next;
    void *start;
    unsigned flags;
    bool ours;  // allocated here; otherwise the program's, and registered
};

static struct pinned *pinned;

static struct pinned **pinned_at(const void *start) {
    struct pinned **place = &pinned;
    while (*place != NULL && (*place)->start != start)
        place = &(*place)->next;
    return place;
}

static CUresult pin(void *start, unsigned flags, bool ours) {
    struct pinned *entry = start != NULL ? malloc(sizeof *entry) : NULL;
    if (entry == NULL)
        return OUT_OF_MEMORY;
    *entry = (struct pinned){pinned, start, flags, ours};
    pinned = entry;
    return SUCCESS;
}

static CUresult unpin(void *start, bool ours) {
    struct pinned **place = pinned_at(start), *entry = *place;
    if (entry == NULL || entry->ours != ours)
        return INVALID_VALUE;
    *place = entry->next;
    if (ours)
        free(start);
    free(entry);
    return SUCCESS;
}

API CUresult cuMemHostAlloc(void **out, size_t size, unsigned flags) {
    ENTER_CONTEXT;
    NEED(out);
    NEED(size);
    if (flags > 7)  // PORTABLE, DEVICEMAP, WRITECOMBINED
        return INVALID_VALUE;
    *out = malloc(size);
    return pin(*out, flags, true);
}

API CUresult cuMemAllocHost_v2(void **out, size_t size) {
    return cuMemHostAlloc(out, size, 0);
}

API CUresult cuMemFreeHost(void *start) {
    ENTER_CONTEXT;
    return unpin(start, true);
}

API CUresult cuMemHostRegister_v2(void *start, size_t size, unsigned flags) {
    ENTER_CONTEXT;
    NEED(start);
    NEED(size);
    return *pinned_at(start) != NULL ? HOST_MEMORY_ALREADY_REGISTERED : pin(start, flags, false);
}

API CUresult cuMemHostUnregister(void *start) {
    ENTER_CONTEXT;
    return unpin(start, false);
}

API CUresult cuMemHostGetFlags(unsigned *flags, void *start) {
    ENTER_CONTEXT;
    NEED(flags);
    const struct pinned *entry = *pinned_at(start);
    NEED(entry);
    *flags = entry->flags;
    return SUCCESS;
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *start, unsigned flags) {
    ENTER_CONTEXT;
    NEED(out);
    if (flags != 0 || *pinned_at(start) == NULL)
        return INVALID_VALUE;
    *out = (CUdeviceptr)start;  // one address for both, as with unified addressing
    return SUCCESS;
}
