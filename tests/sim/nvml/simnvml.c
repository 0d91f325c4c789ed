// SPDX-License-Identifier: Apache-2.0
//
// Simulated NVML: a libnvidia-ml.so.1 that answers from the text file named by GPUSIM_FILE (grammar: topology.py).
// The file is looked at on every call, and again and again while a call waits, so an edit shows at once. A wait for
// events looks seldom: with a driver it costs nothing. Processes that use the simulated CUDA driver on the same file are
// there as if it named them.
// What it does not export, an old driver would not have either.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "card.h"

#define API __attribute__((visibility("default")))

enum { MAX_GPUS = 32, MAX_MIGS = 7, MAX_GIS = 14, MAX_PROFILES = 64, MAX_SWITCHES = 16, MAX_LINKS = 36, MAX_PROCS = 1024, MAX_EVENTS = 1024, MAX_FAULTS = 64 };
enum { MAX_TOKENS = 64, TEXT = 96, POLL_MS = 20, NOTHING = -2, EVENT_POLL_MS = 250, ABSENT = -1, SAMPLE_NS = 100000000 };

typedef enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    RESET_REQUIRED = 16,
    IN_USE = 19,
    INSUFFICIENT_RESOURCES = 23,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999,
} nvmlReturn_t;

// ---------------------------------------------------------------- what the file says

// One list a kind of line makes its struct and the table the parser reads by. Words in POSITION come first, then
// key=value in any order. GPU is the number of a GPU named above.
enum type { WORD, NUMBER, GPU };
enum need { POSITION, REQUIRED, OR_ZERO, OR_ABSENT };
#define SYSTEM(F) F(driver, WORD, REQUIRED) F(wedge, WORD, OR_ZERO) F(cuda, NUMBER, REQUIRED)
#define CARD(F)                                                                                                   \
    F(index, NUMBER, POSITION) F(uuid, WORD, REQUIRED) F(pci, WORD, REQUIRED) F(model, WORD, REQUIRED)            \
    F(mem, NUMBER, REQUIRED) F(cc, WORD, REQUIRED) F(serial, WORD, OR_ZERO) F(cpus, WORD, OR_ZERO)                \
    F(health, WORD, OR_ZERO) F(reserved, NUMBER, OR_ZERO) F(used, NUMBER, OR_ZERO) F(pciid, NUMBER, OR_ZERO)      \
    F(subsys, NUMBER, OR_ZERO) F(minor, NUMBER, OR_ABSENT) F(numa, NUMBER, OR_ABSENT) F(mig, NUMBER, OR_ABSENT)   \
    F(mig_pending, NUMBER, OR_ABSENT) F(mig_reset, NUMBER, OR_ZERO)                                               \
    F(util, NUMBER, OR_ABSENT) F(memutil, NUMBER, OR_ABSENT) F(temp, NUMBER, OR_ABSENT)                           \
    F(power, NUMBER, OR_ABSENT) F(power_limit, NUMBER, OR_ABSENT) F(sm_clock, NUMBER, OR_ABSENT)                  \
    F(mem_clock, NUMBER, OR_ABSENT) F(ecc, NUMBER, OR_ABSENT) F(ecc_corrected, NUMBER, OR_ZERO)                   \
    F(ecc_uncorrected, NUMBER, OR_ZERO) F(remap_corrected, NUMBER, OR_ABSENT)                                     \
    F(remap_uncorrected, NUMBER, OR_ZERO) F(remap_pending, NUMBER, OR_ZERO) F(remap_failed, NUMBER, OR_ZERO)      \
    F(recovery, NUMBER, OR_ABSENT) F(compute_mode, NUMBER, OR_ABSENT) F(persistence, NUMBER, OR_ABSENT)           \
    F(mem_temp, NUMBER, OR_ABSENT) F(energy, NUMBER, OR_ABSENT) F(power_throttle, NUMBER, OR_ABSENT)              \
    F(thermal_throttle, NUMBER, OR_ABSENT) F(gpm, NUMBER, OR_ABSENT) F(unified, NUMBER, OR_ZERO)           \
    F(retire_pending, NUMBER, OR_ABSENT)
#define MIG(F)                                                                                                    \
    F(gpu, GPU, POSITION) F(gi, NUMBER, REQUIRED) F(ci, NUMBER, REQUIRED) F(profile, WORD, REQUIRED)              \
    F(mem, NUMBER, REQUIRED) F(uuid, WORD, REQUIRED) F(sms, NUMBER, OR_ZERO) F(slot, NUMBER, OR_ABSENT)
#define MIGPROFILE(F)                                                                                             \
    F(model, WORD, POSITION) F(id, NUMBER, REQUIRED) F(nvml, NUMBER, REQUIRED) F(name, WORD, REQUIRED)            \
    F(slices, NUMBER, REQUIRED) F(size, NUMBER, REQUIRED) F(starts, WORD, REQUIRED) F(count, NUMBER, REQUIRED)    \
    F(mem, NUMBER, REQUIRED) F(sms, NUMBER, REQUIRED)
#define GI(F)                                                                                                     \
    F(gpu, GPU, POSITION) F(id, NUMBER, REQUIRED) F(profile, NUMBER, REQUIRED) F(start, NUMBER, REQUIRED)
#define NVSWITCH(F)                                                                                               \
    F(index, NUMBER, POSITION) F(pci, WORD, REQUIRED) F(pciid, NUMBER, OR_ZERO) F(numa, NUMBER, OR_ABSENT)
#define PROC(F)                                                                                                   \
    F(gpu, GPU, POSITION) F(pid, NUMBER, REQUIRED) F(mem, NUMBER, OR_ZERO) F(sm, NUMBER, OR_ZERO)                 \
    F(memutil, NUMBER, OR_ZERO) F(type, WORD, OR_ZERO) F(gi, NUMBER, OR_ABSENT) F(ci, NUMBER, OR_ABSENT)
#define EVENT(F) F(gpu, GPU, POSITION) F(xid, NUMBER, REQUIRED) F(seq, NUMBER, REQUIRED)
#define FAULT(F) F(gpu, NUMBER, POSITION) F(call, WORD, REQUIRED) F(answer, WORD, REQUIRED)
#define LINK(F) F(first, GPU, POSITION) F(second, GPU, POSITION) F(nvlink, NUMBER, REQUIRED)
#define SWITCH(F) F(gpu, GPU, POSITION) F(links, NUMBER, POSITION)
#define TOPO(F) F(first, GPU, POSITION) F(second, GPU, POSITION) F(ancestor, WORD, POSITION)

#define FIELD(name, type, need) FIELD_##type(name)
#define FIELD_WORD(name) char name[TEXT];
#define FIELD_NUMBER(name) int64_t name;
#define FIELD_GPU(name) int64_t name;
struct system { SYSTEM(FIELD) };
struct mig { MIG(FIELD) bool present; };
struct migprofile { MIGPROFILE(FIELD) };
struct gi { GI(FIELD) bool present; };
struct gpu {
    CARD(FIELD)
    int64_t switch_links, nvlinks[MAX_GPUS];
    int ancestors[MAX_GPUS];
    struct mig migs[MAX_MIGS];
    struct gi gis[MAX_GIS];  // by id
};
struct nvswitch { NVSWITCH(FIELD) };
struct proc { PROC(FIELD) };
struct event { EVENT(FIELD) };
struct fault { FAULT(FIELD) };
struct link { LINK(FIELD) };
struct switch_links { SWITCH(FIELD) };
struct topo { TOPO(FIELD) };

struct state {
    struct system systems[1];
    struct gpu gpus[MAX_GPUS];
    struct nvswitch nvswitches[MAX_SWITCHES];
    struct migprofile migprofiles[MAX_PROFILES];
    struct proc procs[MAX_PROCS];
    struct event events[MAX_EVENTS];
    struct fault faults[MAX_FAULTS];
    int fault_count, system_count, gpu_count, nvswitch_count, migprofile_count, proc_count, event_count;
    int visible[MAX_GPUS];
    int visible_count;
};

static const struct {
    const char *name;
    int level;
} ancestor_names[] = {{"PIX", 10}, {"PXB", 20}, {"PHB", 30}, {"NODE", 40}, {"SYS", 50}};
enum { ANCESTOR_HOST_BRIDGE = 30, ANCESTOR_NODE = 40, ANCESTOR_SYSTEM = 50 };

// ---------------------------------------------------------------- reading it

struct line {
    const char *path;
    int number;
    int count;
    char *tokens[MAX_TOKENS];
};

__attribute__((format(printf, 3, 4)))
static bool reject(const struct line *line, const char *token, const char *why, ...) {
    char reason[256];
    va_list args;
    va_start(args, why);
    vsnprintf(reason, sizeof reason, why, args);
    va_end(args);
    fprintf(stderr, "simnvml: %s:%d: \"%s\": %s\n", line->path, line->number, token, reason);
    return false;
}

// Cuts the line into blank-separated tokens in place; a '#' where a token would start ends it, "..." keeps blanks.
static bool tokenize(char *text, struct line *line) {
    static const char blanks[] = " \t";
    line->count = 0;
    for (char *in = text + strspn(text, blanks); *in != '\0' && *in != '#'; in += strspn(in, blanks)) {
        if (line->count == MAX_TOKENS)
            return reject(line, in, "more than %d tokens on a line", MAX_TOKENS);
        char *out = line->tokens[line->count++] = in;
        bool quoted = false;
        for (; *in != '\0' && (quoted || strchr(blanks, *in) == NULL); in++) {
            if (*in == '"')
                quoted = !quoted;
            else
                *out++ = *in;
        }
        in += *in != '\0';
        *out = '\0';
        if (quoted)
            return reject(line, line->tokens[line->count - 1], "a quote is not closed");
    }
    return true;
}

static bool parse_number(const char *text, int64_t *value) {
    char *end;
    errno = 0;
    *value = strtoll(text, &end, 0);
    if (end == text || errno != 0)
        return false;
    int shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    end += shift != 0;
    return *end == '\0' && !__builtin_mul_overflow(*value, INT64_C(1) << shift, value);
}

static bool parse_pci(const char *text, unsigned *domain, unsigned *bus, unsigned *device) {
    int used = 0;
    return sscanf(text, "%8x:%2x:%2x.0%n", domain, bus, device, &used) == 3 && used > 0 && text[used] == '\0';
}

struct key {
    const char *name;
    size_t offset;
    enum type type;
    enum need need;
};
#define KEY(name, type, need) {#name, offsetof(record_t, name), type, need},
#define KEYS(record, LIST)                                    \
    static const struct key *record##_keys(void) {            \
        typedef struct record record_t;                       \
        static const struct key keys[] = {LIST(KEY) {0}};     \
        return keys;                                          \
    }
KEYS(system, SYSTEM)
KEYS(gpu, CARD)
KEYS(migprofile, MIGPROFILE)
KEYS(gi, GI)
KEYS(mig, MIG)
KEYS(nvswitch, NVSWITCH)
KEYS(proc, PROC)
KEYS(event, EVENT)
KEYS(fault, FAULT)
KEYS(link, LINK)
KEYS(switch_links, SWITCH)
KEYS(topo, TOPO)

static bool parse_value(const struct line *line, const struct state *state, const struct key *key, const char *token,
                        const char *text, void *record) {
    void *field = (char *)record + key->offset;
    int64_t number;
    if (key->type == WORD) {
        if (strlen(text) >= TEXT)
            return reject(line, token, "longer than %d characters", TEXT - 1);
        strcpy(field, text);
        return true;
    }
    if (!parse_number(text, &number) || number < ABSENT)
        return reject(line, token, "%s is not a number (decimal or 0x..., with K, M or G for a size)", key->name);
    if (key->type == GPU && (number < 0 || number >= state->gpu_count))
        return reject(line, token, "not the index of a GPU named above");
    memcpy(field, &number, sizeof number);
    return true;
}

