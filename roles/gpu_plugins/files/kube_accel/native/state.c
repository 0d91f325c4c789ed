// SPDX-License-Identifier: Apache-2.0
// The container's account as a mapped file, the slot of this process in it, and what becomes of slots whose process has
// died.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim.h"

static struct { // inherited by a forked child
    struct ka_state *state;
    int file;
    dev_t device; // of the file: the program may close our descriptor and open something else by its number
    ino_t inode;
} shared;

static struct process { // not inherited
    uint32_t lock, sweeping;
    struct ka_slot *slot;
} *process(void) {
    static void *memory;
    return wiped(&memory, sizeof(struct process));
}

#define OUT_OF_THE_WAY 4000 // of programs that close all descriptors up to some number

// Never closed again once mapped: closing any descriptor of a file drops the locks this process holds on it.
static bool open_file(void) {
    const char *path = policy_path(KA_STATE_PATH, "KUBE_ACCEL_STATE");
    struct stat status;
    shared.file = open(path, O_RDWR | O_CLOEXEC);
    int high = shared.file < 0 ? -1 : fcntl(shared.file, F_DUPFD_CLOEXEC, OUT_OF_THE_WAY);
    if (high >= 0) {
        close(shared.file);
        shared.file = high;
    }
    if (shared.file >= 0 && !syscall(SYS_fstat, shared.file, &status)) {
        shared.device = status.st_dev;
        shared.inode = status.st_ino;
        return true;
    }
    say("GPU memory is refused: account %s: %s", path, strerror(errno));
    return false;
}

static bool same_file(void) {
    struct stat status;
    return !syscall(SYS_fstat, shared.file, &status) && status.st_dev == shared.device && status.st_ino == shared.inode;
}

static struct ka_state *map_file(void) {
    if (lseek(shared.file, 0, SEEK_END) < (off_t)sizeof(struct ka_state)) {
        say("GPU memory is refused: the account %s is too short", KA_STATE_PATH);
        return NULL;
    }
    struct ka_state *state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, shared.file, 0);
    if (state == MAP_FAILED) {
        say("GPU memory is refused: the account cannot be mapped: %s", strerror(errno));
        return NULL;
    }
    if (!memcmp(state->magic, KA_STATE_MAGIC, sizeof state->magic) && state->layout == KA_LAYOUT &&
        state->slot_count == KA_SLOTS)
        return state;
    say("GPU memory is refused: the account %s has a layout this build does not know", KA_STATE_PATH);
    munmap(state, sizeof *state);
    return NULL;
}

struct ka_state *state_map(void) {
    struct ka_state *state = __atomic_load_n(&shared.state, __ATOMIC_ACQUIRE);
    struct process *mine = state ? NULL : process();
    if (!mine) return state;
    spin_lock(&mine->lock);
    state = shared.state;
    if (!state && open_file() && !(state = map_file())) close(shared.file);
    __atomic_store_n(&shared.state, state, __ATOMIC_RELEASE);
    spin_unlock(&mine->lock);
    return state;
}

struct identity {
    uint64_t start_time, stack;
};

// False: no such process, or one that has ended and is not yet reaped, or /proc does not tell. Of one that was killed
// the first thread can be a zombie while another still runs, or still holds the driver's memory.
static bool identify(uint32_t pid, struct identity *identity) {
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0) close(file);
    if (length <= 0) return false;
    text[length] = 0;
    char *at = strrchr(text, ')');
    if (!at || at[1] == 0) return false;
    bool ended = at[2] == 'Z' || at[2] == 'X';
    for (int field = 2; at && field <= 28; field++) {
        if (field == 20 && strtoull(at, NULL, 10) > 1) ended = false;
        if (field == 22) identity->start_time = strtoull(at, NULL, 10);
        if (field == 28) identity->stack = strtoull(at, NULL, 10);
        at = strchr(at + 1, ' ');
    }
    return !ended;
}

static short byte_lock(short type, size_t slot, int command) {
    struct flock lock = {.l_type = type,
                         .l_whence = SEEK_SET,
                         .l_start = (off_t)(offsetof(struct ka_state, slot) + slot * sizeof(struct ka_slot)),
                         .l_len = 1};
    return fcntl(shared.file, command, &lock) ? -1 : lock.l_type;
}

