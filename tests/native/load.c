// SPDX-License-Identifier: Apache-2.0
//
// load SECONDS MICROSECONDS [key=value...]: launches kernels of that length on the simulated driver for so long, and prints what share of the card's time this
// process got in the second half, what it launched in all, and how many events were recorded on a stream in capture.
//   sync=N      wait for the stream after each N launches; 0 (default): only at the end
//   streams=N   in turn on N streams; 0 (default): the default stream
//   threads=N   so many threads do all this, each on streams of its own
//   by=NAME     kernel (default), ex, cooperative, graph, multi, grid, ptsz: how it is launched
//   think=N     microseconds of sleep after each wait
//   card=N      which GPU of the machine the program's first one is
//   capture=1   another thread captures launches into graphs all the while
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "card.h"

typedef int (*call)();
static call get_proc_address;
static void *context, *kernel;
static int64_t sync_each, stream_count, thread_count = 1, think, capture, card_number, length;
static const char *by = "kernel";
static int64_t ends_at, half_at;
static struct cards *cards;

static call find(const char *name, int version, uint64_t flags) {
    void *function = NULL;
    int status = 0;
    if (get_proc_address(name, &function, version, flags, &status) != 0 || function == NULL) {
        fprintf(stderr, "load: %s: not found\n", name);
        exit(1);
    }
    return (call)function;
}

