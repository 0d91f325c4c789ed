// SPDX-License-Identifier: Apache-2.0
//
// Devices from the topology file, contexts, and this process's place on the cards.

#include "simcuda.h"

#include <stdio.h>
#include <sched.h>

static pthread_mutex_t big = PTHREAD_MUTEX_INITIALIZER;
static struct device devices[CARDS];
static int device_count, driver_version;
static bool initialized, forked;
static CUcontext contexts;
static __thread CUcontext stack[MAX_DEPTH];
static __thread int depth;

void lock_all(void) {
    pthread_mutex_lock(&big);
}

void unlock_all(void) {
    pthread_mutex_unlock(&big);
}

CUresult ready(void) {
    return initialized && !forked ? SUCCESS : NOT_INITIALIZED;
}

// ---------------------------------------------------------------- the topology file

static int64_t number_after(const char *line, const char *key) {
    const char *found = strstr(line, key);
    if (found == NULL)
        return 0;
    char *end;
    int64_t value = strtoll(found + strlen(key), &end, 0);
    return *end == 'G' ? value << 30 : *end == 'M' ? value << 20 : *end == 'K' ? value << 10 : value;
}

static void text_after(const char *line, const char *key, char *out, size_t size) {
    const char *found = strstr(line, key);
    size_t length = 0;
    if (found != NULL) {
        found += strlen(key);
        const char *ends = *found == '"' ? "\"" : " \t\n";
        found += *found == '"';
        length = strcspn(found, ends);
        length = length < size ? length : size - 1;
        memcpy(out, found, length);
    }
    out[length] = '\0';
}

static bool parse_uuid(const char *text, CUuuid *uuid) {
    int at = 0;
    for (text += strncmp(text, "GPU-", 4) == 0 ? 4 : 0; *text != '\0' && at < 16; text += 2) {
        text += *text == '-';
        unsigned byte;
        if (sscanf(text, "%2x", &byte) != 1)
            return false;
        uuid->bytes[at++] = (unsigned char)byte;
    }
    return at == 16;
}

static void read_gpu(const char *line, struct cards *cards, int index, struct device *device) {
    char text[96];
    *device = (struct device){.total = number_after(line, " mem="), .card = &cards->cards[index]};
    device->taken = number_after(line, " reserved=") + number_after(line, " used=");
    text_after(line, " model=", device->name, sizeof device->name);
    text_after(line, " pci=", device->pci, sizeof device->pci);
    text_after(line, " cc=", text, sizeof text);
    sscanf(text, "%d.%d", &device->major, &device->minor);
    text_after(line, " uuid=", text, sizeof text);
    parse_uuid(text, &device->uuid);
}

// Leaves only the devices a comma-separated list of numbers or uuids names, in its order, up to the first bad word.
static void keep_visible(const char *wanted) {
    struct device all[CARDS];
    int count = device_count;
    memcpy(all, devices, sizeof all);
    for (device_count = 0; *wanted != '\0'; wanted += strcspn(wanted, ",") + (wanted[strcspn(wanted, ",")] == ',')) {
        CUuuid uuid;
        int index = 0;
        if (strncmp(wanted, "GPU-", 4) == 0 && parse_uuid(wanted, &uuid))
            while (index < count && memcmp(&all[index].uuid, &uuid, sizeof uuid) != 0)
                index++;
        else if (sscanf(wanted, "%d", &index) != 1)
            return;
        if (index < 0 || index >= count || device_count == CARDS)
            return;
        devices[device_count++] = all[index];
    }
}

