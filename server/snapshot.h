/* snapshot.h - the data of a cycle, frozen: which shards it reads, and a digest
 * of each block, so that what is trained on can be checked as it is read.
 *
 * Shards are a dataset's, or files below a root (root.h), in bytewise order of
 * their names. What stands in the database freezes at once, on the writer. Where
 * something must be read first (files of a root, a missing index of lines, which
 * of many records are held out for validation) a survey does so (survey.h), and
 * tells what it found:
 *
 *   {"shards": [names], "held_out": {"text's sha256": count}}   or
 *   {"error": {"code", "detail", "pointer", "shard", "offset"}}
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/digest.h"
#include "schema/err.h"
#include "schema/spec.h"
#include "server/store.h"

struct snapshot {
    json_t *data; /* as the claim has it, paths not placed yet */
    char digest[DIGEST_HEX];
    int64_t records;   /* of an epoch: without those held out, by weight */
    int64_t steps;     /* of the cycle */
    int64_t fresh;     /* records that no earlier cycle had; -1: not counted */
    int64_t take;      /* records it trains on; -1: all of its epochs */
    int64_t uses_left; /* when it has; with take */
    int64_t wanted;    /* > 0: it must wait for so many new records */
};
void snapshot_release(struct snapshot *s);

/* What would be frozen now, for the job (0: none yet). 1: *ret is filled; 0: a
 * survey must come first. ERR_INVALID with a pointer when nothing matches,
 * ERR_DATA with the shard when one is empty, or what the survey found. */
int snapshot_make(struct store *st, const struct spec *spec, int64_t job,
                  const json_t *survey, struct snapshot *ret, struct err *err);
/* What a survey could not read: as it said. 0: it could. */
int snapshot_refused(const json_t *survey, struct err *err);
/* The shards that a dry run looks at: like snapshot_make's, but files of a root
 * that nobody has read yet stand with their size alone ("records" null). On a
 * reader, for it lists a root's files. */
int snapshot_guess(struct store *st, const struct spec *spec,
                   struct snapshot *ret, struct err *err);
/* A snapshot's paths made absolute, for the claim. */
void snapshot_place(struct store *st, json_t *data);
void snapshot_place_one(const char *dir, json_t *shard);

/* For a survey: the shards as they are now, of a root those named. Of a dataset
 * the names are added to `names`. */
int snapshot_rows(struct store *st, const struct spec *spec, json_t *names,
                  json_t *shards, struct err *err);

/* Is there what the spec's data names: dataset, root, the dataset for
 * validation? ERR_INVALID with the pointer. */
int snapshot_check(struct store *st, const struct spec *spec, struct err *err);

/* Does training on it need each shard's index of lines? */
bool snapshot_needs_index(const struct spec *spec);
/* Entries of indexes that the writer itself reads to count what is held out; of
 * more records a survey counts. */
extern int64_t snapshot_count_at_once;
/* How many records of a text are held out, by its index below `dir`. 1; 0: there
 * is none, or it is damaged. */
int snapshot_count(const char *dir, const char *sha256, int64_t records,
                   double fraction, int64_t *ret, struct err *err);
/* Those of a shard that are trained on. */
int64_t snapshot_trained(const json_t *shard);
/* Optimizer steps of a cycle of `take` records (-1: all its epochs). */
int64_t snapshot_steps(const struct spec *spec, int64_t records, int64_t take);
