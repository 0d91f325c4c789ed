// SPDX-License-Identifier: Apache-2.0
#ifndef SIMCUDA_RESOLVE_H
#define SIMCUDA_RESOLVE_H

// All exports, by name; `version` is what versions.txt says.
struct export {
    const char *name;
    void *function, *thunk;
    int version;
};
extern const struct export exports[] __attribute__((visibility("hidden")));
extern const int export_count __attribute__((visibility("hidden")));

// What a function answers that no source here defines: CUDA_ERROR_NOT_SUPPORTED. With GPUSIM_TELL set it names itself on
// standard error, for whoever wants to run one more program here.
int unsupported(const char *name);

#endif
