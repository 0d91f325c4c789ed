// SPDX-License-Identifier: Apache-2.0
// The container's GPU time: one budget a device in the shared account, filled by time at the rate of the share, drained
// by what its processes are measured to use.
#include "gate.h"

#define BURST         100 // ms of a whole GPU that a container which was idle may use at once, times its share
#define MOST_DEBT     10000 // ms
#define STEP          200000 // ns between two refills
#define IDLE_PERMILLE 50 // the others' use below which a GPU counts as otherwise idle
#define LOOK_AGAIN    500 // ms: feedback grows stale without the policy's changing
#define LEAST_SCALE   300

uint32_t gated_devices, gated_generation;
static uint32_t percent[KA_DEVICES], contended;
static uint64_t looked_at;

#define FORGET  1000 // ms without a claim after which the kept ones are history
#define LONGEST 100000 // ms of a claim; what runs longer was claimed while it ran
#define STEAL   10 // ms after which a claim's holder is taken for dead
#define CLAIMS  5
#define SPANS   256 // of one process and device
#define TOUCH   2000 // ns: closer ones are one. Times of events are this much apart where no time was.

enum { RAW_BUSY, RAW_THEN, THEN, SCALE_SEEN, HOLDER, CLAIMED_AT, CLAIMED }; // of ka_state_device.gate
_Static_assert(CLAIMED + CLAIMS == sizeof((struct ka_state_device *)0)->gate / 8, "all of it");

static struct ka_state_device *account(int index) {
    struct ka_state *state = state_map();
    return state ? &state->device[index] : NULL;
}

static uint64_t load(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }

static uint32_t scale_of(const struct ka_state_device *device) {
    uint32_t scale = (uint32_t)(load(&device->gate[SCALE_SEEN]) >> 32);
    return scale < LEAST_SCALE || scale > 1000 ? 1000 : scale;
}

