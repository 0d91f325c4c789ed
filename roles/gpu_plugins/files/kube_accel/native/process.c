// SPDX-License-Identifier: Apache-2.0
// What belongs to this process: memory a forked child does not inherit, time, short locks, one line for the person who
// reads stderr.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shim.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

static void *made(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED && !madvise(memory, bytes, MADV_WIPEONFORK)) return memory;
    say("GPU memory is refused: no memory that a forked child does not inherit (Linux 4.14): %s", strerror(errno));
    if (memory != MAP_FAILED) munmap(memory, bytes);
    return NULL;
}

void *wiped(void **place, size_t bytes) {
    void *memory = __atomic_load_n(place, __ATOMIC_ACQUIRE), *none = NULL;
    if (memory || !(memory = made(bytes))) return memory;
    if (__atomic_compare_exchange_n(place, &none, memory, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return memory;
    munmap(memory, bytes);
    return none;
}

// Whether descriptor 2 is for people to read: a program may have closed it, and have a file of its own there since.
static bool is_stderr(void) {
    struct stat status;
    int flags = fcntl(2, F_GETFL);
    if (flags < 0 || syscall(SYS_fstat, 2, &status)) return false;
    return S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode) ||
           (S_ISREG(status.st_mode) && (flags & O_ACCMODE) == O_WRONLY);
}

// A reader who is gone ends nobody.
static void write_line(const char *line, size_t length) {
    sigset_t pipe, before, pending;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    sigpending(&pending);
    sigprocmask(SIG_BLOCK, &pipe, &before);
    bool broken = write(2, line, length) < 0 && errno == EPIPE;
    if (broken && !sigismember(&pending, SIGPIPE)) sigtimedwait(&pipe, NULL, &(struct timespec){0});
    sigprocmask(SIG_SETMASK, &before, NULL);
}

void say(const char *format, ...) {
    static const char *said[32];
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        const char *none = NULL;
        if (__atomic_compare_exchange_n(&said[i], &none, format, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) break;
        if (none == format) return;
    }
    char line[512] = "kube-accel: ";
    va_list arguments;
    va_start(arguments, format);
    int length = 12 + vsnprintf(line + 12, sizeof line - 13, format, arguments);
    va_end(arguments);
    if (length > (int)sizeof line - 2) length = sizeof line - 2;
    line[length++] = '\n';
    if (is_stderr()) write_line(line, (size_t)length);
}

// libc's own clock_gettime is newer than GLIBC_2.2.5, and a system call costs ten times as much.
uint64_t now_ns(void) {
    static int (*clock)(clockid_t, struct timespec *);
    int (*read)(clockid_t, struct timespec *) = __atomic_load_n(&clock, __ATOMIC_RELAXED);
    struct timespec now = {0};
    if (!read && (read = (__typeof__(read))real_symbol("clock_gettime")))
        __atomic_store_n(&clock, read, __ATOMIC_RELAXED);
    if (read) read(CLOCK_MONOTONIC, &now);
    else syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

bool spin_try(uint32_t *lock) { return !__atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE); }

void spin_lock(uint32_t *lock) {
    for (unsigned tries = 1; !spin_try(lock); tries++)
        if (tries % 64 == 0) sched_yield();
}

void spin_unlock(uint32_t *lock) { __atomic_store_n(lock, 0, __ATOMIC_RELEASE); }
