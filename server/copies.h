/* copies.h - the copies in DIR/copies that a frozen cycle reads in place of files
 * below a root (root.h).
 *
 * They are derived: one that is missing or damaged is made again by a survey
 * (survey.h), as long as the file still has the text that was frozen. A missing
 * one is noticed as a worker claims the cycle, a damaged one as a worker reads it:
 * whoever retries a job that failed for its data has its copies looked through. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/err.h"
#include "server/root.h"
#include "server/store.h"

/* Does a worker read a copy of this shard (as in a snapshot, not placed)? */
bool copies_is(const json_t *shard);
/* Those of a frozen cycle are added to `shards`. */
int copies_of(struct store *st, int64_t cycle, json_t *shards, struct err *err);
/* 1: one of them is not there. */
int copies_missing(struct store *st, int64_t cycle, struct err *err);
/* 1: the copy is there, and has the text that it should have; 0: not so. */
int copies_check(const char *dir, const json_t *shard, root_stop_fn *stop,
                 void *arg, struct err *err);
