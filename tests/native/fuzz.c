// SPDX-License-Identifier: Apache-2.0
//
// fuzz files SEED: uses the driver with whatever policy and account are there while a thread scribbles over the account; ends with the program's own exit code 0
// unless a call answered what no driver does.
// fuzz names DRIVER SECONDS SEED: asks cuGetProcAddress by names, versions and flags at random, and compares with the driver's own answers.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef int (*call)();
static void *library;
static uint64_t seed;
static volatile bool over;

static uint64_t next(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return seed >> 33;
}

static int answered(const char *name, int code) {
    static const int known[] = {0, 1, 2, 100, 101, 201, 400, 600, 801};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (code == known[i]) return code;
    fprintf(stderr, "fuzz: %s answered %d\n", name, code);
    exit(1);
}

#define CALL(name, ...) answered(#name, ((call)dlsym(library, #name))(__VA_ARGS__))

// Leaves the header's first words as they are: with those changed the account is refused, which the files' own mutation tries.
static void *scribble(void *argument) {
    const char *path = getenv("KUBE_ACCEL_STATE");
    struct stat status;
    int file = open(path, O_RDWR);
    (void)argument;
    if (file < 0 || fstat(file, &status) != 0 || status.st_size < 4096) return NULL;
    uint64_t mine = seed;
    for (int i = 0; i < 2000 && !over; i++) {
        mine = mine * 6364136223846793005u + 1442695040888963407u;
        uint64_t value = mine % 5 == 0 ? UINT64_MAX : mine % 5 == 1 ? 0 : mine * 0x9e3779b97f4a7c15u;
        off_t at = 24 + (off_t)((mine >> 20) % (mine % 2 == 0 ? 512 : (uint64_t)status.st_size / 8 - 4)) * 8;
        if (at + 8 <= status.st_size && pwrite(file, &value, 8, at) != 8) break;
        nanosleep(&(struct timespec){0, 200000}, NULL);
    }
    close(file);
    return NULL;
}

static int fuzz_files(void) {
    void *context = NULL, *module, *kernel = NULL;
    uint64_t held[16] = {0};
    size_t left, total;
    pthread_t scribbler;
    CALL(cuInit, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, 0);
    CALL(cuCtxSetCurrent, context);
    if (CALL(cuModuleLoadData, &module, "") == 0) CALL(cuModuleGetFunction, &kernel, module, "spin");
    bool scribbles = next() % 2 == 0;
    if (scribbles) pthread_create(&scribbler, NULL, scribble, NULL);
    for (int i = 0; i < 100; i++) {
        uint64_t *place = &held[next() % 16];
        if (*place != 0) {
            CALL(cuMemFree_v2, *place);
            *place = 0;
        } else if (CALL(cuMemAlloc_v2, place, (size_t)(next() % 64 + 1) << 22) != 0) {
            *place = 0;
        }
        CALL(cuMemGetInfo_v2, &left, &total);
        CALL(cuLaunchKernel, kernel, 10, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    }
    CALL(cuCtxSynchronize);
    over = true;
    if (scribbles) pthread_join(scribbler, NULL);
    return 0;
}

static const char *export_at(void *address) {
    Dl_info info;
    return address != NULL && dladdr(address, &info) != 0 && info.dli_saddr == address ? info.dli_sname : NULL;
}

static int fuzz_names(const char *path, int seconds) {
    static const char *const names[] = {"cuMemAlloc",    "cuLaunchKernel",  "cuGetProcAddress", "cuMemFree",
                                        "cuGraphLaunch", "cuMemAllocAsync", "cuCtxCreate",      "cuInit",
                                        "cuStreamQuery", "cuMemcpyDtoH"};
    static const int versions[] = {0, -1, 2000, 3020, 4000, 7000, 11030, 12000, 13000, 2147483647, -2147483647 - 1};
    void *driver = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (driver == NULL) return 1;
    call ours = (call)dlsym(library, "cuGetProcAddress_v2"), theirs = (call)dlsym(driver, "cuGetProcAddress_v2");
    long tries = 0;
    for (time_t end = time(NULL) + seconds; time(NULL) < end; tries++) {
        char name[512] = ""; // room for every change below
        snprintf(name, sizeof name, "%s", names[next() % 10]);
        for (uint64_t changes = next() % 3; changes > 0; changes--) switch (next() % 4) {
            case 0:
                strcat(name, (const char *[]){"_v2", "_ptsz", "_ptds", "_v3"}[next() % 4]);
                break;
            case 1:
                name[next() % (strlen(name) + 1)] = (char)(next() % 255 + 1);
                break;
            case 2:
                name[next() % (strlen(name) + 1)] = '\0';
                break;
            default:
                memset(name + strlen(name), 'x', next() % 150);
                break;
            }
        name[sizeof name - 1] = '\0';
        int version = versions[next() % 11];
        uint64_t flags = next() % 4 == 0 ? next() : next() % 3;
        void *got[2] = {&got, &got};
        int status[2] = {7, 7};
        bool asks = next() % 4 != 0, stores = next() % 16 != 0;
        int code =
            ours(next() % 64 == 0 ? NULL : name, stores ? &got[0] : NULL, version, flags, asks ? &status[0] : NULL);
        int expected = theirs(name, stores ? &got[1] : NULL, version, flags, asks ? &status[1] : NULL);
        if (code != expected && code != 1) return fprintf(stderr, "fuzz: %s: %d, not %d\n", name, code, expected), 1;
        if (code != 0 || !stores) continue;
        const char *export = export_at(got[1]);
        void *wrapper = export != NULL ? dlsym(library, export) : NULL;
        if (status[0] != status[1] || (got[0] != got[1] && got[0] != wrapper))
            return fprintf(stderr, "fuzz: %s version %d flags %lu: a stranger's address\n", name, version,
                           (unsigned long)flags),
                   1;
        if (export != NULL && strcmp(export, "cuMemAlloc_v2") == 0 && got[0] != wrapper)
            return fprintf(stderr, "fuzz: %s is not the wrapper\n", name), 1;
    }
    printf("%ld\n", tries);
    return 0;
}

int main(int count, char **words) {
    if (count < 3) return 2;
    seed = strtoull(words[count - 1], NULL, 0);
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) return 1;
    return strcmp(words[1], "files") == 0 ? fuzz_files() : fuzz_names(words[2], atoi(words[3]));
}
