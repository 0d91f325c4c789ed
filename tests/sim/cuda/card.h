// SPDX-License-Identifier: Apache-2.0
//
// What processes that use the simulated GPUs share: a file beside the topology file, one `card` a GPU. Memory is
// counted by process; busy processes share a GPU's time evenly, as under time-slicing with a slice of no length.
// A process's `progress` is the GPU time it got so far; its work ends at values of that clock.

#ifndef SIM_CARD_H
#define SIM_CARD_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { CARDS = 16, TENANTS = 320, MARKS = 256, CARD_LAYOUT = 1 };
#define CARD_FILE_SUFFIX ".cuda"

// From `at` on, progress grew by one every `divisor` ns, or stood still where that is 0.
struct mark {
    int64_t at, progress, divisor;
};

struct tenant {
    int32_t pid;  // 0: free
    uint32_t captured_records;  // events recorded on a stream in capture
    uint64_t start_time;  // with pid: who it is
    int64_t used;
    int64_t progress, target;  // busy while progress < target
    int64_t launches, records;
    uint64_t marked;  // marks ever made
    struct mark marks[MARKS];
};

struct card {
    pthread_mutex_t lock;
    int64_t now;  // every tenant's progress is as of then
    int32_t highest;  // tenants from here on never were
    int64_t peak;  // the most that living processes ever used
    struct tenant tenants[TENANTS];
};

struct cards {
    uint32_t layout;
    uint32_t ready;
    struct card cards[CARDS];
};

static inline int64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

// When the process was started, in ticks since boot; 0 when there is none of this pid, or only its corpse. The first
// thread of a process that was killed can be a zombie while others still run.
static inline uint64_t process_start_time(int32_t pid) {
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    text[length > 0 ? length : 0] = '\0';
    const char *fields = strrchr(text, ')');
    char state;
    int threads;
    unsigned long long start;
    if (fields == NULL || sscanf(fields, ") %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %d %*s %llu",
                                 &state, &threads, &start) != 3)
        return 0;
    return (state == 'Z' || state == 'X') && threads <= 1 ? 0 : start;
}

static inline bool tenant_lives(const struct tenant *tenant) {
    return tenant->pid != 0 && process_start_time(tenant->pid) == tenant->start_time;
}

// The file of the topology at `path`, made on first use; NULL and errno when it cannot be.
static inline struct cards *map_cards(const char *path) {
    char name[4096];
    if (snprintf(name, sizeof name, "%s" CARD_FILE_SUFFIX, path) >= (int)sizeof name) {
        errno = ENAMETOOLONG;
        return NULL;
    }
    int file = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0)
        return NULL;
    fchmod(file, 0666);
    struct cards *cards = NULL;
    if (flock(file, LOCK_EX) == 0 && ftruncate(file, sizeof *cards) == 0) {
        cards = mmap(NULL, sizeof *cards, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (cards == MAP_FAILED)
            cards = NULL;
    }
    if (cards != NULL && !cards->ready) {
        pthread_mutexattr_t robust;
        pthread_mutexattr_init(&robust);
        pthread_mutexattr_setpshared(&robust, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
        for (int i = 0; i < CARDS; i++)
            pthread_mutex_init(&cards->cards[i].lock, &robust);
        cards->layout = CARD_LAYOUT;
        cards->ready = 1;
    }
    flock(file, LOCK_UN);  // the mapping would keep it
    close(file);
    return cards;
}

// Without sleeping: a waiter killed as it is woken can leave the others asleep, with nobody to wake them.
static inline void lock_card(struct card *card) {
    int code;
    while ((code = pthread_mutex_trylock(&card->lock)) == EBUSY)
        sched_yield();
    if (code == EOWNERDEAD)
        pthread_mutex_consistent(&card->lock);
}

static inline void unlock_card(struct card *card) {
    pthread_mutex_unlock(&card->lock);
}

static inline void mark_tenant(struct tenant *tenant, int64_t at, int64_t divisor) {
    struct mark *last = &tenant->marks[(tenant->marked + MARKS - 1) % MARKS];
    if (tenant->marked > 0 && last->divisor == divisor)
        return;
    tenant->marks[tenant->marked++ % MARKS] = (struct mark){at, tenant->progress, divisor};
}

// Frees the places of processes that ended, with all they held; the caller holds the lock. The pid goes last: a sweeper
// killed on its way leaves the rest to the next.
static inline void sweep_card(struct card *card) {
    for (int i = 0; i < card->highest; i++) {
        struct tenant *tenant = &card->tenants[i];
        if (tenant->pid == 0 || tenant_lives(tenant))
            continue;
        memset((char *)tenant + sizeof tenant->pid, 0, sizeof *tenant - sizeof tenant->pid);
        __atomic_store_n(&tenant->pid, 0, __ATOMIC_RELEASE);
    }
}

// Lets time pass until `now`; the caller holds the lock.
static inline void advance_card(struct card *card, int64_t now) {
    while (card->now < now) {
        int64_t busy = 0, least = INT64_MAX;
        for (int i = 0; i < card->highest; i++) {
            const struct tenant *tenant = &card->tenants[i];
            if (tenant->pid != 0 && tenant->progress < tenant->target) {
                busy++;
                least = tenant->target - tenant->progress < least ? tenant->target - tenant->progress : least;
            }
        }
        int64_t gain = busy == 0 ? 0 : (now - card->now) / busy < least ? (now - card->now) / busy : least;
        if (busy > 0 && gain == 0)
            return;  // less than a nanosecond each
        for (int i = 0; i < card->highest; i++) {
            struct tenant *tenant = &card->tenants[i];
            bool runs = tenant->pid != 0 && tenant->progress < tenant->target;
            if (tenant->pid != 0)
                mark_tenant(tenant, card->now, runs ? busy : 0);
            tenant->progress += runs ? gain : 0;
        }
        card->now = busy == 0 ? now : card->now + gain * busy;
    }
}

// When the tenant's progress reached this value, which it has; the caller holds the lock.
static inline int64_t time_of(const struct tenant *tenant, int64_t progress) {
    int64_t best = 0;
    for (uint64_t i = tenant->marked; i > 0 && tenant->marked - i < MARKS; i--) {
        const struct mark *mark = &tenant->marks[(i - 1) % MARKS];
        best = mark->at + (progress > mark->progress ? (progress - mark->progress) * mark->divisor : 0);
        if (mark->progress < progress)
            return best;
    }
    return best;
}

#endif