// The lock says so also across PID namespaces; /proc says so also for a program that closed descriptors it did not
// open.
static bool dead(struct ka_state *state, size_t i) {
    const struct ka_slot *slot = &state->slot[i];
    uint32_t pid = __atomic_load_n(&slot->pid, __ATOMIC_RELAXED);
    struct identity now;
    if (__atomic_load_n(&slot->flags, __ATOMIC_ACQUIRE) != KA_SLOT_LIVE || byte_lock(F_WRLCK, i, F_GETLK) != F_UNLCK)
        return false;
    if (!identify(pid, &now)) return pid != (uint32_t)getpid();
    if (now.start_time != slot->start_time) return true;
    return now.stack && slot->stack && now.stack != slot->stack;
}

// `busy` keeps others from taking a half emptied slot for a consistent one.
static void bury(struct ka_state *state, size_t i) {
    struct ka_slot *slot = &state->slot[i];
    if (byte_lock(F_WRLCK, i, F_SETLK) < 0) return;
    if (dead(state, i)) {
        __atomic_store_n(&slot->busy, 1, __ATOMIC_SEQ_CST);
        for (int d = 0; d < KA_DEVICES; d++)
            account_drop(&state->device[d], __atomic_exchange_n(&slot->charged_bytes[d], 0, __ATOMIC_SEQ_CST));
        __atomic_store_n(&slot->busy, 0, __ATOMIC_SEQ_CST);
        __atomic_store_n(&slot->flags, 0, __ATOMIC_RELEASE);
    }
    byte_lock(F_UNLCK, i, F_SETLK);
}

static size_t slots_used(struct ka_state *state) {
    uint32_t high = __atomic_load_n(&state->slots_high, __ATOMIC_ACQUIRE);
    return high < KA_SLOTS ? high : KA_SLOTS;
}

void state_sweep(void) {
    struct ka_state *state = state_map();
    struct process *mine = process();
    if (!state || !mine) return;
    spin_lock(&mine->sweeping);
    bool open = same_file();
    if (!open && (open = open_file()) && mine->slot) // the program closed it, and our lock with it
        byte_lock(F_WRLCK, (size_t)(mine->slot - state->slot), F_SETLK);
    for (size_t i = 0; open && i < slots_used(state); i++)
        if (&state->slot[i] != mine->slot && dead(state, i)) bury(state, i);
    spin_unlock(&mine->sweeping);
}

static struct ka_slot *claim(struct ka_state *state) {
    struct identity me = {0};
    identify((uint32_t)getpid(), &me);
    for (size_t i = 0; i < KA_SLOTS; i++) {
        struct ka_slot *slot = &state->slot[i];
        if (__atomic_load_n(&slot->flags, __ATOMIC_ACQUIRE) || byte_lock(F_WRLCK, i, F_SETLK) < 0) continue;
        if (__atomic_load_n(&slot->flags, __ATOMIC_ACQUIRE)) {
            byte_lock(F_UNLCK, i, F_SETLK);
            continue;
        }
        slot->pid = (uint32_t)getpid();
        slot->start_time = me.start_time;
        slot->stack = me.stack;
        uint32_t high = __atomic_load_n(&state->slots_high, __ATOMIC_RELAXED);
        while (high <= i && !__atomic_compare_exchange_n(&state->slots_high, &high, (uint32_t)i + 1, false,
                                                         __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {}
        __atomic_store_n(&slot->flags, KA_SLOT_LIVE, __ATOMIC_SEQ_CST);
        return slot;
    }
    return NULL;
}

struct ka_slot *state_slot(void) {
    struct process *mine = process();
    struct ka_slot *slot = mine ? __atomic_load_n(&mine->slot, __ATOMIC_ACQUIRE) : NULL;
    struct ka_state *state = mine && !slot ? state_map() : NULL;
    if (!state) return slot;
    state_sweep();
    spin_lock(&mine->lock);
    spin_lock(&mine->sweeping); // or another thread's sweep could let go of the place's lock
    slot = mine->slot ? mine->slot : claim(state);
    __atomic_store_n(&mine->slot, slot, __ATOMIC_RELEASE);
    spin_unlock(&mine->sweeping);
    spin_unlock(&mine->lock);
    if (!slot) say("GPU memory is refused: the account has no place for another process (%d)", KA_SLOTS);
    return slot;
}
