// SPDX-License-Identifier: Apache-2.0
#ifndef SIMCUDA_RESOLVE_H
#define SIMCUDA_RESOLVE_H

// All exports, by name; `version` is what versions.txt says.
struct export {
    const char *name;
    void *function;
    int version;
};
extern const struct export exports[] __attribute__((visibility("hidden")));
extern const int export_count __attribute__((visibility("hidden")));

#endif