static bool parse_record(const struct line *line, const struct state *state, const struct key *keys, void *record) {
    uint64_t found = 0;
    int at = 1;
    const int64_t absent = ABSENT;
    for (const struct key *key = keys; key->name != NULL; key++) {
        if (key->need == OR_ABSENT)
            memcpy((char *)record + key->offset, &absent, sizeof absent);
        if (key->need != POSITION)
            continue;
        if (at == line->count)
            return reject(line, line->tokens[0], "%s is missing", key->name);
        if (!parse_value(line, state, key, line->tokens[at], line->tokens[at], record))
            return false;
        at++;
    }
    for (; at < line->count; at++) {
        const char *token = line->tokens[at];
        size_t length = strcspn(token, "=");
        const struct key *key = keys;
        while (key->name != NULL && (key->need == POSITION || strlen(key->name) != length ||
                                     strncmp(key->name, token, length) != 0))
            key++;
        if (token[length] != '=' || key->name == NULL)
            return reject(line, token, "not a key=value a %s line has", line->tokens[0]);
        if (!parse_value(line, state, key, token, token + length + 1, record))
            return false;
        found |= UINT64_C(1) << (key - keys);
    }
    for (const struct key *key = keys; key->name != NULL; key++)
        if (key->need == REQUIRED && (found >> (key - keys) & 1) == 0)
            return reject(line, line->tokens[0], "%s= is missing", key->name);
    return true;
}

static bool check_system(struct state *state, const struct line *line, void *record) {
    const struct system *system = record;
    const char *wedge = system->wedge;
    (void)state;
    return *wedge == '\0' || strcmp(wedge, "all") == 0 || strncmp(wedge, "nvml", 4) == 0 ||
           reject(line, wedge, "wedge= wants the name of an NVML function, or all");
}

static bool check_fault(struct state *state, const struct line *line, void *record) {
    const struct fault *fault = record;
    int64_t ignored;
    if (fault->gpu >= state->gpu_count)
        return reject(line, line->tokens[1], "not the index of a GPU named above, nor -1 for all and none");
    if (strncmp(fault->call, "nvml", 4) != 0)
        return reject(line, fault->call, "call= wants the name of an NVML function");
    return parse_number(fault->answer, &ignored) || strcmp(fault->answer, "nothing") == 0 ||
           strcmp(fault->answer, "garbage") == 0 || strcmp(fault->answer, "hang") == 0 ||
           reject(line, fault->answer, "answer= wants a number of nvmlReturn_t, nothing, garbage or hang");
}

static bool check_gpu(struct state *state, const struct line *line, void *record) {
    struct gpu *gpu = record;
    unsigned ignored;
    if (gpu->index != state->gpu_count)
        return reject(line, line->tokens[1], "GPUs are numbered in order: %d comes next", state->gpu_count);
    if (gpu->minor == ABSENT)
        gpu->minor = gpu->index;
    if (gpu->health[0] == '\0')
        strcpy(gpu->health, "ok");
    if (strcmp(gpu->health, "ok") != 0 && strcmp(gpu->health, "lost") != 0)
        return reject(line, gpu->health, "health= wants ok or lost");
    if (!parse_pci(gpu->pci, &ignored, &ignored, &ignored))
        return reject(line, gpu->pci, "pci= wants an address like 0000:1a:00.0");
    if (sscanf(gpu->cc, "%u.%u", &ignored, &ignored) != 2)
        return reject(line, gpu->cc, "cc= wants a compute capability like 9.0");
    for (int i = 0; i < state->gpu_count; i++)
        if (strcmp(state->gpus[i].uuid, gpu->uuid) == 0)
            return reject(line, gpu->uuid, "GPU %d has the same uuid", i);
    return true;
}

// The profile of this number a card has, NULL for none.
static const struct migprofile *find_profile(const struct state *state, const struct gpu *gpu, int64_t id) {
    for (int i = 0; i < state->migprofile_count; i++)
        if (state->migprofiles[i].id == id && strcmp(state->migprofiles[i].model, gpu->model) == 0)
            return &state->migprofiles[i];
    return NULL;
}

static bool check_gi(struct state *state, const struct line *line, void *record) {
    struct gi *gi = record;
    struct gpu *gpu = &state->gpus[gi->gpu];
    if (gpu->mig != 1)
        return reject(line, line->tokens[1], "this GPU does not have mig=1");
    if (find_profile(state, gpu, gi->profile) == NULL)
        return reject(line, line->tokens[0], "no migprofile line above gives this model the profile");
    if (gi->id < 0 || gi->id >= MAX_GIS || gpu->gis[gi->id].present)
        return reject(line, line->tokens[0], "id= is taken, or not one of 0 to %d", MAX_GIS - 1);
    gi->present = true;
    gpu->gis[gi->id] = *gi;
    return true;
}

// Without slot= a MIG device takes the first free one; a slot left free is a hole in the enumeration.
static bool check_mig(struct state *state, const struct line *line, void *record) {
    struct mig *mig = record;
    struct gpu *gpu = &state->gpus[mig->gpu];
    if (gpu->mig != 1)
        return reject(line, line->tokens[1], "this GPU does not have mig=1");
    if (mig->gi < 0 || mig->gi >= MAX_GIS || !gpu->gis[mig->gi].present || mig->ci != 0)
        return reject(line, line->tokens[1], "no gi line above has this gi=, or ci= is not 0");
    if (mig->slot == ABSENT)
        for (mig->slot = 0; mig->slot < MAX_MIGS && gpu->migs[mig->slot].present;)
            mig->slot++;
    if (mig->slot < 0 || mig->slot >= MAX_MIGS || gpu->migs[mig->slot].present)
        return reject(line, line->tokens[1], "the slot is taken, or not one of the GPU's %d", MAX_MIGS);
    mig->present = true;
    gpu->migs[mig->slot] = *mig;
    return true;
}

static bool check_nvswitch(struct state *state, const struct line *line, void *record) {
    struct nvswitch *nvswitch = record;
    unsigned ignored;
    if (nvswitch->index != state->nvswitch_count)
        return reject(line, line->tokens[1], "NVSwitches are numbered in order: %d comes next", state->nvswitch_count);
    return parse_pci(nvswitch->pci, &ignored, &ignored, &ignored) ||
           reject(line, nvswitch->pci, "pci= wants an address like 0000:05:00.0");
}

static bool check_proc(struct state *state, const struct line *line, void *record) {
    static const char *const types[] = {"C", "G", "C+G", "M", "M+C", "-"};
    struct proc *proc = record;
    (void)state;
    if (proc->type[0] == '\0')
        strcpy(proc->type, "C");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(proc->type, types[i]) == 0)
            return true;
    return reject(line, proc->type, "type= wants C, G, C+G, M, M+C or -");
}

static bool check_link(struct state *state, const struct line *line, void *record) {
    const struct link *link = record;
    if (link->first == link->second)
        return reject(line, line->tokens[2], "a GPU has no link to itself");
    if (link->nvlink < 1 || link->nvlink > MAX_LINKS)
        return reject(line, line->tokens[3], "nvlink= wants 1 to %d", MAX_LINKS);
    state->gpus[link->first].nvlinks[link->second] = state->gpus[link->second].nvlinks[link->first] = link->nvlink;
    return true;
}

static bool check_switch(struct state *state, const struct line *line, void *record) {
    const struct switch_links *links = record;
    if (links->links < 0 || links->links > MAX_LINKS)
        return reject(line, line->tokens[2], "a GPU has 0 to %d links", MAX_LINKS);
    state->gpus[links->gpu].switch_links = links->links;
    return true;
}

static bool check_topo(struct state *state, const struct line *line, void *record) {
    const struct topo *topo = record;
    for (size_t i = 0; i < sizeof ancestor_names / sizeof *ancestor_names; i++) {
        if (strcmp(topo->ancestor, ancestor_names[i].name) != 0)
            continue;
        state->gpus[topo->first].ancestors[topo->second] = ancestor_names[i].level;
        state->gpus[topo->second].ancestors[topo->first] = ancestor_names[i].level;
        return true;
    }
    return reject(line, topo->ancestor, "an ancestor is PIX, PXB, PHB, NODE or SYS");
}

// check completes a record, says what is wrong with it, or puts it where it belongs; the rest is kept in an array.
static const struct kind {
    const char *name;
    const struct key *(*keys)(void);
    bool (*check)(struct state *, const struct line *, void *);
    size_t size, array, count;
    int limit;
} kinds[] = {
#define KEPT(record, array) sizeof(struct record), offsetof(struct state, array), offsetof(struct state, record##_count)
    {"system", system_keys, check_system, KEPT(system, systems), 1},
    {"gpu", gpu_keys, check_gpu, KEPT(gpu, gpus), MAX_GPUS},
    {"nvswitch", nvswitch_keys, check_nvswitch, KEPT(nvswitch, nvswitches), MAX_SWITCHES},
    {"proc", proc_keys, check_proc, KEPT(proc, procs), MAX_PROCS},
    {"event", event_keys, NULL, KEPT(event, events), MAX_EVENTS},
    {"fault", fault_keys, check_fault, KEPT(fault, faults), MAX_FAULTS},
    {"migprofile", migprofile_keys, NULL, KEPT(migprofile, migprofiles), MAX_PROFILES},
    {"gi", gi_keys, check_gi, 0, 0, 0, 0},
    {"mig", mig_keys, check_mig, 0, 0, 0, 0},
    {"link", link_keys, check_link, 0, 0, 0, 0},
    {"switch", switch_links_keys, check_switch, 0, 0, 0, 0},
    {"topo", topo_keys, check_topo, 0, 0, 0, 0},
};

static bool parse_line(struct state *state, const struct line *line) {
    const struct kind *kind = kinds;
    const struct kind *end = kinds + sizeof kinds / sizeof *kinds;
    while (kind < end && strcmp(kind->name, line->tokens[0]) != 0)
        kind++;
    if (kind == end)
        return reject(line, line->tokens[0], "not system, gpu, nvswitch, proc, event, fault, migprofile, gi, mig, link, switch or topo");
    union {
        struct system system;
        struct gpu gpu;
        struct nvswitch nvswitch;
        struct proc proc;
        struct event event;
        struct fault fault;
        struct migprofile migprofile;
        struct gi gi;
        struct mig mig;
        struct link link;
        struct switch_links switch_links;
        struct topo topo;
    } record;
    memset(&record, 0, sizeof record);
    int *count = (int *)((char *)state + kind->count);
    if (kind->limit > 0 && *count == kind->limit)
        return reject(line, line->tokens[0], "more than %d of these", kind->limit);
    if (!parse_record(line, state, kind->keys(), &record))
        return false;
    if (kind->check != NULL && !kind->check(state, line, &record))
        return false;
    if (kind->limit > 0)
        memcpy((char *)state + kind->array + (size_t)(*count)++ * kind->size, &record, kind->size);
    return true;
}

