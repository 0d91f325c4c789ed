// SPDX-License-Identifier: Apache-2.0
// cuGetProcAddress: whatever name, version and flags the driver was asked for, its answer is the address of one of its
// exports. If that is one the shim wraps, the wrapper is what the program gets.
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

static void swap(CUresult result, void **function) {
    if (result || !function || !*function) return;
    build();
    for (size_t i = place(*function); swaps[i].real; i = (i + 1) % SPACE)
        if (swaps[i].real == *function) {
            *function = swaps[i].wrapper;
            return;
        }
}

HOOK(cuGetProcAddress)(const char *symbol, void **function, int version, uint64_t flags) {
    CUresult result = REAL(cuGetProcAddress)(symbol, function, version, flags);
    swap(result, function);
    return result;
}

HOOK(cuGetProcAddress_v2)(const char *symbol, void **function, int version, uint64_t flags, int *status) {
    CUresult result = REAL(cuGetProcAddress_v2)(symbol, function, version, flags, status);
    swap(result, function);
    return result;
}