static CUresult read_topology(void) {
    const char *path = getenv("GPUSIM_FILE");
    FILE *file = path != NULL ? fopen(path, "re") : NULL;
    struct cards *cards = file != NULL ? map_cards(path) : NULL;
    if (cards == NULL) {
        fprintf(stderr, "simcuda: GPUSIM_FILE=%s: %s\n", path != NULL ? path : "", strerror(errno));
        if (file != NULL)
            fclose(file);
        return NO_DEVICE;
    }
    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, file) >= 0) {
        int64_t gpu;
        if (strncmp(line, "system ", 7) == 0)
            driver_version = strstr(line, "driver=none") != NULL ? 0 : (int)number_after(line, " cuda=");
        else if (strncmp(line, "gpu ", 4) == 0 && device_count < CARDS) {
            read_gpu(line, cards, device_count, &devices[device_count]);
            device_count++;
        } else if (strncmp(line, "proc ", 5) == 0 && (gpu = strtoll(line + 5, NULL, 0)) >= 0 && gpu < device_count)
            devices[gpu].taken += number_after(line, " mem=");
    }
    free(line);
    fclose(file);
    if (getenv("GPUSIM_VISIBLE") != NULL)
        keep_visible(getenv("GPUSIM_VISIBLE"));
    if (getenv("CUDA_VISIBLE_DEVICES") != NULL)
        keep_visible(getenv("CUDA_VISIBLE_DEVICES"));
    return device_count > 0 && driver_version > 0 ? SUCCESS : NO_DEVICE;
}

static void after_fork(void) {
    pthread_mutex_init(&big, NULL);
    forked = initialized;
}

API CUresult cuInit(unsigned flags) {
    if (flags != 0)
        return INVALID_VALUE;
    lock_all();
    CUresult result = forked ? NOT_INITIALIZED : SUCCESS;
    if (result == SUCCESS && !initialized) {
        device_count = 0;
        result = read_topology();
        initialized = result == SUCCESS;
        if (initialized)
            pthread_atfork(NULL, NULL, after_fork);
    }
    unlock_all();
    return result;
}

// Programs ask before cuInit, and where there is no GPU.
static int version_of_topology(void) {
    const char *path = getenv("GPUSIM_FILE");
    FILE *file = path != NULL ? fopen(path, "re") : NULL;
    if (file == NULL)
        return 0;
    char *line = NULL;
    size_t size = 0;
    int version = 0;
    while (version == 0 && getline(&line, &size, file) >= 0)
        if (strncmp(line, "system ", 7) == 0)
            version = (int)number_after(line, " cuda=");
    free(line);
    fclose(file);
    return version;
}

API CUresult cuDriverGetVersion(int *version) {
    NEED(version);
    const int told = driver_version > 0 ? driver_version : version_of_topology();
    *version = told > 0 ? told : 13000;
    return SUCCESS;
}

// ---------------------------------------------------------------- devices

struct device *device_of(CUdevice ordinal) {
    return ordinal >= 0 && ordinal < device_count ? &devices[ordinal] : NULL;
}

struct device *device_at(const CUmemLocation *location) {
    switch (location->type) {
    case LOCATION_DEVICE: return device_of(location->id);
    case LOCATION_DOMAIN: return (location->id & 0xff00) == 0 ? device_of(location->id & 0xff) : NULL;  // each has one
    default: return NULL;
    }
}

CUdevice ordinal_of(const struct device *device) {
    return (CUdevice)(device - devices);
}

#define ENTER_DEVICE(ordinal)                   \
    ENTER;                                      \
    struct device *device = device_of(ordinal); \
    if (device == NULL)                         \
        return INVALID_DEVICE

API CUresult cuDeviceGetCount(int *count) {
    ENTER;
    NEED(count);
    *count = device_count;
    return SUCCESS;
}

API CUresult cuDeviceGet(CUdevice *out, int ordinal) {
    ENTER_DEVICE(ordinal);
    NEED(out);
    *out = ordinal_of(device);
    return SUCCESS;
}

API CUresult cuDeviceGetName(char *name, int length, CUdevice ordinal) {
    ENTER_DEVICE(ordinal);
    NEED(name);
    NEED(length > 0);
    snprintf(name, (size_t)length, "%s", device->name);
    return SUCCESS;
}

API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice ordinal) {
    ENTER_DEVICE(ordinal);
    NEED(uuid);
    *uuid = device->uuid;
    return SUCCESS;
}

