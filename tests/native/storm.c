// SPDX-License-Identifier: Apache-2.0
//
// storm THREADS ROUNDS SEED [KIND]: threads that allocate and free GPU memory of every kind, or one, at random; prints how often they were given some and refused.
// Then it frees nothing and exits. `storm` alone prints what of GPU 0 is in use and the most that ever was, as the simulated driver counts it.
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "card.h"

enum { HELD = 24, MIB2 = 2 << 20, OUT_OF_MEMORY = 2 };
enum kind { NOTHING, PLAIN, PITCH, ASYNC, PHYSICAL, ARRAY, KINDS };

typedef int (*call)();
static call alloc_plain, alloc_pitch, alloc_async, create, array_create, free_plain, free_async, release, array_destroy,
    set_current, info, synchronize;
static void *context;
static int rounds;
static enum kind only;
static atomic_long given, refused;

static int64_t next(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)(*seed >> 33);
}

static void check(const char *what, int code) {
    if (code != 0) {
        fprintf(stderr, "storm: %s: CUDA error %d\n", what, code);
        exit(1);
    }
}

static int take(enum kind kind, uint64_t *out, size_t bytes) {
    size_t pitch;
    int properties[8] = {1, 0, 1, 0};
    struct {
        size_t width, height, depth;
        int format;
        unsigned channels, flags;
    } array = {bytes / 4, 1, 1, 0x20, 1, 0};
    switch (kind) {
    case PLAIN:
        return alloc_plain(out, bytes);
    case PITCH:
        return alloc_pitch(out, &pitch, (size_t)1 << 20, bytes >> 20, 4);
    case ASYNC:
        return alloc_async(out, bytes, NULL);
    case PHYSICAL:
        return create(out, bytes, properties, (uint64_t)0);
    default:
        return array_create(out, &array);
    }
}

static void give(enum kind kind, uint64_t handle, int64_t chance) {
    switch (kind) {
    case PHYSICAL:
        check("cuMemRelease", release(handle));
        break;
    case ARRAY:
        check("cuArrayDestroy", array_destroy(handle));
        break;
    default:
        check("free", chance % 2 == 0 ? free_plain(handle) : free_async(handle, NULL));
    }
}

static void *storm(void *argument) {
    uint64_t seed = (uint64_t)(intptr_t)argument, handles[HELD];
    enum kind kinds[HELD] = {NOTHING};
    check("cuCtxSetCurrent", set_current(context));
    for (int i = 0; i < rounds; i++) {
        int place = (int)(next(&seed) % HELD);
        if (kinds[place] != NOTHING) {
            give(kinds[place], handles[place], next(&seed));
            kinds[place] = NOTHING;
            continue;
        }
        enum kind kind = only != NOTHING ? only : (enum kind)(1 + next(&seed) % (KINDS - 1));
        int code = take(kind, &handles[place], (size_t)(1 + next(&seed) % 64) * MIB2);
        if (code != 0 && code != OUT_OF_MEMORY) check("allocation", code);
        kinds[place] = code == 0 ? kind : NOTHING;
        atomic_fetch_add(code == 0 ? &given : &refused, 1);
        size_t left, total;
        check("cuMemGetInfo", info(&left, &total));
        if (left > total) {
            fprintf(stderr, "storm: %zu of %zu free\n", left, total);
            exit(1);
        }
        if (next(&seed) % 16 == 0) check("cuCtxSynchronize", synchronize());
    }
    return NULL;
}

static int report(void) {
    struct card *card = &map_cards(getenv("GPUSIM_FILE"))->cards[0];
    int64_t used = 0;
    lock_card(card);
    sweep_card(card);
    for (int i = 0; i < card->highest; i++) used += card->tenants[i].used;
    printf("{\"used\": %lld, \"peak\": %lld}\n", (long long)used, (long long)card->peak);
    unlock_card(card);
    return 0;
}

int main(int count, char **words) {
    if (count < 4) return report();
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "storm: %s\n", dlerror());
        return 1;
    }
#define FIND(variable, name) variable = (call)dlsym(library, name)
    FIND(alloc_plain, "cuMemAlloc_v2");
    FIND(alloc_pitch, "cuMemAllocPitch_v2");
    FIND(alloc_async, "cuMemAllocAsync");
    FIND(create, "cuMemCreate");
    FIND(array_create, "cuArray3DCreate_v2");
    FIND(free_plain, "cuMemFree_v2");
    FIND(free_async, "cuMemFreeAsync");
    FIND(release, "cuMemRelease");
    FIND(array_destroy, "cuArrayDestroy");
    FIND(set_current, "cuCtxSetCurrent");
    FIND(info, "cuMemGetInfo_v2");
    FIND(synchronize, "cuCtxSynchronize");
    call init, retain;
    FIND(init, "cuInit");
    FIND(retain, "cuDevicePrimaryCtxRetain");
    check("cuInit", init(0));
    int code; // who comes late may find no room for a context until others are done
    while ((code = retain(&context, 0)) == OUT_OF_MEMORY) nanosleep(&(struct timespec){0, 1000000}, NULL);
    check("cuDevicePrimaryCtxRetain", code);
    const int threads = atoi(words[1]);
    rounds = atoi(words[2]);
    only = count > 4 ? (enum kind)atoi(words[4]) : NOTHING;
    pthread_t ids[16];
    for (int i = 0; i < threads && i < 16; i++)
        pthread_create(&ids[i], NULL, storm, (void *)(intptr_t)(atoi(words[3]) * 100 + i + 1));
    for (int i = 0; i < threads && i < 16; i++) pthread_join(ids[i], NULL);
    printf("{\"given\": %ld, \"refused\": %ld}\n", given, refused);
    return 0;
}