// Which GPUs this process sees, and in which order: those of GPUSIM_VISIBLE, or all.
static bool choose_visible(struct state *state) {
    const char *wanted = getenv("GPUSIM_VISIBLE");
    if (wanted == NULL) {
        for (int i = 0; i < state->gpu_count; i++)
            state->visible[state->visible_count++] = i;
        return true;
    }
    while (*wanted != '\0') {
        size_t length = strcspn(wanted, ",");
        int gpu = 0;
        while (gpu < state->gpu_count &&
               (strlen(state->gpus[gpu].uuid) != length || strncmp(state->gpus[gpu].uuid, wanted, length) != 0))
            gpu++;
        bool usable = gpu < state->gpu_count;
        for (int i = 0; i < state->visible_count; i++)
            usable &= state->visible[i] != gpu;
        if (!usable) {
            fprintf(stderr, "simnvml: GPUSIM_VISIBLE: \"%.*s\": no GPU has this uuid, or it is named twice\n",
                    (int)length, wanted);
            return false;
        }
        state->visible[state->visible_count++] = gpu;
        wanted += length + (wanted[length] == ',');
    }
    return true;
}

static struct state *read_state(const char *path, FILE *file) {
    struct state *state = calloc(1, sizeof *state);
    struct line line = {.path = path};
    char *text = NULL;
    size_t size = 0;
    bool good = state != NULL;
    while (good && getline(&text, &size, file) >= 0) {
        line.number++;
        text[strcspn(text, "\r\n")] = '\0';
        good = tokenize(text, &line) && (line.count == 0 || parse_line(state, &line));
    }
    if (good && ferror(file)) {
        fprintf(stderr, "simnvml: %s: %s\n", path, strerror(errno));
        good = false;
    }
    if (good && state->system_count == 0)
        good = reject(&line, "system", "no line says system driver=<version or none> cuda=<13000>");
    free(text);
    if (good && choose_visible(state))
        return state;
    free(state);
    return NULL;
}

// ---------------------------------------------------------------- the library's own state

struct event_set {
    struct event_set *next;
    bool registered[MAX_GPUS];
    uint64_t types[MAX_GPUS];
    int64_t delivered[MAX_GPUS];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  // guards everything below
static unsigned users;
static struct state *state;
static struct stat seen;      // the file as it was when last read
static int written_procs;  // how many processes the file names
static bool current;  // state is what the file says now; otherwise the last that could be read
static struct event_set *event_sets;

// A handle is the address of its cell: [gpu][0] is the GPU itself, [gpu][1 + slot] a MIG device.
static const char handles[MAX_GPUS][1 + MAX_MIGS];
typedef const char *nvmlDevice_t;
typedef struct event_set *nvmlEventSet_t;

static void sleep_ms(int64_t ms) {
    struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

static int64_t clock_us(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * INT64_C(1000000) + now.tv_nsec / 1000;
}

static bool same_file(const struct stat *a, const struct stat *b) {
    return a->st_ino == b->st_ino && a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

enum { SAMPLE_US = 100000, KEPT_SAMPLES = 120 };  // the driver samples; asked twice within a sample it has nothing new

static unsigned long long newest_sample(void) {
    unsigned long long stamp = (unsigned long long)clock_us(CLOCK_REALTIME);
    return stamp - stamp % SAMPLE_US;
}

// Percent by sample, of the last ones; `until` is the stamp of the last, `rest` the nanoseconds that are in none yet.
struct load {
    unsigned long long until;
    int64_t rest;
    unsigned char percent[KEPT_SAMPLES];
};

static unsigned char *load_at(struct load *load, unsigned long long stamp) {
    return &load->percent[stamp / SAMPLE_US % KEPT_SAMPLES];
}

// Nobody was looking since `until`: each of the samples up to `stamp` gets an equal part of the nanoseconds since.
static void add_load(struct load *load, unsigned long long stamp, int64_t busy_ns) {
    const int64_t count = stamp > load->until ? (int64_t)((stamp - load->until) / SAMPLE_US) : 0;
    load->rest += busy_ns;
    int64_t percent = count == 0 ? 0 : load->rest / (count * SAMPLE_NS / 100);
    percent = percent > 100 ? 100 : percent;
    load->rest -= percent * (count * SAMPLE_NS / 100);
    unsigned long long oldest = stamp - (KEPT_SAMPLES - 1) * SAMPLE_US;
    for (unsigned long long at = load->until < oldest ? oldest : load->until + SAMPLE_US; at <= stamp; at += SAMPLE_US)
        *load_at(load, at) = (unsigned char)percent;
    load->until = stamp;
}

// The load of a sample: of one that nobody has looked at yet, as of the last.
static int64_t load_of(struct load *load, unsigned long long stamp) {
    return load->until == 0 ? 0 : *load_at(load, stamp > load->until ? load->until : stamp);
}

static int64_t load_since(struct load *load, unsigned long long since) {
    unsigned long long oldest = load->until < KEPT_SAMPLES * SAMPLE_US ? 0 : load->until - KEPT_SAMPLES * SAMPLE_US;
    int64_t sum = 0, count = 0;
    for (unsigned long long at = load->until; at > (since > oldest ? since : oldest); at -= SAMPLE_US, count++)
        sum += *load_at(load, at);
    return count == 0 ? 0 : (sum + count - 1) / count;
}

// What processes of the simulated CUDA driver did on a GPU, as far as it was looked at.
static struct watched {
    int64_t looked_at;  // CLOCK_MONOTONIC; 0: never
    struct load load;
    struct watched_tenant {
        int64_t pid, progress;
        struct load load;
    } tenants[TENANTS];
} watched[CARDS];

// A card's processes get on while none of them looks: what each has of the GPU's time by now.
static void progress_by(const struct card *card, int64_t now, int64_t progress[TENANTS]) {
    int64_t left[TENANTS], at = card->now;
    int busy = 0;
    for (int i = 0; i < card->highest; i++) {
        const struct tenant *tenant = &card->tenants[i];
        progress[i] = tenant->progress;
        left[i] = tenant->target > tenant->progress && tenant_lives(tenant) ? tenant->target - tenant->progress : 0;
        busy += left[i] > 0;
    }
    while (busy > 0 && now - at >= busy) {
        int64_t gain = (now - at) / busy;
        for (int i = 0; i < card->highest; i++)
            gain = left[i] > 0 && left[i] < gain ? left[i] : gain;
        at += gain * busy;
        busy = 0;
        for (int i = 0; i < card->highest; i++)
            if (left[i] > 0) {
                progress[i] += gain;
                busy += (left[i] -= gain) > 0;
            }
    }
}

static void watch_card(const struct card *card, struct watched *seen) {
    int64_t now = clock_us(CLOCK_MONOTONIC) * 1000, sum = 0;
    const unsigned long long stamp = newest_sample();
    if (now - seen->looked_at < SAMPLE_NS || stamp == seen->load.until)
        return;
    int64_t progress[TENANTS];
    progress_by(card, now, progress);
    for (int i = 0; i < card->highest; i++) {
        struct watched_tenant *tenant = &seen->tenants[i];
        const int64_t pid = card->tenants[i].pid;
        if (tenant->pid != pid)
            *tenant = (struct watched_tenant){.pid = pid, .progress = seen->looked_at == 0 ? progress[i] : 0};
        if (seen->looked_at != 0 && pid != 0 && progress[i] >= tenant->progress) {
            const int64_t gain = progress[i] - tenant->progress;
            sum += gain;
            if (tenant->load.until == 0)
                tenant->load.until = seen->load.until;
            add_load(&tenant->load, stamp, gain);
        }
        tenant->progress = progress[i];
    }
    if (seen->looked_at != 0)
        add_load(&seen->load, stamp, sum);
    else
        seen->load.until = stamp;
    seen->looked_at = now;
}

// Adds the living processes of the simulated CUDA driver to those of the file.
static void add_cuda_processes(void) {
    char path[4096];
    state->proc_count = written_procs;
    snprintf(path, sizeof path, "%s" CARD_FILE_SUFFIX, getenv("GPUSIM_FILE"));
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    const struct cards *cards = mmap(NULL, sizeof *cards, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (cards == MAP_FAILED)
        return;
    for (int gpu = 0; gpu < state->gpu_count && gpu < CARDS && cards->layout == CARD_LAYOUT; gpu++) {
        watch_card(&cards->cards[gpu], &watched[gpu]);
        for (int i = 0; i < cards->cards[gpu].highest && state->proc_count < MAX_PROCS; i++) {
            const struct tenant *tenant = &cards->cards[gpu].tenants[i];
            if (tenant_lives(tenant))
                state->procs[state->proc_count++] = (struct proc){.gpu = gpu, .pid = tenant->pid, .mem = tenant->used,
                                                                  .type = "C", .gi = ABSENT, .ci = ABSENT};
        }
    }
    munmap((void *)cards, sizeof *cards);
}

// Reads the file again if it changed. One that cannot be read is reported once and the last good state kept.
static void read_again(void) {
    const char *path = getenv("GPUSIM_FILE");
    struct stat now = {0};
    if (path != NULL && stat(path, &now) != 0)
        now = (struct stat){0};
    if (same_file(&now, &seen))
        return;
    seen = now;
    current = false;
    FILE *file = path != NULL ? fopen(path, "re") : NULL;
    if (file == NULL) {
        fprintf(stderr, "simnvml: GPUSIM_FILE=%s: %s\n", path != NULL ? path : "",
                path != NULL ? strerror(errno) : "not set; it names the topology file");
        return;
    }
    fstat(fileno(file), &seen);
    struct state *fresh = read_state(path, file);
    fclose(file);
    if (fresh != NULL) {
        free(state);
        state = fresh;
        written_procs = fresh->proc_count;
        current = true;
    }
}

static void refresh(void) {
    read_again();
    if (current)
        add_cuda_processes();
}

// Whether a word of the file is the name of this call, with or without _v2, _v3.
static bool names(const char *word, const char *call) {
    size_t length = strlen(word);
    return strncmp(call, word, length) == 0 && (call[length] == '\0' || strncmp(call + length, "_v", 2) == 0);
}

static bool wedged(const char *call) {
    if (state == NULL || state->systems[0].wedge[0] == '\0')
        return false;
    return strcmp(state->systems[0].wedge, "all") == 0 || names(state->systems[0].wedge, call);
}

// Takes the lock and returns once no wedge holds this call; the lock is free while it waits.
static void lock_unwedged(const char *call) {
    pthread_mutex_lock(&lock);
    refresh();
    while (wedged(call)) {
        pthread_mutex_unlock(&lock);
        sleep_ms(POLL_MS);
        pthread_mutex_lock(&lock);
        refresh();
    }
}

// One API call: holds the lock, until the end of its scope, exactly when error is SUCCESS.
struct call {
    nvmlReturn_t error;
    struct gpu *gpu;
    struct mig *mig;
    int index;
    int directory;  // held against others who edit the file, or -1
};

// Whether this call answers nonsense with success.
static _Thread_local bool garbage;

// What the file has this call about a GPU answer instead of the truth: SUCCESS for the truth or garbage, NOTHING for
// success without an answer. The caller holds the lock; it is free while the call hangs.
static nvmlReturn_t faulty(const char *name, int64_t gpu) {
    garbage = false;
    for (int i = 0; i < state->fault_count; i++) {
        const struct fault *fault = &state->faults[i];
        int64_t code;
        if (fault->gpu != gpu || !names(fault->call, name))
            continue;
        if (parse_number(fault->answer, &code))
            return (nvmlReturn_t)code;
        if (strcmp(fault->answer, "nothing") == 0)
            return (nvmlReturn_t)NOTHING;
        if (strcmp(fault->answer, "garbage") == 0) {
            garbage = true;
            return SUCCESS;
        }
        pthread_mutex_unlock(&lock);
        sleep_ms(POLL_MS);
        pthread_mutex_lock(&lock);
        refresh();
        i = -1;
    }
    return SUCCESS;
}

static struct call enter(const char *name) {
    pthread_mutex_lock(&lock);
    bool ready = users > 0;
    pthread_mutex_unlock(&lock);
    if (!ready)
        return (struct call){.error = UNINITIALIZED, .directory = -1};
    lock_unwedged(name);
    struct call call = {.error = SUCCESS, .directory = -1};
    if (users == 0)
        call.error = UNINITIALIZED;
    else if (strcmp(state->systems[0].driver, "none") == 0)
        call.error = DRIVER_NOT_LOADED;
    else
        call.error = faulty(name, ABSENT);
    if (call.error != SUCCESS)
        pthread_mutex_unlock(&lock);
    return call;
}

// Finds what a handle stands for; the caller holds the lock.
static nvmlReturn_t resolve(nvmlDevice_t device, struct call *call) {
    uintptr_t offset = (uintptr_t)device - (uintptr_t)handles;
    if (offset >= sizeof handles)
        return INVALID_ARGUMENT;
    call->index = (int)(offset / sizeof *handles);
    size_t cell = offset % sizeof *handles;
    if (call->index >= state->gpu_count)
        return GPU_IS_LOST;
    call->gpu = &state->gpus[call->index];
    if (strcmp(call->gpu->health, "lost") == 0)
        return GPU_IS_LOST;
    call->mig = cell > 0 ? &call->gpu->migs[cell - 1] : NULL;
    return call->mig != NULL && !call->mig->present ? NOT_FOUND : SUCCESS;
}

static struct call enter_device(const char *name, nvmlDevice_t device) {
    struct call call = enter(name);
    if (call.error != SUCCESS)
        return call;
    call.error = resolve(device, &call);
    if (call.error == SUCCESS && !garbage)
        call.error = faulty(name, call.index);
    if (call.error == SUCCESS)
        call.error = resolve(device, &call);  // the file may be another one after a hang
    if (call.error != SUCCESS)
        pthread_mutex_unlock(&lock);
    return call;
}

// An entry that only a whole GPU answers.
static struct call enter_gpu(const char *name, nvmlDevice_t device) {
    struct call call = enter_device(name, device);
    if (call.error == SUCCESS && call.mig != NULL) {
        call.error = NOT_SUPPORTED;
        pthread_mutex_unlock(&lock);
    }
    return call;
}

static void leave(const struct call *call) {
    if (call->directory >= 0)
        close(call->directory);
    if (call->error == SUCCESS)
        pthread_mutex_unlock(&lock);
}

#define CALL(entry, ...)                                                     \
    __attribute__((cleanup(leave))) struct call call = entry(__VA_ARGS__);   \
    if (call.error != SUCCESS)                                               \
        return call.error == (nvmlReturn_t)NOTHING ? SUCCESS : call.error
#define NEED(pointer)                \
    if ((pointer) == NULL)           \
        return INVALID_ARGUMENT

static nvmlReturn_t copy_text(char *buffer, unsigned length, const char *text) {
    NEED(buffer);
    if (garbage)
        text = "\xff\xfe\xff";
    if (strlen(text) >= length)
        return INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return SUCCESS;
}

static nvmlReturn_t give_number(unsigned *out, int64_t value) {
    NEED(out);
    if (value == ABSENT)
        return NOT_SUPPORTED;
    *out = garbage ? UINT32_MAX : (unsigned)value;
    return SUCCESS;
}

// ---------------------------------------------------------------- library and system

API nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    memset(&seen, 0xff, sizeof seen);  // an old complaint is worth repeating to whoever starts now
    pthread_mutex_unlock(&lock);
    lock_unwedged(__func__);
    bool loaded = current && strcmp(state->systems[0].driver, "none") != 0;
    nvmlReturn_t result = loaded ? SUCCESS : current ? DRIVER_NOT_LOADED : UNKNOWN;
    users += result == SUCCESS;
    pthread_mutex_unlock(&lock);
    return result;
}

API nvmlReturn_t nvmlInit_v2(void) {
    return nvmlInitWithFlags(0);
}

API nvmlReturn_t nvmlInit(void) {
    return nvmlInitWithFlags(0);
}

API nvmlReturn_t nvmlShutdown(void) {
    CALL(enter, __func__);
    users--;
    return SUCCESS;
}

API const char *nvmlErrorString(nvmlReturn_t result) {
    switch (result) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case GPU_IS_LOST: return "GPU is lost";
    case RESET_REQUIRED: return "GPU requires reset";
    case IN_USE: return "In use by another client";
    case INSUFFICIENT_RESOURCES: return "Insufficient Resources";
    case ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
    default: return "Unknown Error";
    }
}

API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length) {
    CALL(enter, __func__);
    return copy_text(version, length, state->systems[0].driver);
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    CALL(enter, __func__);
    NEED(version);
    *version = (int)state->systems[0].cuda;
    return SUCCESS;
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

// ---------------------------------------------------------------- enumeration and identity

// A visible GPU's handle, or why there is none; the caller holds the lock.
static nvmlReturn_t give_handle(const char *name, int gpu, nvmlDevice_t *device) {
    if (strcmp(state->gpus[gpu].health, "lost") == 0)
        return GPU_IS_LOST;
    nvmlReturn_t fault = faulty(name, gpu);
    if (fault != SUCCESS)
        return fault == (nvmlReturn_t)NOTHING ? SUCCESS : fault;
    *device = &handles[gpu][0];
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
    CALL(enter, __func__);
    return give_number(count, state->visible_count);
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    CALL(enter, __func__);
    NEED(device);
    if (index >= (unsigned)state->visible_count)
        return INVALID_ARGUMENT;
    return give_handle(__func__, state->visible[index], device);
}

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    CALL(enter, __func__);
    NEED(uuid);
    NEED(device);
    for (int i = 0; i < state->visible_count; i++) {
        int gpu = state->visible[i];
        if (strcmp(state->gpus[gpu].uuid, uuid) == 0)
            return give_handle(__func__, gpu, device);
        for (int slot = 0; slot < MAX_MIGS; slot++) {
            const struct mig *mig = &state->gpus[gpu].migs[slot];
            if (mig->present && strcmp(mig->uuid, uuid) == 0) {
                nvmlReturn_t result = give_handle(__func__, gpu, device);
                if (result == SUCCESS)
                    *device += 1 + slot;
                return result;
            }
        }
    }
    return NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device) {
    CALL(enter, __func__);
    NEED(bus_id);
    NEED(device);
    unsigned wanted[3], found[3];
    if (!parse_pci(bus_id, &wanted[0], &wanted[1], &wanted[2]))
        return INVALID_ARGUMENT;
    for (int i = 0; i < state->visible_count; i++) {
        parse_pci(state->gpus[state->visible[i]].pci, &found[0], &found[1], &found[2]);
        if (memcmp(wanted, found, sizeof wanted) == 0)
            return give_handle(__func__, state->visible[i], device);
    }
    return NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index) {
    CALL(enter_device, __func__, device);
    if (call.mig != NULL)
        return give_number(index, call.mig - call.gpu->migs);
    for (int i = 0; i < state->visible_count; i++)
        if (state->visible[i] == call.index)
            return give_number(index, i);
    return NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length) {
    CALL(enter_device, __func__, device);
    char text[2 * TEXT + 8];
    snprintf(text, sizeof text, call.mig != NULL ? "%s MIG %s" : "%s", call.gpu->model,
             call.mig != NULL ? call.mig->profile : "");
    return copy_text(name, length, text);
}

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length) {
    CALL(enter_device, __func__, device);
    return copy_text(uuid, length, call.mig != NULL ? call.mig->uuid : call.gpu->uuid);
}

API nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned length) {
    CALL(enter_gpu, __func__, device);
    return call.gpu->serial[0] == '\0' ? NOT_SUPPORTED : copy_text(serial, length, call.gpu->serial);
}

API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    CALL(enter_device, __func__, device);
    NEED(major);
    NEED(minor);
    sscanf(call.gpu->cc, "%d.%d", major, minor);
    return SUCCESS;
}

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;
_Static_assert(sizeof(nvmlPciInfo_t) == 68, "nvmlPciInfo_t as nvml.h has it");

static nvmlReturn_t give_pci(nvmlPciInfo_t *pci, const char *address, int64_t id, int64_t subsystem) {
    NEED(pci);
    memset(pci, 0, sizeof *pci);
    parse_pci(address, &pci->domain, &pci->bus, &pci->device);
    pci->pciDeviceId = (unsigned)id;
    pci->pciSubSystemId = (unsigned)subsystem;
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain & 0xffff, pci->bus & 0xff,
             pci->device & 0xff);
    snprintf(pci->busId, sizeof pci->busId, garbage ? "\xff\xfe" : "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    CALL(enter_device, __func__, device);
    return give_pci(pci, call.gpu->pci, call.gpu->pciid, call.gpu->subsys);
}

// ---------------------------------------------------------------- MIG

API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *now, unsigned *pending) {
    CALL(enter_gpu, __func__, device);
    const struct gpu *gpu = call.gpu;
    nvmlReturn_t result = give_number(now, gpu->mig);
    return result == SUCCESS ? give_number(pending, gpu->mig_pending == ABSENT ? gpu->mig : gpu->mig_pending) : result;
}

API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count) {
    CALL(enter_gpu, __func__, device);
    return give_number(count, call.gpu->mig == ABSENT ? 0 : MAX_MIGS);
}

API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *mig) {
    CALL(enter_gpu, __func__, device);
    NEED(mig);
    if (call.gpu->mig == ABSENT)
        return NOT_SUPPORTED;
    if (index >= MAX_MIGS)
        return INVALID_ARGUMENT;
    if (!call.gpu->migs[index].present)
        return NOT_FOUND;
    *mig = &handles[call.index][1 + index];
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is_mig) {
    CALL(enter_device, __func__, device);
    return give_number(is_mig, call.mig != NULL);
}

API nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device) {
    CALL(enter_device, __func__, mig);
    NEED(device);
    if (call.mig == NULL)
        return INVALID_ARGUMENT;
    *device = &handles[call.index][0];
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *id) {
    CALL(enter_device, __func__, device);
    return call.mig == NULL ? NOT_SUPPORTED : give_number(id, call.mig->gi);
}

API nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *id) {
    CALL(enter_device, __func__, device);
    return call.mig == NULL ? NOT_SUPPORTED : give_number(id, call.mig->ci);
}

typedef struct {
    unsigned multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount,
        sharedOfaCount, gpuInstanceSliceCount, computeInstanceSliceCount;
    unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;

API nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    CALL(enter_device, __func__, device);
    NEED(attributes);
    if (call.mig == NULL)
        return NOT_SUPPORTED;
    memset(attributes, 0, sizeof *attributes);
    attributes->multiprocessorCount = (unsigned)call.mig->sms;
    attributes->memorySizeMB = (unsigned long long)call.mig->mem >> 20;
    // "1c.3g.20gb" is one compute slice of a three-slice instance; "3g.20gb" has them all.
    unsigned first = 0, second = 0;
    bool split = sscanf(call.mig->profile, "%uc.%ug.", &first, &second) == 2;
    attributes->computeInstanceSliceCount = first;
    attributes->gpuInstanceSliceCount = split ? second : first;
    return SUCCESS;
}

// ---------------------------------------------------------------- changing MIG

