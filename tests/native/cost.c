// SPDX-License-Identifier: Apache-2.0
//
// cost DRIVER CALL ROUNDS: what the interposer adds to a call, in nanoseconds, by calling through it and directly in turns, one process, one context. DRIVER is
// the real library's path; CALL is query (a jump), told (a jump unless something is being measured), launch or alloc. Prints the median of the rounds' differences, of the direct calls and the quartiles.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { EACH = 32 }; // calls timed at once

typedef int (*call)();
struct way {
    call query, told, launch, alloc, free;
};

static void *context, *kernel;
static call synchronize;

static int64_t now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * INT64_C(1000000000) + at.tv_nsec;
}

static void check(const char *what, int code) {
    if (code != 0) {
        fprintf(stderr, "cost: %s: CUDA error %d\n", what, code);
        exit(1);
    }
}

static double timed(const struct way *way, const char *what) {
    uint64_t held[EACH], rounds = 0;
    void *now_current, *parameters[] = {&rounds};
    int failed = 0;
    int64_t begin = now();
    if (strcmp(what, "query") == 0)
        for (int i = 0; i < EACH; i++) failed |= way->query(&now_current);
    else if (strcmp(what, "told") == 0)
        for (int i = 0; i < EACH; i++) failed |= way->told(context) & ~801; // the simulated driver does not have it
    else if (strcmp(what, "launch") == 0)
        for (int i = 0; i < EACH; i++) failed |= way->launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
    else
        for (int i = 0; i < EACH; i++) failed |= way->alloc(&held[i], (size_t)2 << 20);
    int64_t took = now() - begin;
    check(what, failed);
    if (strcmp(what, "alloc") == 0)
        for (int i = 0; i < EACH; i++) check("cuMemFree", way->free(held[i]));
    check("cuCtxSynchronize", synchronize());
    return (double)took / EACH;
}

static int ascending(const void *a, const void *b) {
    double difference = *(const double *)a - *(const double *)b;
    return difference < 0 ? -1 : difference > 0;
}

static struct way through(void *library) {
    return (struct way){(call)dlsym(library, "cuCtxGetCurrent"), (call)dlsym(library, "cuProfilerStop"),
                        (call)dlsym(library, "cuLaunchKernel"), (call)dlsym(library, "cuMemAlloc_v2"),
                        (call)dlsym(library, "cuMemFree_v2")};
}

int main(int count, char **words) {
    if (count != 5) return 2;
    void *ours = dlopen("libcuda.so.1", RTLD_NOW), *theirs = dlopen(words[1], RTLD_NOW | RTLD_LOCAL), *module;
    if (ours == NULL || theirs == NULL || ours == theirs) {
        fprintf(stderr, "cost: two libraries are needed\n");
        return 1;
    }
    const struct way hooked = through(ours), direct = through(theirs);
    FILE *file = fopen(words[4], "r");
    char *ptx = calloc(1, 1 << 16);
    if (file == NULL || fread(ptx, 1, (1 << 16) - 1, file) == 0) return 1;
    synchronize = (call)dlsym(ours, "cuCtxSynchronize");
    check("cuInit", ((call)dlsym(ours, "cuInit"))(0));
    check("cuDevicePrimaryCtxRetain", ((call)dlsym(ours, "cuDevicePrimaryCtxRetain"))(&context, 0));
    check("cuCtxSetCurrent", ((call)dlsym(ours, "cuCtxSetCurrent"))(context));
    check("cuModuleLoadData", ((call)dlsym(ours, "cuModuleLoadData"))(&module, ptx));
    check("cuModuleGetFunction", ((call)dlsym(ours, "cuModuleGetFunction"))(&kernel, module, "spin"));
    const int rounds = atoi(words[3]);
    double *added = calloc((size_t)rounds, sizeof *added), *alone = calloc((size_t)rounds, sizeof *alone);
    for (int i = -20; i < rounds; i++) {
        double with, without;
        if (i % 2 == 0) {
            with = timed(&hooked, words[2]);
            without = timed(&direct, words[2]);
        } else {
            without = timed(&direct, words[2]);
            with = timed(&hooked, words[2]);
        }
        if (i >= 0) {
            added[i] = with - without;
            alone[i] = without;
        }
    }
    double sum = 0;
    qsort(added, (size_t)rounds, sizeof *added, ascending);
    qsort(alone, (size_t)rounds, sizeof *alone, ascending);
    for (int i = rounds / 20; i < rounds - rounds / 20; i++) sum += added[i];
    printf("{\"added_ns\": %.1f, \"mean_ns\": %.1f, \"low_ns\": %.1f, \"high_ns\": %.1f, \"direct_ns\": %.1f}\n",
           added[rounds / 2], sum / (rounds - 2 * (rounds / 20)), added[rounds / 4], added[rounds * 3 / 4],
           alone[rounds / 2]);
    return 0;
}
