// SPDX-License-Identifier: Apache-2.0
// The real driver library at its private path, and its functions as they are asked for.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

#include "shim.h"

// libc moved these in 2.34; by their old version the shim loads everywhere.
#if defined(__x86_64__)
#define OLDEST "GLIBC_2.2.5"
#else
#define OLDEST "GLIBC_2.17"
#endif
__asm__(".symver dlopen, dlopen@" OLDEST "\n.symver dlsym, dlsym@" OLDEST "\n.symver dlerror, dlerror@" OLDEST
        "\n.symver dladdr, dladdr@" OLDEST);

const char *const names[] = {
#include "names.inc"
};

extern char own_last[]; // this library's export of the last name

static int no_driver(void) { return SHIM_NO_DRIVER; }
static int not_in_driver(void) { return SHIM_NOT_IN_DRIVER; }

static void *library(void) {
    static void *opened;
    void *handle = __atomic_load_n(&opened, __ATOMIC_ACQUIRE);
    if (handle) return handle;
    char path[512];
    snprintf(path, sizeof path, "%s/" SHIM_LIBRARY, policy_path(KA_DRIVER_DIRECTORY, "KUBE_ACCEL_DRIVER"));
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!handle) {
        say("the driver's library cannot be loaded: %s", dlerror());
        return NULL;
    }
    if (dlsym(handle, names[SLOT_COUNT - 1]) == (void *)own_last) {
        say("%s is this library, not the driver's", path);
        return NULL;
    }
    __atomic_store_n(&opened, handle, __ATOMIC_RELEASE);
    return handle;
}

// Called by a slot's lazy entry.
__attribute__((visibility("hidden"))) void *resolve(unsigned slot) {
    void *handle = library();
    if (!handle) return (void *)no_driver;
    void *function = dlsym(handle, names[slot]);
    if (!function) function = (void *)not_in_driver;
    __atomic_store_n(&slots[slot], function, __ATOMIC_RELAXED);
    return function;
}

void *real_at(int slot) {
    void *function = resolve((unsigned)slot);
    return function == (void *)no_driver || function == (void *)not_in_driver ? NULL : function;
}

const char *export_at(const void *address) {
    Dl_info info;
    return dladdr(address, &info) && info.dli_saddr == address ? info.dli_sname : NULL;
}

void *real_symbol(const char *name) {
    void *symbol = dlsym(RTLD_DEFAULT, name), *handle = symbol ? NULL : library();
    return handle ? dlsym(handle, name) : symbol;
}