#define CALL(name, version, ...)                                       \
    do {                                                               \
        static call found;                                             \
        call function = __atomic_load_n(&found, __ATOMIC_RELAXED);     \
        if (function == NULL) function = find(#name, version, 0);      \
        __atomic_store_n(&found, function, __ATOMIC_RELAXED);          \
        int code = function(__VA_ARGS__);                              \
        if (code != 0) {                                               \
            fprintf(stderr, "load: %s: CUDA error %d\n", #name, code); \
            exit(1);                                                   \
        }                                                              \
    } while (0)

static int64_t now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * INT64_C(1000000000) + at.tv_nsec;
}

static void nap(int64_t microseconds) {
    nanosleep(&(struct timespec){microseconds / 1000000, microseconds % 1000000 * 1000}, NULL);
}

static void launch(void *stream, void *graph) {
    unsigned x = (unsigned)length;
    struct {
        unsigned grid[3], block[3], shared;
        void *stream, *attributes;
        unsigned count;
    } config = {{x, 1, 1}, {1, 1, 1}, 0, stream, NULL, 0};
    struct {
        void *function;
        unsigned grid[3], block[3], shared;
        void *stream, **parameters;
    } many = {kernel, {x, 1, 1}, {1, 1, 1}, 0, stream, NULL};
    if (strcmp(by, "kernel") == 0) CALL(cuLaunchKernel, 4000, kernel, x, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
    else if (strcmp(by, "ex") == 0) CALL(cuLaunchKernelEx, 11060, &config, kernel, NULL, NULL);
    else if (strcmp(by, "cooperative") == 0)
        CALL(cuLaunchCooperativeKernel, 9000, kernel, x, 1, 1, 1, 1, 1, 0, stream, NULL);
    else if (strcmp(by, "multi") == 0) CALL(cuLaunchCooperativeKernelMultiDevice, 9000, &many, 1, 0);
    else if (strcmp(by, "grid") == 0) CALL(cuLaunchGridAsync, 2000, kernel, x, 1, stream);
    else if (strcmp(by, "graph") == 0) CALL(cuGraphLaunch, 10000, graph, stream);
    else if (strcmp(by, "ptsz") == 0) {
        if (find("cuLaunchKernel", 7000, 2)(kernel, x, 1, 1, 1, 1, 1, 0, stream, NULL, NULL) != 0) exit(1);
    } else exit(2);
}

static void *make_graph(void) {
    struct {
        void *function;
        unsigned grid[3], block[3], shared;
        void **parameters, **extra, *kern, *context;
    } node = {kernel, {(unsigned)length, 1, 1}, {1, 1, 1}, 0, NULL, NULL, NULL, NULL};
    void *graph, *made, *executable;
    CALL(cuGraphCreate, 10000, &graph, 0);
    CALL(cuGraphAddKernelNode, 12000, &made, graph, NULL, (size_t)0, &node);
    CALL(cuGraphInstantiateWithFlags, 11040, &executable, graph, (uint64_t)0);
    return executable;
}

static int64_t progress_of(void) {
    int64_t progress = 0;
    struct card *card = &cards->cards[card_number];
    lock_card(card);
    advance_card(card, now());
    for (int i = 0; i < card->highest; i++)
        if (card->tenants[i].pid == getpid()) progress = card->tenants[i].progress;
    unlock_card(card);
    return progress;
}

struct work {
    int64_t launched, half_progress, half_time, end_progress, end_time;
};

static void *work(void *argument) {
    struct work *mine = argument;
    void *streams[256] = {NULL}, *graph = NULL;
    CALL(cuCtxSetCurrent, 4000, context);
    for (int64_t i = 0; i < stream_count; i++) CALL(cuStreamCreate, 2000, &streams[i], 1);
    graph = make_graph();
    while (now() < ends_at) {
        if (mine->half_time == 0 && now() >= half_at) {
            mine->half_progress = progress_of();
            mine->half_time = now();
        }
        launch(streams[stream_count > 0 ? mine->launched % stream_count : 0], graph);
        mine->launched++;
        if (sync_each > 0 && mine->launched % sync_each == 0) {
            CALL(cuCtxSynchronize, 2000, );
            if (think > 0) nap(think);
        }
    }
    mine->end_progress = progress_of();
    mine->end_time = now();
    return NULL;
}

static void *capture_all_the_while(void *argument) {
    int64_t *captured = argument;
    void *stream, *graph;
    CALL(cuCtxSetCurrent, 4000, context);
    CALL(cuStreamCreate, 2000, &stream, 1);
    while (now() < ends_at) {
        size_t nodes = 0;
        CALL(cuStreamBeginCapture, 10010, stream, 1);
        for (int i = 0; i < 100; i++) {
            CALL(cuLaunchKernel, 4000, kernel, 1000, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
            nap(100);
        }
        CALL(cuStreamEndCapture, 10000, stream, &graph);
        CALL(cuGraphGetNodes, 10000, graph, NULL, &nodes);
        if (nodes != 100) {
            fprintf(stderr, "load: a graph of 100 launches has %zu nodes\n", nodes);
            exit(1);
        }
        CALL(cuGraphDestroy, 10000, graph);
        ++*captured;
    }
    return NULL;
}

int main(int count, char **words) {
    if (count < 3) return 2;
    length = atoll(words[2]);
    for (int i = 3; i < count; i++) {
        char *value = strchr(words[i], '=');
        if (value == NULL) return 2;
        *value++ = '\0';
        if (strcmp(words[i], "by") == 0) by = value;
#define KEY(name, variable) else if (strcmp(words[i], name) == 0) variable = atoll(value)
        KEY("sync", sync_each);
        KEY("streams", stream_count);
        KEY("threads", thread_count);
        KEY("think", think);
        KEY("capture", capture);
        KEY("card", card_number);
        else return 2; }
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL || (get_proc_address = (call)dlsym(library, "cuGetProcAddress_v2")) == NULL) {
        fprintf(stderr, "load: %s\n", dlerror());
        return 1;
    }
    void *module;
    int device;
    CALL(cuInit, 2000, 0);
    CALL(cuDeviceGet, 2000, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, 7000, &context, device);
    CALL(cuCtxSetCurrent, 4000, context);
    CALL(cuModuleLoadData, 2000, &module, "");
    CALL(cuModuleGetFunction, 2000, &kernel, module, "spin");
    cards = map_cards(getenv("GPUSIM_FILE"));
    if (cards == NULL) return 1;
    const int64_t began = now(), lasts = (int64_t)(atof(words[1]) * 1e9);
    half_at = began + lasts / 2;
    ends_at = began + lasts;
    struct work works[16] = {{0}};
    pthread_t threads[16], capturer;
    int64_t captured = 0, launched = 0;
    if (capture > 0) pthread_create(&capturer, NULL, capture_all_the_while, &captured);
    for (int64_t i = 1; i < thread_count; i++) pthread_create(&threads[i], NULL, work, &works[i]);
    work(&works[0]);
    for (int64_t i = 1; i < thread_count; i++) pthread_join(threads[i], NULL);
    if (capture > 0) pthread_join(capturer, NULL);
    double share =
        (double)(works[0].end_progress - works[0].half_progress) / (double)(works[0].end_time - works[0].half_time);
    for (int64_t i = 0; i < thread_count; i++) launched += works[i].launched;
    unsigned records = 0;
    for (int i = 0; i < cards->cards[card_number].highest; i++)
        if (cards->cards[card_number].tenants[i].pid == getpid())
            records = cards->cards[card_number].tenants[i].captured_records;
    printf("{\"share\": %.6f, \"launched\": %lld, \"captured\": %lld, \"captured_records\": %u}\n", share,
           (long long)launched, (long long)captured, records);
    return 0;
}
