// SPDX-License-Identifier: Apache-2.0
// cuGetProcAddress: whatever name, version and flags the driver was asked for, its answer is the address of one of its
// exports. If that is one the shim wraps, the wrapper is what the program gets. An address that is none of its exports is
// known by name and version.
#include <string.h>

#include "shim.h"

#define SPACE 2048 // a power of two, several times the number of wrappers

static struct {
    void *real, *wrapper;
} swaps[SPACE];

static size_t place(void *real) { return (size_t)(((uintptr_t)real >> 4) * 0x9e3779b97f4a7c15u >> 40) % SPACE; }

// Threads that build at once write the same; nobody reads before one is through.
static void add(int slot, void *wrapper) {
    void *real = real_at(slot);
    if (!real) return;
    for (size_t i = place(real);; i = (i + 1) % SPACE) {
        void *there = NULL;
        if (__atomic_compare_exchange_n(&swaps[i].real, &there, real, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED) ||
            there == real) {
            __atomic_store_n(&swaps[i].wrapper, wrapper, __ATOMIC_RELAXED);
            return;
        }
    }
}

static void build(void) {
    static int built;
    if (__atomic_load_n(&built, __ATOMIC_ACQUIRE)) return;
    for (int slot = 0; slot < SLOT_COUNT; slot++)
        if (wrappers[slot]) add(slot, wrappers[slot]);
    __atomic_store_n(&built, 1, __ATOMIC_RELEASE);
}

static const int since[] = {
#include "since.inc"
};

// Whether an export is this function of any version; `own`: for the calling thread's own default stream.
static bool is_of(const char *export, const char *function, size_t length, bool *own) {
    const char *rest = export + length;
    if (strncmp(export, function, length)) return false;
    if (rest[0] == '_' && rest[1] == 'v' && rest[2] >= '0' && rest[2] <= '9') rest += 3;
    *own = !strcmp(rest, "_ptsz") || !strcmp(rest, "_ptds");
    return *own || !*rest;
}

// The export by which the driver answers, as far as the names are known; -1: none. They are in order.
static int named(const char *function, int version, uint64_t flags) {
    size_t length = strlen(function);
    int low = 0, high = SLOT_COUNT, best = -1;
    bool best_own = false, own;
    while (low < high) {
        int middle = (low + high) / 2;
        if (strcmp(names[middle], function) < 0) low = middle + 1;
        else high = middle;
    }
    for (int slot = low; slot < SLOT_COUNT && !strncmp(names[slot], function, length); slot++) {
        if (!is_of(names[slot], function, length, &own) || since[slot] > version) continue;
        if (own && !(flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)) continue;
        bool newer = best < 0 || since[slot] > since[best] || (since[slot] == since[best] && own && !best_own);
        if (newer) best = slot, best_own = own;
    }
    return best;
}

static void *wrapper_at(void *real) {
    for (size_t i = place(real); swaps[i].real; i = (i + 1) % SPACE)
        if (swaps[i].real == real) return swaps[i].wrapper;
    return NULL;
}

static void swap(CUresult result, void **function, const char *symbol, int version, uint64_t flags) {
    if (result || !function || !*function) return;
    build();
    void *wrapper = wrapper_at(*function);
    int slot = wrapper || !symbol ? -1 : named(symbol, version, flags);
    if (slot >= 0 && wrappers[slot]) {
        const char *export = export_at(*function);
        if (!export) wrapper = wrappers[slot];
        else if (strcmp(export, names[slot]))
            say("%s is newer than this interposer, which does not limit it; use a newer image of kube-accel", export);
    }
    if (wrapper) *function = wrapper;
}

HOOK(cuGetProcAddress)(const char *symbol, void **function, int version, uint64_t flags) {
    CUresult result = REAL(cuGetProcAddress)(symbol, function, version, flags);
    swap(result, function, symbol, version, flags);
    return result;
}

HOOK(cuGetProcAddress_v2)(const char *symbol, void **function, int version, uint64_t flags, int *status) {
    CUresult result = REAL(cuGetProcAddress_v2)(symbol, function, version, flags, status);
    swap(result, function, symbol, version, flags);
    return result;
}
