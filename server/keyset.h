/* keyset.h - how many distinct 64-bit keys there are, in bounded memory.
 *
 * Keys are hashes: every bit is as good as any other. Beyond `max` slots a set
 * keeps every second key only, then every fourth, ...: from then on its count is
 * an estimate, good to some tenths of a percent, and keyset_exact says so. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct keyset {
    uint64_t *slot;
    size_t cap, max; /* powers of two; 8 bytes each */
    size_t n;        /* keys kept in slots */
    bool zero;       /* and the key 0, which marks a free slot */
    int thinned;     /* kept are keys whose highest bits, so many, are 0 */
};

/* 1: it is new; 0: it was there, or is not kept; -1: memory is short. A set that
 * was all-zero but for `max` is empty. */
int keyset_add(struct keyset *s, uint64_t key);
int64_t keyset_count(const struct keyset *s);
bool keyset_exact(const struct keyset *s);
void keyset_clear(struct keyset *s); /* memory kept */
void keyset_release(struct keyset *s);
