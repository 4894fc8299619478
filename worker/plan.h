/* plan.h - the order of a shuffle over the whole data: which record is draw n.
 *
 * An epoch has as many slots as uses of records. Shards of one weight are a
 * group; a group of n records (those held out for validation left out) has
 * llround(n·w) slots: one for each record in each of floor(w) full passes, and
 * what remains goes to records chosen by a keyed permutation (permute.h), others
 * in each epoch. Another permutation, over all slots, is the order. A record is
 * then looked up in its shard's line index. So nothing is stored, and any draw of
 * any epoch is found at the same cost. Where records are held out, each shard's
 * index is read once, to know the rank of those that are not.
 *
 * One thread at a time. */
#pragma once
#include <jansson.h>
#include <stdint.h>
#include "schema/err.h"
#include "schema/spec.h"
#include "worker/shard.h"

struct plan;

/* `data` is the claim's that `shards` was opened from; both, and the spec, must
 * outlive it. ERR_DATA when its count of records is not the server's. */
int plan_new(const struct spec *spec, struct shards *shards, const json_t *data,
             int64_t cycle, struct plan **ret, struct err *err);
int64_t plan_draws(const struct plan *p); /* of an epoch */
void plan_epoch(struct plan *p, int64_t epoch);
/* The record of a draw, 0 ≤ draw < plan_draws(p). Its length is above
 * LINE_MAX_BYTES when the line is too long. */
int plan_ref(struct plan *p, int64_t draw, struct ref *ret, struct err *err);
void plan_free(struct plan *p);

/* An index's entry as a reference. */
struct ref plan_entry_ref(int shard, const struct line_entry *e);
