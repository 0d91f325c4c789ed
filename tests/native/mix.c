// SPDX-License-Identifier: Apache-2.0
//
// mix ROUNDS STEP...: takes these steps again and again on the simulated driver, and prints what its GPU time was, how long all took, and both of the second half.
// A step is a word and its numbers, with colons between:
//   kernel:US:STREAM, graph:US:STREAM   work of so many microseconds
//   copy:NAME:STREAM                    an asynchronous copy of a few bytes
//   think:US                            sleep
//   wait:NAME:STREAM                    learn of the end of the stream's work by this function
// Streams: 0 is the legacy one, 1 another that does not wait for it, 2 one that does, 3 the thread's own.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "card.h"

enum { MOST = 64, POLL = 20, OWN = 3 };
typedef int (*call)();
struct step {
    char word[16], name[48];
    int64_t length;
    int stream;
    void *graph;
};

static call get_proc_address;
static void *context, *kernel, *streams[4], *event;
static uint64_t memory;
static void *array;
static struct cards *cards;
static int called;
static char host[4096];

static int64_t now(void) { return monotonic_ns(); }

static void nap(int64_t microseconds) {
    nanosleep(&(struct timespec){microseconds / 1000000, microseconds % 1000000 * 1000}, NULL);
}

static call find(const char *name, int stream) {
    void *function = NULL;
    int status = 0;
    if (get_proc_address(name, &function, 13000, (uint64_t)(stream == OWN ? 2 : 0), &status) != 0 || function == NULL) {
        fprintf(stderr, "mix: %s: not found\n", name);
        exit(1);
    }
    return (call)function;
}

static void good(const char *name, int code) {
    if (code != 0) {
        fprintf(stderr, "mix: %s: CUDA error %d\n", name, code);
        exit(1);
    }
}

#define CALL(name, ...) good(#name, find(#name, 0)(__VA_ARGS__))

static int64_t progress(bool of_target) {
    int64_t found = 0;
    struct card *card = &cards->cards[0];
    lock_card(card);
    advance_card(card, now());
    for (int i = 0; i < card->highest; i++)
        if (card->tenants[i].pid == getpid()) found = of_target ? card->tenants[i].target : card->tenants[i].progress;
    unlock_card(card);
    return found;
}

static void callback(void *stream, int result, void *data) {
    (void)stream, (void)result, (void)data;
    __atomic_fetch_add(&called, 1, __ATOMIC_SEQ_CST);
}

static void host_function(void *data) { callback(NULL, 0, data); }

static void wait_called(int before) {
    while (__atomic_load_n(&called, __ATOMIC_SEQ_CST) == before) nap(POLL);
}

static void copy(const char *name, int number) {
    static size_t flat[16], solid[25]; // width and height; those and depth
    flat[14] = flat[15] = solid[22] = solid[23] = solid[24] = 4;
    void *stream = number == OWN ? NULL : streams[number];
    call function = find(name, number);
    bool last_is_stream = strstr(name, "Async") != NULL;
#define COPY(...) good(name, last_is_stream ? function(__VA_ARGS__, stream) : function(__VA_ARGS__))
    const char *what = name + strlen("cuMemcpy");
    if (strncmp(what, "2D", 2) == 0) COPY(flat);
    else if (strncmp(what, "3D", 2) == 0) COPY(solid);
    else if (strncmp(what, "Peer", 4) == 0) COPY(memory, context, memory, context, (size_t)16);
    else if (strncmp(what, "AtoA", 4) == 0) COPY(array, (size_t)0, array, (size_t)0, (size_t)16);
    else if (strncmp(what, "HtoA", 4) == 0 || strncmp(what, "DtoA", 4) == 0) COPY(array, (size_t)0, host, (size_t)16);
    else if (strncmp(what, "AtoH", 4) == 0 || strncmp(what, "AtoD", 4) == 0) COPY(host, array, (size_t)0, (size_t)16);
    else if (strncmp(name, "cuMemsetD2D", 11) == 0) COPY(memory, (size_t)512, 7, (size_t)4, (size_t)4);
    else if (strncmp(name, "cuMemset", 8) == 0) COPY(memory, 7, (size_t)16);
    else COPY(memory, host, (size_t)16);
}