// Under time-slicing the time between two events is the other containers' too. What NVML says we used, against what we
// measured since it last said so, is the part that was ours.
static void correct(int index, const struct ka_policy_device *policy, uint32_t generation, uint64_t now) {
    struct ka_state_device *device = account(index);
    uint64_t seen = device ? load(&device->gate[SCALE_SEEN]) : generation;
    if ((uint32_t)seen == generation) return;
    uint64_t raw = load(&device->gate[RAW_BUSY]), measured = raw - load(&device->gate[RAW_THEN]),
             passed = now - load(&device->gate[THEN]), wanted = 1000;
    if (policy->feedback_busy_permille != KA_UNKNOWN32 && policy->feedback_others_permille >= IDLE_PERMILLE &&
        measured / 20 > passed / 1000 && measured < UINT64_MAX / 1000)
        wanted = (uint64_t)policy->feedback_busy_permille * (passed / 1000) / (measured / 1000);
    if (wanted < LEAST_SCALE) wanted = LEAST_SCALE;
    if (wanted > 1000) wanted = 1000;
    uint64_t next = (scale_of(device) + wanted) / 2 << 32 | generation;
    if (!__atomic_compare_exchange_n(&device->gate[SCALE_SEEN], &seen, next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return;
    __atomic_store_n(&device->gate[RAW_THEN], raw, __ATOMIC_RELAXED);
    __atomic_store_n(&device->gate[THEN], now, __ATOMIC_RELAXED);
}

void budget_look(uint64_t now) {
    uint32_t generation = __atomic_load_n(policy_generation(), __ATOMIC_ACQUIRE), gated = 0, others = 0;
    for (int i = 0, count = policy_devices(); i < count; i++) {
        struct ka_policy_device policy;
        if (!policy_read(i, &policy) || policy.core_percent == 0 || policy.core_percent >= 100) continue;
        bool idle = policy.feedback_others_permille < IDLE_PERMILLE; // unknown is above
        uint32_t share =
            idle && policy.core_soft_percent > policy.core_percent ? policy.core_soft_percent : policy.core_percent;
        __atomic_store_n(&percent[i], share < 100 ? share : 100, __ATOMIC_RELAXED);
        gated |= 1u << i;
        others |= (uint32_t)(!idle && policy.feedback_others_permille != KA_UNKNOWN32) << i;
        correct(i, &policy, generation, now);
    }
    __atomic_store_n(&looked_at, now, __ATOMIC_RELAXED);
    __atomic_store_n(&contended, others, __ATOMIC_RELAXED);
    __atomic_store_n(&gated_devices, gated, __ATOMIC_RELAXED);
    __atomic_store_n(&gated_generation, generation, __ATOMIC_RELEASE);
}

// Adds to the budget and keeps it between the most debt and the burst, whatever stood there: the account is the
// tenant's to write.
static void add(struct ka_state_device *device, int64_t ns, int64_t most) {
    int64_t old = __atomic_load_n(&device->budget_ns, __ATOMIC_RELAXED), next;
    do {
        if (__builtin_add_overflow(old, ns, &next)) next = 0;
        if (next > most) next = most;
        if (next < -(int64_t)MOST_DEBT * MILLISECOND) next = -(int64_t)MOST_DEBT * MILLISECOND;
    } while (!__atomic_compare_exchange_n(&device->budget_ns, &old, next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

int64_t budget_left(int index, uint64_t now) {
    struct ka_state_device *device = account(index);
    if (!device) return 0;
    if (now - load(&looked_at) > (uint64_t)LOOK_AGAIN * MILLISECOND) budget_look(now);
    int64_t share = __atomic_load_n(&percent[index], __ATOMIC_RELAXED), burst = share * BURST * MILLISECOND / 100;
    uint64_t before = load(&device->refilled_at_ns), passed = now - before;
    if ((int64_t)passed < 0)
        passed = before == 0 ? UINT64_MAX : 0; // refilled by somebody later than `now`, or never yet
    if (before > now + MOST_DEBT * (uint64_t)MILLISECOND) passed = STEP; // a time that cannot be
    if (passed >= STEP &&
        __atomic_compare_exchange_n(&device->refilled_at_ns, &before, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        if (passed > 2000 * (uint64_t)MOST_DEBT * MILLISECOND) passed = 2000 * (uint64_t)MOST_DEBT * MILLISECOND;
        add(device, (int64_t)(passed / 100) * share, burst);
    }
    return share >= 100 ? burst : __atomic_load_n(&device->budget_ns, __ATOMIC_RELAXED);
}

bool budget_contended(int index) { return __atomic_load_n(&contended, __ATOMIC_RELAXED) >> index & 1; }

uint64_t budget_wait(int index, int64_t debt) {
    uint32_t share = __atomic_load_n(&percent[index], __ATOMIC_RELAXED);
    return (uint64_t)debt * 100 / (share ? share : 1);
}

// Claims are held for less than a microsecond. One that lasts is a dead process's, and taken; who does not get it soon
// goes without: nobody waits for another process.
static bool hold(struct ka_state_device *device) {
    for (int tries = 0; tries < 1000; tries++) {
        uint64_t now = now_ns(), holder = load(&device->gate[HOLDER]);
        if ((holder == 0 || holder > now || now - holder > (uint64_t)STEAL * MILLISECOND) &&
            __atomic_compare_exchange_n(&device->gate[HOLDER], &holder, now, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            return true;
    }
    return false;
}

// Of this time, what no other process of the container has claimed yet. The latest claims are kept as pairs of 32-bit
// numbers of 128 ns.
static uint64_t claim(struct ka_state_device *device, uint64_t from, uint64_t to, uint64_t now) {
    int32_t low = -(int32_t)((to >> 7) - (from >> 7)), high = 0; // all times against `to`
    uint64_t fresh = to - from;
    struct {
        int32_t from, to;
    } kept[CLAIMS + 1];
    int count = 0, at = 0;
    if (!hold(device)) return fresh;
    bool stale = now - load(&device->gate[CLAIMED_AT]) > (uint64_t)FORGET * MILLISECOND;
    for (int i = 0; i < CLAIMS && !stale; i++) {
        uint64_t word = load(&device->gate[CLAIMED + i]);
        int32_t begin = (int32_t)((uint32_t)(word >> 32) - (uint32_t)(to >> 7)),
                end = (int32_t)((uint32_t)word - (uint32_t)(to >> 7));
        if (!word || begin > end || end - begin > 1 << 30) continue;
        if (end < low - (TOUCH >> 7) || begin > high + (TOUCH >> 7)) {
            kept[count].from = begin;
            kept[count++].to = end;
            continue;
        }
        int32_t common = (end < high ? end : high) - (begin > low ? begin : low);
        uint64_t shared = common > 0 ? (uint64_t)common << 7 : 0;
        fresh = shared < fresh ? fresh - shared : 0;
        low = begin < low ? begin : low;
        high = end > high ? end : high;
    }
    while (at < count && kept[at].from < low) at++;
    for (int i = count++; i > at; i--) kept[i] = kept[i - 1];
    int32_t longest = (int32_t)((uint64_t)LONGEST * MILLISECOND >> 7);
    kept[at].from = high - low > longest ? high - longest : low;
    kept[at].to = high;
    int oldest = count > CLAIMS;
    for (int i = 0; i < CLAIMS; i++) {
        uint32_t base = (uint32_t)(to >> 7);
        uint64_t word = i + oldest < count ? (uint64_t)(base + (uint32_t)kept[i + oldest].from) << 32 |
                                                 (base + (uint32_t)kept[i + oldest].to)
                                           : 0;
        __atomic_store_n(&device->gate[CLAIMED + i], word, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&device->gate[CLAIMED_AT], now, __ATOMIC_RELAXED);
    __atomic_store_n(&device->gate[HOLDER], 0, __ATOMIC_RELEASE);
    return fresh;
}

// What this process has paid for lately, in order of time. Streams are read in any order and each lies behind the GPU by
// its own, so that many times between two others are still to come.
struct paid {
    uint32_t count;
    struct span {
        uint64_t from, to;
    } spans[SPANS];
};

static struct paid *paid(int index) {
    static void *memory;
    struct paid *all = wiped(&memory, sizeof(struct paid) * KA_DEVICES);
    return all ? &all[index] : NULL;
}

// Puts `span` in the place of `gone` ones.
static void replace(struct paid *paid, uint32_t at, uint32_t gone, struct span span) {
    if (!gone && paid->count == SPANS) { // without the oldest
        if (at == 0) return;
        for (uint32_t i = 1; i < at; i++) paid->spans[i - 1] = paid->spans[i];
        paid->spans[at - 1] = span;
        return;
    }
    if (!gone)
        for (uint32_t i = paid->count++; i > at; i--) paid->spans[i] = paid->spans[i - 1];
    else
        for (uint32_t i = at + gone; i < paid->count; i++) paid->spans[i + 1 - gone] = paid->spans[i];
    if (gone) paid->count -= gone - 1;
    paid->spans[at] = span;
}

// Of this time, what nobody of the container has paid for yet. One thread at a time.
static uint64_t fresh(struct ka_state_device *device, int index, uint64_t from, uint64_t to, uint64_t now) {
    struct paid *before = paid(index);
    if (!before) return claim(device, from, to, now);
    struct span span = {from, to}, *spans = before->spans;
    uint64_t sum = 0, at = from;
    uint32_t first = 0, next;
    while (first < before->count && spans[first].to + TOUCH < from) first++;
    for (next = first; next < before->count && spans[next].from <= to + TOUCH; next++) {
        uint64_t end = spans[next].from < to ? spans[next].from : to;
        if (end > at) sum += claim(device, at, end, now);
        if (spans[next].to > at) at = spans[next].to;
        if (spans[next].from < span.from) span.from = spans[next].from;
        if (spans[next].to > span.to) span.to = spans[next].to;
    }
    if (to > at) sum += claim(device, at, to, now);
    replace(before, first, next - first, span);
    return sum;
}

void budget_pay(int index, uint64_t from, uint64_t to, uint64_t now) {
    struct ka_state_device *device = account(index);
    if (!device || to <= from) return;
    if (to - from > (uint64_t)LONGEST * MILLISECOND) from = to - (uint64_t)LONGEST * MILLISECOND;
    uint64_t raw = fresh(device, index, from, to, now), used = raw * scale_of(device) / 1000;
    add(device, -(int64_t)used, (int64_t)BURST * MILLISECOND);
    __atomic_fetch_add(&device->gate[RAW_BUSY], raw, __ATOMIC_RELAXED);
    __atomic_fetch_add(&device->busy_ns, used, __ATOMIC_RELAXED);
}

void budget_count(int index, uint32_t launches, uint64_t throttled) {
    struct ka_state_device *device = account(index);
    if (!device) return;
    __atomic_fetch_add(&device->launches, launches, __ATOMIC_RELAXED);
    __atomic_fetch_add(&device->throttled_ns, throttled, __ATOMIC_RELAXED);
}