// What becomes of the file: a gi or mig line goes, a GPU's mode is set, a line is added.
struct edit {
    const char *drop;  // kind of the line that goes
    int64_t gpu, gi;
    const char *mode;  // "mig=1", "mig_pending=0": takes the place of both in the GPU's line
    char add[4 * TEXT];
};

static bool edit_drops(const struct edit *edit, const struct line *line) {
    if (edit->drop == NULL || strcmp(line->tokens[0], edit->drop) != 0)
        return false;
    struct gi gi = {0};
    struct mig mig = {0};
    if (strcmp(edit->drop, "gi") == 0)
        return parse_record(line, state, gi_keys(), &gi) && gi.gpu == edit->gpu && gi.id == edit->gi;
    return parse_record(line, state, mig_keys(), &mig) && mig.gpu == edit->gpu && mig.gi == edit->gi;
}

static bool edit_line(const struct edit *edit, const char *text, FILE *out) {
    struct line line = {.path = ""};
    char *words = strdup(text);
    bool good = words != NULL && tokenize(words, &line);
    int64_t index;
    if (!good || line.count == 0) {
        fprintf(out, "%s\n", text);
    } else if (edit->mode != NULL && strcmp(line.tokens[0], "gpu") == 0 && parse_number(line.tokens[1], &index) &&
               index == edit->gpu) {
        for (int i = 0; i < line.count; i++)
            if (strncmp(line.tokens[i], "mig=", 4) != 0 && strncmp(line.tokens[i], "mig_pending=", 12) != 0)
                fprintf(out, strpbrk(line.tokens[i], " \t#") != NULL ? "\"%s\" " : "%s ", line.tokens[i]);
        fprintf(out, "%s\n", edit->mode);
    } else if (!edit_drops(edit, &line)) {
        fprintf(out, "%s\n", text);
    }
    free(words);
    return good;
}

// Replaces the file as topology.py does: in one step, with an mtime of its own. The caller holds the directory.
static nvmlReturn_t edit_file(const struct edit *edit) {
    const char *path = getenv("GPUSIM_FILE");
    char fresh[4096], *text = NULL;
    size_t size = 0;
    snprintf(fresh, sizeof fresh, "%s.%d", path, (int)getpid());
    FILE *in = fopen(path, "re");
    FILE *out = in != NULL ? fopen(fresh, "we") : NULL;
    bool good = out != NULL;
    while (good && getline(&text, &size, in) >= 0) {
        text[strcspn(text, "\r\n")] = '\0';
        good = edit_line(edit, text, out);
    }
    free(text);
    if (good)
        fputs(edit->add, out);
    if (in != NULL)
        fclose(in);
    if (out != NULL)
        good &= fclose(out) == 0;
    struct stat before;
    struct timespec stamp;
    good = good && stat(path, &before) == 0;
    clock_gettime(CLOCK_REALTIME, &stamp);
    if (good && (stamp.tv_sec < before.st_mtim.tv_sec ||
                 (stamp.tv_sec == before.st_mtim.tv_sec && stamp.tv_nsec <= before.st_mtim.tv_nsec))) {
        stamp = before.st_mtim;
        stamp.tv_nsec++;
        if (stamp.tv_nsec == 1000000000)
            stamp = (struct timespec){.tv_sec = stamp.tv_sec + 1};
    }
    good = good && utimensat(AT_FDCWD, fresh, (struct timespec[]){stamp, stamp}, 0) == 0 && rename(fresh, path) == 0;
    refresh();
    return good ? SUCCESS : UNKNOWN;
}

// A call that changes the file: it holds the file's directory, as edit() in topology.py does.
static struct call enter_change(const char *name, nvmlDevice_t device) {
    struct call call = enter_gpu(name, device);
    if (call.error != SUCCESS)
        return call;
    char *path = strdup(getenv("GPUSIM_FILE"));
    call.directory = open(dirname(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(path);
    if (call.directory < 0 || flock(call.directory, LOCK_EX) != 0)
        call.error = UNKNOWN;
    else {
        refresh();
        call.error = resolve(device, &call);
    }
    if (call.error != SUCCESS) {
        if (call.directory >= 0)
            close(call.directory);
        pthread_mutex_unlock(&lock);
    }
    return call;
}

// Whether a process has the GPU, or this GPU instance of it.
static bool busy(const struct call *call, int64_t gi) {
    for (int i = 0; i < state->proc_count; i++)
        if (state->procs[i].gpu == call->index && (gi == ABSENT || state->procs[i].gi == gi))
            return true;
    return false;
}

// The mode changes at once on an idle GPU; on a busy one, and with mig_reset=1 on any, it is pending until a reset.
API nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned mode, nvmlReturn_t *activation) {
    CALL(enter_change, __func__, device);
    NEED(activation);
    if (call.gpu->mig == ABSENT)
        return NOT_SUPPORTED;
    if (mode > 1)
        return INVALID_ARGUMENT;
    bool used = busy(&call, ABSENT);
    for (int id = 0; id < MAX_GIS; id++)
        used |= call.gpu->gis[id].present;
    bool same = mode == (unsigned)call.gpu->mig;
    *activation = same ? SUCCESS : used ? IN_USE : call.gpu->mig_reset == 1 ? RESET_REQUIRED : SUCCESS;
    char text[TEXT];
    if (*activation == SUCCESS)
        snprintf(text, sizeof text, "mig=%u", mode);
    else
        snprintf(text, sizeof text, "mig=%d mig_pending=%u", (int)call.gpu->mig, mode);
    return edit_file(&(struct edit){.gpu = call.index, .mode = text});
}

// A handle of a GPU instance or compute instance is the address of its cell, too; ids stay what they are.
static const char gi_handles[MAX_GPUS][MAX_GIS], ci_handles[MAX_GPUS][MAX_GIS];
typedef const char *nvmlGpuInstance_t;
typedef const char *nvmlComputeInstance_t;

static nvmlReturn_t resolve_cell(const char *handle, const char (*cells)[MAX_GIS], nvmlDevice_t *device, int *id) {
    uintptr_t offset = (uintptr_t)handle - (uintptr_t)cells;
    if (offset >= sizeof gi_handles)
        return INVALID_ARGUMENT;
    *device = &handles[offset / MAX_GIS][0];
    *id = (int)(offset % MAX_GIS);
    return SUCCESS;
}

static struct mig *mig_of(struct gpu *gpu, int64_t gi) {
    for (int slot = 0; slot < MAX_MIGS; slot++)
        if (gpu->migs[slot].present && gpu->migs[slot].gi == gi)
            return &gpu->migs[slot];
    return NULL;
}

#define INSTANCE(entry, handle, cells)                                            \
    nvmlDevice_t device = NULL;                                                   \
    int id = 0;                                                                   \
    if (resolve_cell(handle, cells, &device, &id) != SUCCESS)                     \
        return INVALID_ARGUMENT;                                                  \
    CALL(entry, __func__, device);                                                \
    if (!call.gpu->gis[id].present)                                               \
        return INVALID_ARGUMENT

typedef struct {
    unsigned version, id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount, copyEngineCount, decoderCount,
        encoderCount, jpegCount, ofaCount;
    unsigned long long memorySizeMB;
    char name[96];
} nvmlGpuInstanceProfileInfo_v2_t;
_Static_assert(sizeof(nvmlGpuInstanceProfileInfo_v2_t) == 0x98, "nvmlGpuInstanceProfileInfo_v2_t as nvml.h has it");

// A kind of profile that is younger than the driver is no argument to it, as real ones of each age have it: here, one
// above all that the file names.
static nvmlReturn_t give_profile(const struct gpu *gpu, unsigned kind, nvmlGpuInstanceProfileInfo_v2_t *info) {
    int64_t newest = 0;
    if (gpu->mig == ABSENT)
        return NOT_SUPPORTED;
    for (int i = 0; i < state->migprofile_count; i++)
        if (state->migprofiles[i].nvml > newest)
            newest = state->migprofiles[i].nvml;
    if (kind > newest)
        return INVALID_ARGUMENT;
    for (int i = 0; i < state->migprofile_count; i++) {
        const struct migprofile *profile = &state->migprofiles[i];
        if (profile->nvml != kind || strcmp(profile->model, gpu->model) != 0)
            continue;
        *info = (nvmlGpuInstanceProfileInfo_v2_t){.version = info->version,
                                                  .id = (unsigned)profile->id,
                                                  .sliceCount = (unsigned)profile->slices,
                                                  .instanceCount = (unsigned)profile->count,
                                                  .multiprocessorCount = (unsigned)profile->sms,
                                                  .memorySizeMB = (unsigned long long)profile->mem >> 20};
        snprintf(info->name, sizeof info->name, "MIG %.80s", profile->name);
        return SUCCESS;
    }
    return NOT_SUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned kind,
                                                      nvmlGpuInstanceProfileInfo_v2_t *info) {
    CALL(enter_gpu, __func__, device);
    NEED(info);
    if (info->version != (2u << 24 | sizeof *info))
        return ARGUMENT_VERSION_MISMATCH;
    return give_profile(call.gpu, kind, info);
}

typedef struct {
    unsigned numbers[10];
    unsigned long long memorySizeMB;
} nvmlGpuInstanceProfileInfo_t;

// NVIDIA's device plugin asks by it; the newer structure has a version before and a name behind the same fields.
API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned kind,
                                                     nvmlGpuInstanceProfileInfo_t *info) {
    CALL(enter_gpu, __func__, device);
    NEED(info);
    nvmlGpuInstanceProfileInfo_v2_t newer;
    nvmlReturn_t result = give_profile(call.gpu, kind, &newer);
    if (result == SUCCESS) {
        memcpy(info->numbers, &newer.id, sizeof info->numbers);
        info->memorySizeMB = newer.memorySizeMB;
    }
    return result;
}

typedef struct {
    unsigned start, size;
} nvmlGpuInstancePlacement_t;

API nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned profile_id,
                                                               nvmlGpuInstancePlacement_t *placements,
                                                               unsigned *count) {
    CALL(enter_gpu, __func__, device);
    NEED(count);
    const struct migprofile *profile = find_profile(state, call.gpu, profile_id);
    if (profile == NULL || call.gpu->mig != 1)
        return NOT_SUPPORTED;
    unsigned found = 0, room = *count;
    for (const char *at = profile->starts; *at != '\0'; at += strcspn(at, ","), at += *at == ',') {
        if (placements != NULL && found < room)
            placements[found] = (nvmlGpuInstancePlacement_t){(unsigned)strtoul(at, NULL, 10), (unsigned)profile->size};
        found++;
    }
    *count = found;
    return placements == NULL || found <= room ? SUCCESS : INSUFFICIENT_SIZE;
}

API nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned profile_id, nvmlGpuInstance_t *instances,
                                           unsigned *count) {
    CALL(enter_gpu, __func__, device);
    NEED(instances);
    NEED(count);
    if (call.gpu->mig != 1)
        return NOT_SUPPORTED;
    *count = 0;
    for (int id = 0; id < MAX_GIS; id++)
        if (call.gpu->gis[id].present && call.gpu->gis[id].profile == profile_id)
            instances[(*count)++] = &gi_handles[call.index][id];
    return SUCCESS;
}

typedef struct {
    nvmlDevice_t device;
    unsigned id, profileId;
    nvmlGpuInstancePlacement_t placement;
} nvmlGpuInstanceInfo_t;

API nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info) {
    INSTANCE(enter_gpu, instance, gi_handles);
    NEED(info);
    const struct gi *gi = &call.gpu->gis[id];
    const struct migprofile *profile = find_profile(state, call.gpu, gi->profile);
    *info = (nvmlGpuInstanceInfo_t){device, (unsigned)id, (unsigned)gi->profile,
                                    {(unsigned)gi->start, (unsigned)profile->size}};
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *instance) {
    CALL(enter_gpu, __func__, device);
    NEED(instance);
    if (id >= MAX_GIS || !call.gpu->gis[id].present)
        return NOT_FOUND;
    *instance = &gi_handles[call.index][id];
    return SUCCESS;
}

static bool overlap(int64_t start, int64_t size, int64_t other, int64_t other_size) {
    return start < other + other_size && other < start + size;
}

API nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned profile_id,
                                                          const nvmlGpuInstancePlacement_t *placement,
                                                          nvmlGpuInstance_t *instance) {
    CALL(enter_change, __func__, device);
    NEED(placement);
    NEED(instance);
    const struct migprofile *profile = find_profile(state, call.gpu, profile_id);
    if (profile == NULL || call.gpu->mig != 1)
        return NOT_SUPPORTED;
    bool possible = false;
    for (const char *at = profile->starts; *at != '\0'; at += strcspn(at, ","), at += *at == ',')
        possible |= strtoul(at, NULL, 10) == placement->start;
    if (!possible || placement->size != profile->size)
        return INVALID_ARGUMENT;
    int64_t same = 0, slices = profile->slices, all = 0;
    for (int i = 0; i < state->migprofile_count; i++)
        if (strcmp(state->migprofiles[i].model, call.gpu->model) == 0 && state->migprofiles[i].slices > all)
            all = state->migprofiles[i].slices;
    for (int id = 0; id < MAX_GIS; id++) {
        const struct gi *gi = &call.gpu->gis[id];
        if (!gi->present)
            continue;
        const struct migprofile *other = find_profile(state, call.gpu, gi->profile);
        same += gi->profile == profile_id;
        slices += other->slices;
        if (overlap(placement->start, profile->size, gi->start, other->size))
            return INSUFFICIENT_RESOURCES;
    }
    if (same >= profile->count || slices > all)
        return INSUFFICIENT_RESOURCES;
    // 0 for all of the GPU, then the halves, the quarters, the eighths: no two that fit together share an id.
    int64_t id = profile->size == 8   ? 0
                 : profile->size == 4 ? 1 + placement->start / 4
                 : profile->size == 2 ? 3 + placement->start / 2
                                      : 7 + placement->start;
    struct edit edit = {.gpu = call.index};
    snprintf(edit.add, sizeof edit.add, "gi %d id=%d profile=%u start=%u\n", call.index, (int)id, profile_id,
             placement->start);
    *instance = &gi_handles[call.index][id];
    return edit_file(&edit);
}

API nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance) {
    INSTANCE(enter_change, instance, gi_handles);
    if (mig_of(call.gpu, id) != NULL || busy(&call, id))
        return IN_USE;
    return edit_file(&(struct edit){.drop = "gi", .gpu = call.index, .gi = id});
}

typedef struct {
    unsigned version, id, sliceCount, instanceCount, multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount,
        sharedEncoderCount, sharedJpegCount, sharedOfaCount;
    char name[96];
} nvmlComputeInstanceProfileInfo_v2_t;
_Static_assert(sizeof(nvmlComputeInstanceProfileInfo_v2_t) == 0x88, "as nvml.h has it");

// Of the compute instances a GPU instance can have, the one that takes all of it.
static nvmlReturn_t give_compute_profile(const struct migprofile *profile, unsigned kind, unsigned engines,
                                         nvmlComputeInstanceProfileInfo_v2_t *info) {
    static const int64_t slices[] = {1, 2, 3, 4, 7};
    if (engines != 0 || kind >= sizeof slices / sizeof *slices || slices[kind] != profile->slices)
        return NOT_SUPPORTED;
    *info = (nvmlComputeInstanceProfileInfo_v2_t){.version = info->version,
                                                  .id = kind,
                                                  .sliceCount = (unsigned)profile->slices,
                                                  .instanceCount = 1,
                                                  .multiprocessorCount = (unsigned)profile->sms};
    snprintf(info->name, sizeof info->name, "MIG %.80s", profile->name);
    return SUCCESS;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned kind,
                                                               unsigned engines,
                                                               nvmlComputeInstanceProfileInfo_v2_t *info) {
    INSTANCE(enter_gpu, instance, gi_handles);
    NEED(info);
    if (info->version != (2u << 24 | sizeof *info))
        return ARGUMENT_VERSION_MISMATCH;
    return give_compute_profile(find_profile(state, call.gpu, call.gpu->gis[id].profile), kind, engines, info);
}

typedef struct {
    unsigned numbers[9];
} nvmlComputeInstanceProfileInfo_t;

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned kind,
                                                              unsigned engines,
                                                              nvmlComputeInstanceProfileInfo_t *info) {
    INSTANCE(enter_gpu, instance, gi_handles);
    NEED(info);
    nvmlComputeInstanceProfileInfo_v2_t newer;
    const struct migprofile *profile = find_profile(state, call.gpu, call.gpu->gis[id].profile);
    nvmlReturn_t result = give_compute_profile(profile, kind, engines, &newer);
    if (result == SUCCESS)
        memcpy(info->numbers, &newer.id, sizeof info->numbers);
    return result;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned compute_id,
                                                       nvmlComputeInstance_t *compute) {
    INSTANCE(enter_gpu, instance, gi_handles);
    NEED(compute);
    const struct mig *mig = mig_of(call.gpu, id);
    if (mig == NULL || mig->ci != compute_id)
        return NOT_FOUND;
    *compute = &ci_handles[call.index][id];
    return SUCCESS;
}

typedef struct {
    nvmlDevice_t device;
    nvmlGpuInstance_t gpuInstance;
    unsigned id, profileId;
    nvmlGpuInstancePlacement_t placement;
} nvmlComputeInstanceInfo_t;

API nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_t *info) {
    INSTANCE(enter_gpu, instance, ci_handles);
    NEED(info);
    const struct mig *mig = mig_of(call.gpu, id);
    if (mig == NULL)
        return INVALID_ARGUMENT;
    const struct migprofile *profile = find_profile(state, call.gpu, call.gpu->gis[id].profile);
    nvmlComputeInstanceProfileInfo_v2_t of;
    unsigned kind = 0;
    while (give_compute_profile(profile, kind, 0, &of) != SUCCESS)
        kind++;
    *info = (nvmlComputeInstanceInfo_t){device, &gi_handles[call.index][id], (unsigned)mig->ci, of.id,
                                        {0, (unsigned)profile->slices}};
    return SUCCESS;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned profile_id,
                                                    nvmlComputeInstance_t *instances, unsigned *count) {
    (void)profile_id;
    INSTANCE(enter_gpu, instance, gi_handles);
    NEED(instances);
    NEED(count);
    *count = mig_of(call.gpu, id) != NULL;
    if (*count > 0)
        instances[0] = &ci_handles[call.index][id];
    return SUCCESS;
}

// The driver makes a MIG device's UUID from the GPU's and the numbers of its instances: made again, it has it again.
static void mig_uuid(const char *gpu, int64_t gi, char *uuid, size_t size) {
    uint64_t hash[2] = {UINT64_C(0xcbf29ce484222325), UINT64_C(0x84222325cbf29ce4)};
    for (int half = 0; half < 2; half++) {
        for (const char *at = gpu; *at != '\0'; at++)
            hash[half] = (hash[half] ^ (unsigned char)*at) * UINT64_C(0x100000001b3);
        hash[half] = (hash[half] ^ (uint64_t)(gi + 1)) * UINT64_C(0x100000001b3);
    }
    snprintf(uuid, size, "MIG-%08x-%04x-5%03x-8%03x-%012llx", (unsigned)(hash[0] >> 32),
             (unsigned)(hash[0] >> 16 & 0xffff), (unsigned)(hash[0] & 0xfff), (unsigned)(hash[1] >> 52),
             (unsigned long long)(hash[1] & UINT64_C(0xffffffffffff)));
}

API nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned profile_id,
                                                      nvmlComputeInstance_t *compute) {
    (void)profile_id;
    INSTANCE(enter_change, instance, gi_handles);
    NEED(compute);
    if (mig_of(call.gpu, id) != NULL)
        return INSUFFICIENT_RESOURCES;
    const struct migprofile *profile = find_profile(state, call.gpu, call.gpu->gis[id].profile);
    char uuid[TEXT];
    mig_uuid(call.gpu->uuid, id, uuid, sizeof uuid);
    struct edit edit = {.gpu = call.index};
    snprintf(edit.add, sizeof edit.add, "mig %d gi=%d ci=0 profile=%s mem=%lld uuid=%s sms=%d\n", call.index, id,
             profile->name, (long long)profile->mem, uuid, (int)profile->sms);
    *compute = &ci_handles[call.index][id];
    return edit_file(&edit);
}

API nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t instance) {
    INSTANCE(enter_change, instance, ci_handles);
    if (mig_of(call.gpu, id) == NULL)
        return INVALID_ARGUMENT;
    if (busy(&call, id))
        return IN_USE;
    return edit_file(&(struct edit){.drop = "mig", .gpu = call.index, .gi = id});
}

// ---------------------------------------------------------------- memory, load, processes

// Memory of the processes on a GPU, or of those in one MIG device.
static int64_t process_memory(const struct call *call) {
    int64_t sum = 0;
    for (int i = 0; i < state->proc_count; i++) {
        const struct proc *proc = &state->procs[i];
        if (proc->gpu == call->index && (call->mig == NULL || (proc->gi == call->mig->gi && proc->ci == call->mig->ci)))
            sum += proc->mem;
    }
    return sum;
}

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;
_Static_assert(sizeof(nvmlMemory_v2_t) == 40, "nvmlMemory_v2_t as nvml.h has it");

static nvmlMemory_v2_t memory_of(const struct call *call) {
    const bool mig = call->mig != NULL;
    nvmlMemory_v2_t memory = {.version = 2u << 24 | sizeof memory};
    memory.total = (unsigned long long)(mig ? call->mig->mem : call->gpu->mem);
    memory.reserved = (unsigned long long)(mig ? 0 : call->gpu->reserved);
    memory.used = (unsigned long long)(process_memory(call) + (mig ? 0 : call->gpu->used));
    unsigned long long taken = memory.reserved + memory.used;
    memory.free = taken < memory.total ? memory.total - taken : 0;
    return memory;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out) {
    CALL(enter_device, __func__, device);
    NEED(out);
    if (call.gpu->unified)
        return NOT_SUPPORTED;
    nvmlMemory_v2_t memory = memory_of(&call);
    *out = (nvmlMemory_t){memory.total, memory.free, memory.used + memory.reserved};
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out) {
    CALL(enter_device, __func__, device);
    NEED(out);
    nvmlMemory_v2_t memory = memory_of(&call);
    if (out->version != memory.version)
        return ARGUMENT_VERSION_MISMATCH;
    if (call.gpu->unified)
        return NOT_SUPPORTED;
    *out = memory;
    return SUCCESS;
}

// Percent of a GPU's time at a sample: what the file says or what simulated processes did, ABSENT where nothing is told.
static int64_t busy_of(int64_t gpu, int64_t told, unsigned long long stamp) {
    int64_t busy = gpu < CARDS ? load_of(&watched[gpu].load, stamp) : 0;
    return told == ABSENT || told > busy ? told : busy;
}

