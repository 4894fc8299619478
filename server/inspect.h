/* inspect.h - a look at a dataset: which census of it, and where it is kept.
 *
 * A census of all records takes as long as reading them does, so it is an errand
 * (errand.h), and what it found is kept in the table `censuses` under a digest
 * of what was counted: the shards' names and texts, the record description, the
 * size of micro-batches. Who just looks gets the beginnings of a few shards,
 * unless that is all there is. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/digest.h"
#include "schema/err.h"
#include "schema/record_desc.h"
#include "server/store.h"

#define INSPECT_SAMPLE_SHARDS 8
#define INSPECT_SAMPLE_BYTES ((int64_t)8 << 20)

struct inspect_shard {
    char *name, *path, *index; /* absolute */
    char sha256[DIGEST_HEX], form[8];
    int64_t bytes, records;
};

struct inspect {
    char *dir; /* the state folder */
    char *name;
    int64_t dataset;
    struct inspect_shard *v;
    int n;
    int64_t bytes, records;   /* of all */
    const char *described_by; /* "job", "dataset", or NULL: by nothing */
    struct record_desc desc;
    double policy_tolerance;
    int micro_batch;
    char of[DIGEST_HEX];
};

/* What there is to look at. job 0: by the dataset's own description, if it has
 * one. ERR_NOT_FOUND; ERR_INVALID at `job`. */
int inspect_new(struct store *st, const char *dataset, int64_t job,
                struct inspect **ret, struct err *err);
void inspect_free(struct inspect *x);

/* The census of all that was kept: 1 and *ret, or 0. */
int inspect_kept(struct store *st, const struct inspect *x, json_t **ret,
                 struct err *err);
/* Of the beginnings. */
int inspect_sample(const struct inspect *x, json_t **ret, struct err *err);
/* Of all. `step` hears how far it is, in bytes of *ret_all in all, and says
 * whether to go on; may be NULL. */
typedef bool inspect_step_fn(void *arg, int64_t done, int64_t all);
int inspect_whole(const struct inspect *x, inspect_step_fn *step, void *arg,
                  json_t **ret, struct err *err);
/* Keep it, and of the dataset's censuses the newest few. */
int inspect_keep(struct store *st, const struct inspect *x,
                 const json_t *census, int64_t now_ms, struct err *err);

/* For a terminal: the same as tables, without what only a plot can show. Caller
 * owns it. */
json_t *inspect_table(const json_t *answer);
