// SPDX-License-Identifier: Apache-2.0
//
// cuGetProcAddress: which export answers a name, at a version, for a kind of default stream. With GPUSIM_THUNKS it
// answers with addresses that are none of its exports.

#include "simcuda.h"

#include <stdio.h>

#include "resolve.h"

enum { LEGACY_STREAM = 1, PER_THREAD_STREAM = 2, FOUND = 0, NO_SUCH_SYMBOL = 1, VERSION_NOT_SUFFICIENT = 2 };

static const struct export *find_export(const char *name, int version) {
    int low = 0, high = export_count - 1;
    while (low <= high) {
        int middle = (low + high) / 2, order = strcmp(name, exports[middle].name);
        if (order == 0)
            return exports[middle].version <= version ? &exports[middle] : NULL;
        low = order > 0 ? middle + 1 : low;
        high = order < 0 ? middle - 1 : high;
    }
    return NULL;
}

static bool has_suffix(const char *name) {
    const char *last = strrchr(name, '_');
    return last != NULL && (strcmp(last, "_ptsz") == 0 || strcmp(last, "_ptds") == 0 ||
                            (last[1] == 'v' && last[2] >= '2' && last[2] <= '9' && last[3] == '\0'));
}

static int find(const char *name, void **function, int version, uint64_t flags) {
    static const char *const versions[] = {"_v4", "_v3", "_v2", ""};
    static const char *const streams[] = {"_ptsz", "_ptds", ""};
    char text[128];
    *function = NULL;
    if (strlen(name) > 100 || has_suffix(name))
        return NO_SUCH_SYMBOL;
    for (int v = 0; v < 4; v++)
        for (int s = (flags & PER_THREAD_STREAM) != 0 ? 0 : 2; s < 3; s++) {
            snprintf(text, sizeof text, "%s%s%s", name, versions[v], streams[s]);
            const struct export *export = find_export(text, version);
            if (export != NULL) {
                *function = getenv("GPUSIM_THUNKS") != NULL ? export->thunk : export->function;
                return FOUND;
            }
        }
    return find_export(name, INT32_MAX) != NULL ? VERSION_NOT_SUFFICIENT : NO_SUCH_SYMBOL;
}

API CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    NEED(name);
    NEED(function);
    NEED(flags <= (LEGACY_STREAM | PER_THREAD_STREAM));
    int found = find(name, function, version, flags);
    if (status != NULL)
        *status = found;
    return SUCCESS;
}

API CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    TRY(cuGetProcAddress_v2(name, function, version, flags, NULL));
    return *function != NULL ? SUCCESS : NOT_FOUND;
}

int unsupported(const char *name) {
    if (getenv("GPUSIM_TELL") != NULL)
        fprintf(stderr, "simcuda: %s is not simulated\n", name);
    return NOT_SUPPORTED;
}
