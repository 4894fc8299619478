/* permute.h - a keyed permutation of 0 … n−1 that is computed, not stored.
 *
 * A Feistel network whose round function is Philox (schema/philox.h) permutes
 * the smallest power of two that holds n; a value outside is sent through again
 * until it falls inside (cycle-walking), less than twice on average. Where i
 * goes depends on (n, seed, cycle, epoch, purpose) and i alone: there is no
 * state to save, and any place in the order is reached at the same cost. */
#pragma once
#include <stdint.h>

struct permutation {
    uint64_t n;
    int left, right; /* bits of the two halves */
    uint32_t key[2], epoch, cycle, purpose;
};

/* n ≥ 0. Different purposes under the same key are different permutations. */
void permute_init(struct permutation *p, int64_t n, int64_t seed, int64_t cycle,
                  int64_t epoch, int purpose);
/* 0 ≤ i < n. */
int64_t permute_at(const struct permutation *p, int64_t i);