API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice ordinal) {
    return cuDeviceGetUuid_v2(uuid, ordinal);
}

API CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice ordinal) {
    ENTER_DEVICE(ordinal);
    NEED(text);
    NEED(length > 0);
    snprintf(text, (size_t)length, "%s", device->pci);
    return SUCCESS;
}

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal) {
    ENTER_DEVICE(ordinal);
    NEED(bytes);
    *bytes = (size_t)device->total;
    return SUCCESS;
}

API CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice ordinal) {
    ENTER_DEVICE(ordinal);
    NEED(bytes);
    *bytes = device->total > UINT32_MAX ? UINT32_MAX : (unsigned)device->total;
    return SUCCESS;
}

API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice ordinal) {
    ENTER_DEVICE(ordinal);
    NEED(value);
    return attribute_of(device, attribute, value);
}

// ---------------------------------------------------------------- memory and time on the card

static CUresult attach(struct device *device) {
    if (device->tenant != NULL)
        return SUCCESS;
    struct card *card = device->card;
    lock_card(card);
    advance_card(card, monotonic_ns());
    sweep_card(card);
    int place = 0;
    while (place < TENANTS && card->tenants[place].pid != 0)
        place++;
    if (place < TENANTS) {
        device->tenant = &card->tenants[place];
        *device->tenant = (struct tenant){.pid = getpid(), .start_time = process_start_time(getpid())};
        card->highest = place + 1 > card->highest ? place + 1 : card->highest;
    }
    unlock_card(card);
    return place < TENANTS ? SUCCESS : OPERATING_SYSTEM;
}

static int64_t used_on(const struct card *card) {
    int64_t sum = 0;
    for (int i = 0; i < card->highest; i++)
        sum += card->tenants[i].used;
    return sum;
}

CUresult take_memory(struct device *device, int64_t bytes) {
    TRY(attach(device));
    lock_card(device->card);
    const int64_t room = device->total - device->taken;
    bool fits = bytes <= room - used_on(device->card);
    if (!fits) {
        sweep_card(device->card);
        fits = bytes <= room - used_on(device->card);
    }
    if (fits)
        device->tenant->used += bytes;
    if (used_on(device->card) > device->card->peak) {
        sweep_card(device->card);
        int64_t used = used_on(device->card);
        device->card->peak = used > device->card->peak ? used : device->card->peak;
    }
    unlock_card(device->card);
    return fits ? SUCCESS : OUT_OF_MEMORY;
}

void give_memory(struct device *device, int64_t bytes) {
    lock_card(device->card);
    device->tenant->used -= bytes;
    unlock_card(device->card);
}

API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    ENTER_CONTEXT;
    NEED(free_bytes);
    NEED(total);
    struct device *device = context->device;
    lock_card(device->card);
    sweep_card(device->card);
    int64_t left = device->total - device->taken - used_on(device->card);
    unlock_card(device->card);
    *free_bytes = left > 0 ? (size_t)left : 0;
    *total = (size_t)device->total;
    return SUCCESS;
}

API CUresult cuMemGetInfo(unsigned *free_bytes, unsigned *total) {
    size_t wide_free, wide_total;
    NEED(free_bytes);
    NEED(total);
    TRY(cuMemGetInfo_v2(&wide_free, &wide_total));
    *free_bytes = wide_free > UINT32_MAX ? UINT32_MAX : (unsigned)wide_free;
    *total = wide_total > UINT32_MAX ? UINT32_MAX : (unsigned)wide_total;
    return SUCCESS;
}

void let_time_pass(struct device *device) {
    lock_card(device->card);
    advance_card(device->card, monotonic_ns());
    unlock_card(device->card);
}

// Alone on the card it would take that long; with others it takes another look.
CUresult wait_for(struct device *device, int64_t progress) {
    for (;;) {
        let_time_pass(device);
        int64_t left = progress - device->tenant->progress;
        if (left <= 0)
            return SUCCESS;
        unlock_all();
        nanosleep(&(struct timespec){left / 1000000000, left % 1000000000}, NULL);
        lock_all();
        TRY(ready());
    }
}