static void wait_by(const char *name, int number) {
    void *stream = number == OWN ? NULL : streams[number];
    int before = __atomic_load_n(&called, __ATOMIC_SEQ_CST);
#define CASE(text) else if (strcmp(name, text) == 0)
    if (strncmp(name, "cuMemcpy", 8) == 0 || strncmp(name, "cuMemset", 8) == 0) copy(name, number);
    CASE("look") { // at memory that the last kernel writes: by no function
        for (int64_t end = progress(true); progress(false) < end;) nap(POLL);
    }
    CASE("cuCtxSynchronize") CALL(cuCtxSynchronize, context);
    CASE("cuStreamSynchronize") good(name, find(name, number)(stream));
    CASE("cuStreamQuery") {
        while (find(name, number)(stream) == 600) nap(POLL);
    }
    CASE("cuEventSynchronize") {
        good(name, find("cuEventRecord", number)(event, stream));
        CALL(cuEventSynchronize, event);
    }
    CASE("cuEventQuery") {
        good(name, find("cuEventRecordWithFlags", number)(event, stream, 0));
        while (find(name, 0)(event) == 600) nap(POLL);
    }
    CASE("cuStreamWaitEvent") {
        good(name, find("cuEventRecord", number)(event, stream));
        good(name, find(name, 1)(streams[1], event, 0));
        good(name, find("cuStreamSynchronize", 1)(streams[1]));
    }
    CASE("cuStreamAddCallback") {
        good(name, find(name, number)(stream, callback, NULL, 0));
        wait_called(before);
    }
    CASE("cuLaunchHostFunc") {
        good(name, find(name, number)(stream, host_function, NULL));
        wait_called(before);
    }
    CASE("cuMemFree") {
        uint64_t pointer;
        CALL(cuMemAlloc, &pointer, (size_t)4096);
        CALL(cuMemFree, pointer);
    }
    CASE("cuArrayDestroy") {
        void *other;
        CALL(cuArrayCreate, &other, (uint64_t[]){64, 64, 0x20 | UINT64_C(1) << 32});
        CALL(cuArrayDestroy, other);
    }
    else {
        fprintf(stderr, "mix: wait by %s?\n", name);
        exit(2);
    }
}

static void *make_graph(int64_t length) {
    struct {
        void *function;
        unsigned grid[3], block[3], shared;
        void **parameters, **extra, *kern, *context;
    } node = {kernel, {(unsigned)length, 1, 1}, {1, 1, 1}, 0, NULL, NULL, NULL, NULL};
    void *graph, *made, *executable;
    CALL(cuGraphCreate, &graph, 0);
    CALL(cuGraphAddKernelNode, &made, graph, NULL, (size_t)0, &node);
    CALL(cuGraphInstantiateWithFlags, &executable, graph, (uint64_t)0);
    return executable;
}

static struct step read_step(char *text) {
    struct step step = {0};
    char *second, *third = NULL;
    if ((second = strchr(text, ':')) == NULL) exit(2);
    *second++ = '\0';
    if ((third = strchr(second, ':')) != NULL) *third++ = '\0';
    snprintf(step.word, sizeof step.word, "%s", text);
    snprintf(step.name, sizeof step.name, "%s", second);
    step.length = atoll(second);
    step.stream = third != NULL ? atoi(third) : 0;
    if (strcmp(text, "graph") == 0) step.graph = make_graph(step.length);
    return step;
}

static void take(const struct step *step) {
    void *stream = step->stream == OWN ? NULL : streams[step->stream];
    if (strcmp(step->word, "kernel") == 0)
        good("cuLaunchKernel", find("cuLaunchKernel", step->stream)(kernel, (unsigned)step->length, 1, 1, 1, 1, 1, 0,
                                                                    stream, NULL, NULL));
    else if (strcmp(step->word, "graph") == 0)
        good("cuGraphLaunch", find("cuGraphLaunch", step->stream)(step->graph, stream));
    else if (strcmp(step->word, "copy") == 0) copy(step->name, step->stream);
    else if (strcmp(step->word, "think") == 0) nap(step->length);
    else if (strcmp(step->word, "wait") == 0) wait_by(step->name, step->stream);
    else exit(2);
}

int main(int count, char **words) {
    struct step steps[MOST];
    void *module, *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (count < 3 || count - 2 > MOST || library == NULL) return 2;
    get_proc_address = (call)dlsym(library, "cuGetProcAddress_v2");
    CALL(cuInit, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, 0);
    CALL(cuCtxSetCurrent, context);
    CALL(cuModuleLoadData, &module, ".version 6.0\n.target sm_60\n");
    CALL(cuModuleGetFunction, &kernel, module, "spin");
    CALL(cuStreamCreate, &streams[1], 1);
    CALL(cuStreamCreate, &streams[2], 0);
    CALL(cuEventCreate, &event, 2);
    CALL(cuMemAlloc, &memory, (size_t)65536);
    CALL(cuArrayCreate, &array, (uint64_t[]){64, 64, 0x20 | UINT64_C(1) << 32});
    cards = map_cards(getenv("GPUSIM_FILE"));
    for (int i = 2; i < count; i++) steps[i - 2] = read_step(words[i]);
    const int64_t rounds = atoll(words[1]), began = now(), half = (rounds + 1) / 2;
    int64_t half_at = began, half_done = 0;
    for (int64_t round = 0; round < rounds; round++) {
        if (round == half) {
            half_at = now();
            half_done = progress(false);
        }
        for (int i = 0; i < count - 2; i++) take(&steps[i]);
    }
    CALL(cuCtxSynchronize, context);
    int64_t ended = now(), done = progress(false);
    nap(50000); // for who measures it
    printf("{\"took_ns\": %lld, \"done_ns\": %lld, \"late_took_ns\": %lld, \"late_done_ns\": %lld}\n",
           (long long)(ended - began), (long long)done, (long long)(ended - half_at), (long long)(done - half_done));
    return 0;
}
