/* ladder.h - how long records are, and the few sizes to pad them to.
 *
 * A micro-batch is padded to the longest of its records, and from there to the
 * smallest size of a ladder that holds it: the fewer sizes, the fewer distinct
 * shapes, and the more entries that hold nothing. Which K sizes waste least is
 * a question to the distribution of the longest of `batch` records drawn at
 * random, F(x)^batch for lengths with the distribution F: it is answered
 * exactly, by dynamic programming. What is longer than the last size is padded
 * to its own length, never cut; a minimum ("stable") is a ladder of one. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "schema/err.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LADDER_SIZES_MAX 64
#define LADDER_LENGTH_MAX (1 << 16) /* of a size, as in runtime.padding */

/* How many records have which length along one dimension. All-zero is empty.
 * Exact up to LADDER_LENGTH_MAX; above that lengths are told apart to one part
 * in 256, so that memory is bounded (some 600 KB) whatever the records are. */
struct lengths {
    int64_t *count; /* by bin: lengths_bin */
    int n;          /* bins there is room for */
    int64_t records, sum;
    int max; /* exact */
};

/* `times` records of that length. 0, or -1 when memory is short. */
int lengths_add(struct lengths *l, int length, int64_t times);
/* All of `from` too. */
int lengths_merge(struct lengths *l, const struct lengths *from);
void lengths_release(struct lengths *l);

/* Bins in order: `bin` from 0 to l->n - 1 holds l->count[bin] records of at most
 * this length (of exactly it, up to LADDER_LENGTH_MAX). */
int lengths_of_bin(const struct lengths *l, int bin);
/* The least length that `fraction` of the records do not exceed; 0: no records.
 * fraction 1 is the maximum. */
int lengths_percentile(const struct lengths *l, double fraction);

/* What a batch whose longest record has `length` entries is padded to. Never
 * less than 1. */
int ladder_size(const int *sizes, int n, int length);
/* The length that a micro-batch of `batch` records drawn at random is padded to,
 * on average. n 0: to its longest record ("dynamic"). */
double ladder_padded(const struct lengths *l, int batch, const int *sizes,
                     int n);
/* The at most k (1 … LADDER_SIZES_MAX) sizes, ascending, for which ladder_padded
 * is least; the last one holds the longest record (up to LADDER_LENGTH_MAX).
 * Their number (0: no records), or ERR_NOMEM. */
int ladder_choose(const struct lengths *l, int batch, int k, int *ret_sizes,
                  struct err *err);

#ifdef __cplusplus
}
#endif