// ---------------------------------------------------------------- contexts

static CUresult new_context(CUcontext *out, unsigned flags, struct device *device) {
    TRY(take_memory(device, CONTEXT_BYTES));
    CUcontext context = calloc(1, sizeof *context);
    if (context == NULL)
        return OPERATING_SYSTEM;
    *context = (struct context){.next = contexts, .device = device, .flags = flags, .attached = 1, .alive = true};
    *out = contexts = context;
    return SUCCESS;
}

// A dead context stays in the list: its handle must never again be somebody else's.
static void end_context(CUcontext context) {
    context->alive = false;
    for (CUstream stream = context->streams; stream != NULL; stream = stream->next)
        stream->alive = false;
    forget_memory_of(context);
    give_memory(context->device, CONTEXT_BYTES);
}

bool context_lives(CUcontext wanted) {
    CUcontext context = contexts;
    while (context != NULL && context != wanted)
        context = context->next;
    return context != NULL && context->alive;
}

CUresult current_context(CUcontext *context) {
    if (depth == 0 || stack[depth - 1] == NULL)
        return INVALID_CONTEXT;
    *context = stack[depth - 1];
    return (*context)->alive ? SUCCESS : CONTEXT_IS_DESTROYED;
}

static CUresult push(CUcontext context) {
    if (depth == MAX_DEPTH)
        return INVALID_VALUE;
    stack[depth++] = context;
    return SUCCESS;
}

static CUresult create(CUcontext *out, unsigned flags, CUdevice ordinal) {
    ENTER_DEVICE(ordinal);
    NEED(out);
    TRY(new_context(out, flags, device));
    return push(*out);
}

API CUresult cuCtxCreate(CUcontext *out, unsigned flags, CUdevice ordinal) {
    return create(out, flags, ordinal);
}

API CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice ordinal) {
    return create(out, flags, ordinal);
}

API CUresult cuCtxCreate_v3(CUcontext *out, void *affinity, int count, unsigned flags, CUdevice ordinal) {
    return affinity != NULL || count != 0 ? NOT_SUPPORTED : create(out, flags, ordinal);
}

API CUresult cuCtxCreate_v4(CUcontext *out, void *parameters, unsigned flags, CUdevice ordinal) {
    return parameters != NULL ? NOT_SUPPORTED : create(out, flags, ordinal);
}

API CUresult cuCtxDestroy_v2(CUcontext context) {
    ENTER;
    if (!context_lives(context) || context == context->device->primary)
        return INVALID_CONTEXT;
    end_context(context);
    if (depth > 0 && stack[depth - 1] == context)
        depth--;
    return SUCCESS;
}

API CUresult cuCtxDestroy(CUcontext context) {
    return cuCtxDestroy_v2(context);
}

API CUresult cuGLCtxCreate(CUcontext *out, unsigned flags, CUdevice ordinal) {
    return create(out, flags, ordinal);
}

API CUresult cuGLCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice ordinal) {
    return create(out, flags, ordinal);
}

API CUresult cuVDPAUCtxCreate(CUcontext *out, unsigned flags, CUdevice ordinal, unsigned vdpau, void *get) {
    (void)vdpau, (void)get;
    return create(out, flags, ordinal);
}

API CUresult cuVDPAUCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice ordinal, unsigned vdpau, void *get) {
    return cuVDPAUCtxCreate(out, flags, ordinal, vdpau, get);
}

API CUresult cuCtxAttach(CUcontext *out, unsigned flags) {
    ENTER_CONTEXT;
    NEED(out);
    NEED(flags == 0);
    context->attached++;
    *out = context;
    return SUCCESS;
}

API CUresult cuCtxDetach(CUcontext wanted) {
    {
        ENTER_CONTEXT;
        if (wanted != context || context == context->device->primary)
            return INVALID_CONTEXT;
        if (--context->attached > 0)
            return SUCCESS;
    }
    return cuCtxDestroy_v2(wanted);
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice ordinal) {
    ENTER_DEVICE(ordinal);
    NEED(out);
    if (device->primary == NULL)
        TRY(new_context(&device->primary, device->primary_flags, device));
    device->retained++;
    *out = device->primary;
    return SUCCESS;
}