// The same of a process of the simulated CUDA driver, on average since then.
static int64_t sm_since(int64_t gpu, int64_t pid, unsigned long long since) {
    for (int i = 0; gpu < CARDS && i < TENANTS; i++)
        if (watched[gpu].tenants[i].pid == pid)
            return load_since(&watched[gpu].tenants[i].load, since);
    return 0;
}

typedef struct {
    unsigned gpu, memory;
} nvmlUtilization_t;

API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    CALL(enter_gpu, __func__, device);
    NEED(rates);
    if (call.gpu->mig == 1)
        return NOT_SUPPORTED;
    nvmlReturn_t result = give_number(&rates->gpu, busy_of(call.index, call.gpu->util, newest_sample()));
    return result == SUCCESS ? give_number(&rates->memory, call.gpu->memutil) : result;
}

// Microseconds from sample to sample, of engines that nothing simulated uses.
enum { ENGINE_PERIOD = 167000 };

static nvmlReturn_t idle_engine(unsigned *utilization, unsigned *period) {
    NEED(utilization);
    NEED(period);
    *utilization = 0;
    *period = ENGINE_PERIOD;
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned *utilization, unsigned *period) {
    CALL(enter_gpu, __func__, device);
    return idle_engine(utilization, period);
}

API nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned *utilization, unsigned *period) {
    CALL(enter_gpu, __func__, device);
    return idle_engine(utilization, period);
}

typedef struct {
    unsigned long long timeStamp;
    union {
        unsigned uiVal;
        unsigned long long ullVal;
    } sampleValue;
} nvmlSample_t;
_Static_assert(sizeof(nvmlSample_t) == 16, "nvmlSample_t as nvml.h has it");
// Samples have what the file says now, or what simulated processes did then if that is more. Without room for them it
// says how many there can be.
API nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, unsigned kind, unsigned long long since, unsigned *type,
                                      unsigned *count, nvmlSample_t *samples) {
    enum { GPU_UTILIZATION = 1, MEMORY_UTILIZATION = 2, TYPE_UNSIGNED = 1 };
    CALL(enter_gpu, __func__, device);
    NEED(type);
    NEED(count);
    const int64_t value = kind == GPU_UTILIZATION      ? call.gpu->util
                          : kind == MEMORY_UTILIZATION ? call.gpu->memutil
                                                       : ABSENT;
    if (call.gpu->mig == 1 || value == ABSENT)
        return NOT_SUPPORTED;
    *type = TYPE_UNSIGNED;
    const unsigned room = *count;
    *count = KEPT_SAMPLES;
    if (samples == NULL)
        return SUCCESS;
    const unsigned long long newest = newest_sample();
    unsigned found = 0;
    for (unsigned i = KEPT_SAMPLES; i-- > 0 && found < room;) {
        const unsigned long long stamp = newest - (unsigned long long)i * SAMPLE_US;
        const int64_t percent = kind == GPU_UTILIZATION ? busy_of(call.index, value, stamp) : value;
        if (stamp > since)
            samples[found++] = (nvmlSample_t){stamp, {.uiVal = (unsigned)percent}};
    }
    *count = found;
    return found > 0 ? SUCCESS : NOT_FOUND;
}

typedef struct {
    unsigned pid;
    unsigned long long usedGpuMemory;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;
_Static_assert(sizeof(nvmlProcessInfo_t) == 24, "nvmlProcessInfo_v2_t as nvml.h has it");

// The processes whose type has this letter. Says INSUFFICIENT_SIZE and how many there are when they do not fit.
static nvmlReturn_t list_processes(const struct call *call, char letter, unsigned *count, nvmlProcessInfo_t *infos) {
    NEED(count);
    unsigned found = 0;
    for (int i = 0; i < state->proc_count; i++) {
        const struct proc *proc = &state->procs[i];
        if (proc->gpu != call->index || strchr(proc->type, letter) == NULL)
            continue;
        if (call->mig != NULL && (proc->gi != call->mig->gi || proc->ci != call->mig->ci))
            continue;
        if (infos != NULL && found < *count)
            infos[found] = (nvmlProcessInfo_t){(unsigned)proc->pid, (unsigned long long)proc->mem, (unsigned)proc->gi,
                                               (unsigned)proc->ci};
        found++;
    }
    bool fits = found == 0 || (infos != NULL && found <= *count);
    *count = found;
    return fits ? SUCCESS : INSUFFICIENT_SIZE;
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                         nvmlProcessInfo_t *infos) {
    CALL(enter_device, __func__, device);
    return list_processes(&call, 'C', count, infos);
}

API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                          nvmlProcessInfo_t *infos) {
    CALL(enter_device, __func__, device);
    return list_processes(&call, 'G', count, infos);
}

API nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                            nvmlProcessInfo_t *infos) {
    CALL(enter_device, __func__, device);
    return list_processes(&call, 'M', count, infos);
}

typedef struct {
    unsigned pid;
    unsigned long long timeStamp;
    unsigned smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;
_Static_assert(sizeof(nvmlProcessUtilizationSample_t) == 32, "nvmlProcessUtilizationSample_t as nvml.h has it");

API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                                 unsigned *count, unsigned long long since) {
    CALL(enter_gpu, __func__, device);
    NEED(count);
    if (call.gpu->mig == 1)
        return NOT_SUPPORTED;
    unsigned long long stamp = newest_sample();
    unsigned found = 0;
    for (int i = 0; i < state->proc_count && stamp > since; i++) {
        const struct proc *proc = &state->procs[i];
        const int64_t sm = i < written_procs ? proc->sm : sm_since(proc->gpu, proc->pid, since);
        if (proc->gpu != call.index || (sm <= 0 && proc->memutil <= 0))
            continue;
        if (samples != NULL && found < *count)
            samples[found] = (nvmlProcessUtilizationSample_t){
                .pid = (unsigned)proc->pid,
                .timeStamp = stamp,
                .smUtil = (unsigned)sm,
                .memUtil = (unsigned)proc->memutil,
            };
        found++;
    }
    bool fits = samples != NULL && found <= *count;
    *count = found;
    return found == 0 ? NOT_FOUND : fits ? SUCCESS : INSUFFICIENT_SIZE;
}

// ---------------------------------------------------------------- sensors, modes, errors

#define GPU_NUMBER(function, field)                                   \
    API nvmlReturn_t function(nvmlDevice_t device, unsigned *out)     \
    {                                                                 \
        CALL(enter_gpu, __func__, device);                            \
        return give_number(out, call.gpu->field);                     \
    }
GPU_NUMBER(nvmlDeviceGetMinorNumber, minor)
GPU_NUMBER(nvmlDeviceGetPowerUsage, power)
GPU_NUMBER(nvmlDeviceGetEnforcedPowerLimit, power_limit)
GPU_NUMBER(nvmlDeviceGetComputeMode, compute_mode)
GPU_NUMBER(nvmlDeviceGetPersistenceMode, persistence)

API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *celsius) {
    CALL(enter_gpu, __func__, device);
    return sensor != 0 ? INVALID_ARGUMENT : give_number(celsius, call.gpu->temp);
}

API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz) {
    enum { GRAPHICS, SM, MEMORY };
    CALL(enter_gpu, __func__, device);
    switch (type) {
    case GRAPHICS:
    case SM: return give_number(mhz, call.gpu->sm_clock);
    case MEMORY: return give_number(mhz, call.gpu->mem_clock);
    default: return INVALID_ARGUMENT;
    }
}

API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *now, unsigned *pending) {
    CALL(enter_gpu, __func__, device);
    nvmlReturn_t result = give_number(now, call.gpu->ecc);
    return result == SUCCESS ? give_number(pending, call.gpu->ecc) : result;
}

// The file has one count of each kind: volatile and aggregate are the same.
API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned kind, unsigned counter,
                                             unsigned long long *count) {
    CALL(enter_gpu, __func__, device);
    NEED(count);
    if (kind > 1 || counter > 1)
        return INVALID_ARGUMENT;
    if (call.gpu->ecc != 1)
        return NOT_SUPPORTED;
    *count = (unsigned long long)(kind == 0 ? call.gpu->ecc_corrected : call.gpu->ecc_uncorrected);
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned *pending) {
    CALL(enter_gpu, __func__, device);
    return give_number(pending, call.gpu->retire_pending);
}

API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected,
                                           unsigned *pending, unsigned *failed) {
    CALL(enter_gpu, __func__, device);
    NEED(uncorrected);
    NEED(pending);
    NEED(failed);
    *uncorrected = (unsigned)call.gpu->remap_uncorrected;
    *pending = (unsigned)call.gpu->remap_pending;
    *failed = (unsigned)call.gpu->remap_failed;
    return give_number(corrected, call.gpu->remap_corrected);
}

typedef struct {
    uint32_t fieldId, scopeId;
    int64_t timestamp, latencyUsec;
    unsigned valueType;
    nvmlReturn_t nvmlReturn;
    union {
        unsigned uiVal;
        unsigned long long ullVal;
    } value;
} nvmlFieldValue_t;
_Static_assert(sizeof(nvmlFieldValue_t) == 40, "nvmlFieldValue_t as nvml.h has it");

// The value of a field, ABSENT where the card does not have it.
static int64_t field_of(const struct gpu *gpu, unsigned field) {
    enum { POWER_THROTTLE = 74, THERMAL_THROTTLE = 75, MEMORY_TEMP = 82, ENERGY = 83, GPU_RECOVERY_ACTION = 230 };
    switch (field) {
    case POWER_THROTTLE: return gpu->power_throttle;
    case THERMAL_THROTTLE: return gpu->thermal_throttle;
    case MEMORY_TEMP: return gpu->mem_temp;
    case ENERGY: return gpu->energy;
    case GPU_RECOVERY_ACTION: return gpu->recovery;
    default: return ABSENT;
    }
}

API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
    enum { TYPE_UNSIGNED = 1, TYPE_UNSIGNED_LONG_LONG = 3, SMALL = 1 << 30 };
    CALL(enter_gpu, __func__, device);
    NEED(values);
    for (int i = 0; i < count; i++) {
        const int64_t value = field_of(call.gpu, values[i].fieldId);
        values[i].valueType = value < SMALL ? TYPE_UNSIGNED : TYPE_UNSIGNED_LONG_LONG;
        values[i].timestamp = clock_us(CLOCK_REALTIME);
        values[i].value.ullVal = (unsigned long long)value;
        values[i].nvmlReturn = value == ABSENT ? NOT_SUPPORTED : SUCCESS;
    }
    return SUCCESS;
}

// ---------------------------------------------------------------- counters of a GPU's parts

enum { GPM_METRIC_MAX = 476, GPM_VERSION = 1 };
typedef struct {
    unsigned version, isSupportedDevice;
} nvmlGpmSupport_t;
typedef struct {
    unsigned metricId;
    nvmlReturn_t nvmlReturn;
    double value;
    const char *shortName, *longName, *unit;
} nvmlGpmMetric_t;
_Static_assert(sizeof(nvmlGpmMetric_t) == 40, "nvmlGpmMetric_t as nvml.h has it");
typedef struct gpm_sample {
    int gpu, instance;  // ABSENT for the whole GPU
    int64_t us, percent;
} *nvmlGpmSample_t;
typedef struct {
    unsigned version, numMetrics;
    nvmlGpmSample_t sample1, sample2;
    nvmlGpmMetric_t metrics[];  // as many as the caller's header knows
} nvmlGpmMetricsGet_t;

API nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support) {
    CALL(enter_gpu, __func__, device);
    NEED(support);
    if (support->version != GPM_VERSION)
        return ARGUMENT_VERSION_MISMATCH;
    support->isSupportedDevice = call.gpu->gpm != ABSENT;
    return SUCCESS;
}

API nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample) {
    CALL(enter, __func__);
    NEED(sample);
    *sample = calloc(1, sizeof **sample);
    return *sample != NULL ? SUCCESS : INSUFFICIENT_RESOURCES;
}

API nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample) {
    free(sample);
    return SUCCESS;
}

static nvmlReturn_t take_sample(const struct call *call, int instance, nvmlGpmSample_t sample) {
    NEED(sample);
    if (call->gpu->gpm == ABSENT)
        return NOT_SUPPORTED;
    *sample = (struct gpm_sample){call->index, instance, clock_us(CLOCK_MONOTONIC), call->gpu->gpm};
    return SUCCESS;
}

API nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample) {
    CALL(enter_gpu, __func__, device);
    return take_sample(&call, ABSENT, sample);
}

API nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned instance, nvmlGpmSample_t sample) {
    CALL(enter_gpu, __func__, device);
    if (call.gpu->mig != 1 || instance >= MAX_GIS || !call.gpu->gis[instance].present)
        return INVALID_ARGUMENT;
    return take_sample(&call, (int)instance, sample);
}

// Metric i is the mean of what the file said at both samples, and i hundredths; in a GPU instance its id besides.
API nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *get) {
    CALL(enter, __func__);
    NEED(get);
    if (get->version != GPM_VERSION)
        return ARGUMENT_VERSION_MISMATCH;
    const struct gpm_sample *a = get->sample1, *b = get->sample2;
    if (a == NULL || b == NULL || a->us == 0 || b->us <= a->us || a->gpu != b->gpu || a->instance != b->instance)
        return INVALID_ARGUMENT;
    nvmlReturn_t fault = faulty(__func__, a->gpu);
    if (fault != SUCCESS)
        return fault == (nvmlReturn_t)NOTHING ? SUCCESS : fault;
    const double mean = (double)(a->percent + b->percent) / 2 + (a->instance == ABSENT ? 0 : a->instance);
    for (unsigned i = 0; i < get->numMetrics; i++) {
        nvmlGpmMetric_t *metric = &get->metrics[i];
        const bool known = metric->metricId >= 1 && metric->metricId <= GPM_METRIC_MAX;
        metric->nvmlReturn = known ? SUCCESS : INVALID_ARGUMENT;
        metric->value = known ? mean + metric->metricId / 100.0 : 0;
    }
    return SUCCESS;
}

typedef struct {
    unsigned isC2cEnabled;
} nvmlC2cModeInfo_v1_t;

API nvmlReturn_t nvmlDeviceGetC2cModeInfoV(nvmlDevice_t device, nvmlC2cModeInfo_v1_t *info) {
    CALL(enter_gpu, __func__, device);
    NEED(info);
    return NOT_SUPPORTED;  // only Grace has it
}

// ---------------------------------------------------------------- where a GPU sits and what it is connected to

static nvmlReturn_t set_bit(unsigned long *set, unsigned size, unsigned long bit) {
    const unsigned long width = 8 * sizeof *set;
    if (bit / width >= size)
        return INSUFFICIENT_SIZE;
    set[bit / width] |= 1ul << bit % width;
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned size, unsigned long *set, unsigned scope) {
    CALL(enter_device, __func__, device);
    NEED(set);
    if (size == 0 || scope > 1)
        return INVALID_ARGUMENT;
    if (call.gpu->numa == ABSENT)
        return NOT_SUPPORTED;
    memset(set, 0, size * sizeof *set);
    return set_bit(set, size, (unsigned long)call.gpu->numa);
}

API nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned size, unsigned long *set) {
    CALL(enter_device, __func__, device);
    NEED(set);
    if (size == 0)
        return INVALID_ARGUMENT;
    const char *range = call.gpu->cpus;
    if (*range == '\0')
        return NOT_SUPPORTED;
    memset(set, 0, size * sizeof *set);
    while (*range != '\0') {
        char *end;
        unsigned long first = strtoul(range, &end, 10);
        unsigned long last = *end == '-' ? strtoul(end + 1, &end, 10) : first;
        for (unsigned long cpu = first; cpu <= last; cpu++)
            if (set_bit(set, size, cpu) != SUCCESS)
                return INSUFFICIENT_SIZE;
        range = *end == ',' ? end + 1 : "";
    }
    return SUCCESS;
}

static int ancestor_of(int a, int b) {
    if (a == b)
        return 0;
    if (state->gpus[a].ancestors[b] != 0)
        return state->gpus[a].ancestors[b];
    return state->gpus[a].numa == state->gpus[b].numa ? ANCESTOR_NODE : ANCESTOR_SYSTEM;
}

API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t first, nvmlDevice_t second, unsigned *level) {
    CALL(enter_gpu, __func__, first);
    struct call other = call;
    nvmlReturn_t result = resolve(second, &other);
    return result == SUCCESS ? give_number(level, ancestor_of(call.index, other.index)) : result;
}

API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t first, nvmlDevice_t second, unsigned kind, unsigned *status) {
    enum { READ = 0, WRITE = 1, NVLINK = 2 };
    enum { GOOD = 0, TOPOLOGY_NOT_SUPPORTED = 3, STATUS_NOT_SUPPORTED = 5 };
    CALL(enter_gpu, __func__, first);
    NEED(status);
    struct call other = call;
    nvmlReturn_t result = resolve(second, &other);
    if (result != SUCCESS)
        return result;
    if (call.index == other.index || kind > NVLINK)
        return INVALID_ARGUMENT;
    bool nvlink = call.gpu->nvlinks[other.index] > 0 ||
                  (call.gpu->switch_links > 0 && other.gpu->switch_links > 0);
    if (nvlink)
        *status = GOOD;
    else if (kind == NVLINK)
        *status = STATUS_NOT_SUPPORTED;
    else
        *status = ancestor_of(call.index, other.index) <= ANCESTOR_HOST_BRIDGE ? GOOD : TOPOLOGY_NOT_SUPPORTED;
    return SUCCESS;
}

// A GPU's links are counted through its peers in order, then to the NVSwitches in turn.
struct remote {
    int peer;      // GPU at the other end, or -1
    int nvswitch;  // number of the NVSwitch, when there is no peer
};

static nvmlReturn_t find_link(const struct call *call, unsigned link, struct remote *remote) {
    int64_t left = link;
    int64_t total = call->gpu->switch_links;
    for (int peer = 0; peer < state->gpu_count; peer++)
        total += call->gpu->nvlinks[peer];
    if (total == 0)
        return NOT_SUPPORTED;
    if (left >= total)
        return INVALID_ARGUMENT;
    for (int peer = 0; peer < state->gpu_count; peer++) {
        if (left < call->gpu->nvlinks[peer]) {
            *remote = (struct remote){.peer = peer};
            return SUCCESS;
        }
        left -= call->gpu->nvlinks[peer];
    }
    int switches = state->nvswitch_count;
    *remote = (struct remote){.peer = -1, .nvswitch = switches > 0 ? (int)left % switches : -1};
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *active) {
    CALL(enter_gpu, __func__, device);
    struct remote remote;
    nvmlReturn_t result = find_link(&call, link, &remote);
    return result == SUCCESS ? give_number(active, 1) : result;
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned link, unsigned *type) {
    enum { REMOTE_GPU = 0, REMOTE_SWITCH = 2 };
    CALL(enter_gpu, __func__, device);
    struct remote remote;
    nvmlReturn_t result = find_link(&call, link, &remote);
    return result == SUCCESS ? give_number(type, remote.peer >= 0 ? REMOTE_GPU : REMOTE_SWITCH) : result;
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *pci) {
    CALL(enter_gpu, __func__, device);
    struct remote remote;
    nvmlReturn_t result = find_link(&call, link, &remote);
    if (result != SUCCESS)
        return result;
    if (remote.peer >= 0)
        return give_pci(pci, state->gpus[remote.peer].pci, state->gpus[remote.peer].pciid, 0);
    if (remote.nvswitch >= 0)
        return give_pci(pci, state->nvswitches[remote.nvswitch].pci, state->nvswitches[remote.nvswitch].pciid, 0);
    return give_pci(pci, "ffffffff:ff:ff.0", 0, 0);  // a guest does not see the switch
}

// ---------------------------------------------------------------- events

enum { EVENT_SINGLE_BIT = 0x1, EVENT_DOUBLE_BIT = 0x2, EVENT_XID = 0x8 };
static const uint64_t supported_events = EVENT_SINGLE_BIT | EVENT_DOUBLE_BIT | EVENT_XID;

typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType, eventData;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlEventData_t;
_Static_assert(sizeof(nvmlEventData_t) == 32, "nvmlEventData_t as nvml.h has it");

static struct event_set **find_set(nvmlEventSet_t set) {
    struct event_set **at = &event_sets;
    while (*at != NULL && *at != set)
        at = &(*at)->next;
    return *at != NULL ? at : NULL;
}

API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    CALL(enter, __func__);
    NEED(set);
    struct event_set *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return UNKNOWN;
    fresh->next = event_sets;
    *set = event_sets = fresh;
    return SUCCESS;
}

API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    CALL(enter, __func__);
    struct event_set **at = find_set(set);
    NEED(at);
    *at = set->next;
    free(set);
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types) {
    CALL(enter_gpu, __func__, device);
    NEED(types);
    *types = supported_events;
    return SUCCESS;
}

// A set hears of what happens after it registered, not of what the file already tells.
API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
    CALL(enter_gpu, __func__, device);
    NEED(find_set(set));
    if ((types & ~supported_events) != 0)
        return NOT_SUPPORTED;
    set->registered[call.index] = true;
    set->types[call.index] |= types;
    for (int i = 0; i < state->event_count; i++) {
        const struct event *event = &state->events[i];
        if (event->gpu == call.index && event->seq > set->delivered[call.index])
            set->delivered[call.index] = event->seq;
    }
    return SUCCESS;
}

// The undelivered event with the lowest number, GPU_IS_LOST when a registered GPU is gone, TIMEOUT for nothing.
static nvmlReturn_t next_event(struct event_set *set, nvmlEventData_t *data) {
    const struct event *next = NULL;
    for (int i = 0; i < state->event_count; i++) {
        const struct event *event = &state->events[i];
        if ((set->types[event->gpu] & EVENT_XID) != 0 && event->seq > set->delivered[event->gpu] &&
            (next == NULL || event->seq < next->seq))
            next = event;
    }
    if (next != NULL) {
        set->delivered[next->gpu] = next->seq;
        *data = (nvmlEventData_t){&handles[next->gpu][0], EVENT_XID, (unsigned long long)next->xid, ~0u, ~0u};
        return SUCCESS;
    }
    for (int i = 0; i < MAX_GPUS; i++)
        if (set->registered[i] && (i >= state->gpu_count || strcmp(state->gpus[i].health, "lost") == 0))
            return GPU_IS_LOST;
    return TIMEOUT;
}

API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms) {
    const int64_t deadline = clock_us(CLOCK_MONOTONIC) + timeout_ms * INT64_C(1000);
    for (;;) {
        {
            CALL(enter, __func__);
            NEED(find_set(set));
            NEED(data);
            nvmlReturn_t result = next_event(set, data);
            if (result != TIMEOUT)
                return result;
        }
        int64_t left_ms = (deadline - clock_us(CLOCK_MONOTONIC) + 999) / 1000;
        if (left_ms <= 0)
            return TIMEOUT;
        sleep_ms(left_ms < EVENT_POLL_MS ? left_ms : EVENT_POLL_MS);
    }
}
