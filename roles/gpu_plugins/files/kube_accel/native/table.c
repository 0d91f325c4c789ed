// SPDX-License-Identifier: Apache-2.0
// What the program holds and what it was charged for it: a hash of chains, locked by shards, in memory of its own,
// since the program's malloc may be in the middle of something.
#include "shim.h"

#define CHAINS  65536
#define SHARDS  64
#define ENTRIES (1u << 22) // address space only; what is not used costs nothing

struct entry {
    uint64_t key;
    struct record record;
    uint32_t next; // index into entries; 0: none
    uint32_t kind;
};

struct table {
    uint32_t lock[SHARDS * 16]; // a cache line each
    uint32_t chain[CHAINS];
    uint32_t free[SHARDS];
    uint32_t used;
    struct entry entry[ENTRIES];
};

static struct table *table(void) {
    static void *memory;
    return wiped(&memory, sizeof(struct table));
}

static uint32_t chain_of(enum kind kind, uint64_t key) {
    return (uint32_t)(((key >> 8 | key << 56) + kind) * 0x9e3779b97f4a7c15u >> 48) % CHAINS;
}

static uint32_t *lock(struct table *table, uint32_t chain) {
    uint32_t *lock = &table->lock[chain % SHARDS * 16];
    spin_lock(lock);
    return lock;
}

static uint32_t *find(struct table *table, uint32_t chain, enum kind kind, uint64_t key) {
    uint32_t *at = &table->chain[chain];
    while (*at && (table->entry[*at].key != key || table->entry[*at].kind != kind)) at = &table->entry[*at].next;
    return at;
}

static uint32_t fresh(struct table *table, uint32_t shard) {
    uint32_t i = table->free[shard];
    if (i) {
        table->free[shard] = table->entry[i].next;
        return i;
    }
    i = __atomic_add_fetch(&table->used, 1, __ATOMIC_RELAXED);
    if (i < ENTRIES) return i;
    __atomic_fetch_sub(&table->used, 1, __ATOMIC_RELAXED);
    return 0;
}

static void drop_entry(struct table *table, uint32_t chain, uint32_t *at) {
    uint32_t i = *at;
    *at = table->entry[i].next;
    table->entry[i].next = table->free[chain % SHARDS];
    table->free[chain % SHARDS] = i;
}

bool table_put(enum kind kind, uint64_t key, struct record record) {
    struct table *all = table();
    if (!all) return false;
    uint32_t chain = chain_of(kind, key), *locked = lock(all, chain), *at = find(all, chain, kind, key), i = *at;
    struct record stale = {.index = -1};
    if (i) stale = all->entry[i].record; // freed in a way the shim did not see
    else if ((i = fresh(all, chain % SHARDS))) {
        all->entry[i] = (struct entry){.key = key, .kind = kind, .next = all->chain[chain]};
        all->chain[chain] = i;
    }
    if (i) all->entry[i].record = record;
    spin_unlock(locked);
    if (stale.pool < 0) account_release(stale.index, stale.bytes);
    return i != 0;
}

static bool look(enum kind kind, uint64_t key, struct record *record, bool take) {
    struct table *all = table();
    if (!all) return false;
    uint32_t chain = chain_of(kind, key), *locked = lock(all, chain), *at = find(all, chain, kind, key), i = *at;
    if (i) *record = all->entry[i].record;
    if (i && take) drop_entry(all, chain, at);
    spin_unlock(locked);
    return i != 0;
}

bool table_take(enum kind kind, uint64_t key, struct record *record) { return look(kind, key, record, true); }

bool table_has(enum kind kind, uint64_t key, struct record *record) { return look(kind, key, record, false); }

int table_hold(enum kind kind, uint64_t key, int more, struct record *last) {
    struct table *all = table();
    if (!all) return -1;
    uint32_t chain = chain_of(kind, key), *locked = lock(all, chain), *at = find(all, chain, kind, key), i = *at;
    int holders = i ? (int)(all->entry[i].record.holders += (uint32_t)more) : -1;
    if (holders == 0) {
        *last = all->entry[i].record;
        drop_entry(all, chain, at);
    }
    spin_unlock(locked);
    return holders;
}

void table_each(bool (*drop)(enum kind kind, uint64_t key, struct record *record, void *argument), void *argument) {
    struct table *all = table();
    for (uint32_t chain = 0; all && chain < CHAINS; chain++) {
        uint32_t *locked = lock(all, chain);
        for (uint32_t *at = &all->chain[chain]; *at;) {
            struct entry *entry = &all->entry[*at];
            if (drop(entry->kind, entry->key, &entry->record, argument)) drop_entry(all, chain, at);
            else at = &entry->next;
        }
        spin_unlock(locked);
    }
}