static CUresult drop_primary(CUdevice ordinal, bool all) {
    ENTER_DEVICE(ordinal);
    if (device->primary == NULL)
        return all ? SUCCESS : INVALID_CONTEXT;
    if (!all && --device->retained > 0)
        return SUCCESS;
    end_context(device->primary);
    device->primary = NULL;
    device->retained = 0;
    return SUCCESS;
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) {
    return drop_primary(ordinal, false);
}

API CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal) {
    return drop_primary(ordinal, false);
}

API CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal) {
    return drop_primary(ordinal, true);
}

API CUresult cuDevicePrimaryCtxReset(CUdevice ordinal) {
    return drop_primary(ordinal, true);
}

API CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned *flags, int *active) {
    ENTER_DEVICE(ordinal);
    NEED(flags);
    NEED(active);
    *flags = device->primary_flags;
    *active = device->primary != NULL;
    return SUCCESS;
}

API CUresult cuCtxGetCurrent(CUcontext *context) {
    TRY(ready());
    NEED(context);
    *context = depth > 0 ? stack[depth - 1] : NULL;
    return SUCCESS;
}

API CUresult cuCtxSetCurrent(CUcontext context) {
    ENTER;
    if (context != NULL && !context_lives(context))
        return INVALID_CONTEXT;
    depth -= depth > 0;
    return context != NULL ? push(context) : SUCCESS;
}

API CUresult cuCtxPushCurrent_v2(CUcontext context) {
    ENTER;
    return context_lives(context) ? push(context) : INVALID_CONTEXT;
}

API CUresult cuCtxPushCurrent(CUcontext context) {
    return cuCtxPushCurrent_v2(context);
}

API CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    ENTER;
    if (depth == 0)
        return INVALID_CONTEXT;
    depth--;
    if (context != NULL)
        *context = stack[depth];
    return SUCCESS;
}

API CUresult cuCtxPopCurrent(CUcontext *context) {
    return cuCtxPopCurrent_v2(context);
}

API CUresult cuCtxGetDevice(CUdevice *device) {
    ENTER_CONTEXT;
    NEED(device);
    *device = ordinal_of(context->device);
    return SUCCESS;
}

API CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context) {
    if (context == NULL)
        return cuCtxGetDevice(device);
    ENTER;
    NEED(device);
    if (!context_lives(context))
        return INVALID_CONTEXT;
    *device = ordinal_of(context->device);
    return SUCCESS;
}

// ---------------------------------------------------------------- errors

#define ERRORS(E)                                                                                                    \
    E(SUCCESS, "no error") E(INVALID_VALUE, "invalid argument") E(OUT_OF_MEMORY, "out of memory")                    \
    E(NOT_INITIALIZED, "initialization error") E(NO_DEVICE, "no CUDA-capable device is detected")                    \
    E(INVALID_DEVICE, "invalid device ordinal") E(INVALID_CONTEXT, "invalid device context")                         \
    E(INVALID_HANDLE, "invalid resource handle") E(NOT_FOUND, "named symbol not found")                              \
    E(NOT_READY, "device not ready") E(NOT_SUPPORTED, "operation not supported")

API CUresult cuGetErrorName(CUresult error, const char **text) {
    NEED(text);
#define NAME(code, words) if (error == code) { *text = "CUDA_" #code; if (code != SUCCESS) *text = "CUDA_ERROR_" #code; return SUCCESS; }
    ERRORS(NAME)
    *text = NULL;
    return INVALID_VALUE;
}

API CUresult cuGetErrorString(CUresult error, const char **text) {
    NEED(text);
#define WORDS(code, words) if (error == code) { *text = words; return SUCCESS; }
    ERRORS(WORDS)
    *text = NULL;
    return INVALID_VALUE;
}
