/* dataset.h - named rows of shards, and what their records must look like.
 *
 * A shard is one text of JSON lines at DIR/datasets/<dataset>/<shard>, plain or
 * as zstd frames, published whole and never changed: another text under its name
 * is refused. Sizes and digests are those of the text. Shards stand in bytewise
 * order of their names. Once a dataset has a record description, what is
 * uploaded is checked against it. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/digest.h"
#include "schema/err.h"
#include "schema/spec.h"
#include "server/store.h"

struct intake_rules;
struct upload;

/* [A-Za-z0-9][A-Za-z0-9._-]{0,127} without "..". ERR_INVALID naming `what`. */
int dataset_name_check(const char *name, const char *what, struct err *err);

/* What records of the dataset must look like: 1; 0: nothing is said. */
int dataset_rules(struct store *st, const char *name, struct intake_rules **ret,
                  struct err *err);
/* Say it: {"record", "bad_records", "policy_tolerance"}; what is not said stays,
 * a record that is null goes. Makes the dataset when it is new. */
int dataset_describe(struct store *st, const char *name, const json_t *in,
                     int64_t now_ms, bool *ret_new, struct err *err);

/* Take a complete upload as shard `name`. *ret_new: false when the same text
 * was there already (the upload is left unpublished); ERR_CONFLICT when another
 * was, ERR_PRECONDITION when any was and only_new. */
int dataset_put(struct store *st, const char *dataset, const char *shard,
                struct upload *up, bool only_new, int64_t now_ms, bool *ret_new,
                json_t **ret, struct err *err);
/* Take it as a shard that is given its name. */
int dataset_append(struct store *st, const char *dataset, struct upload *up,
                   int64_t now_ms, json_t **ret, struct err *err);

int dataset_list(struct store *st, int64_t after, int64_t limit, json_t **ret,
                 struct err *err);
/* {"name", "bytes", "records", "shards": [{name, bytes, records, …}]} */
int dataset_get(struct store *st, const char *name, json_t **ret,
                struct err *err);
struct shard_file {
    char path[4096];
    char sha256[DIGEST_HEX], form[8];
    int64_t bytes; /* of the text */
};
int dataset_shard(struct store *st, const char *dataset, const char *shard,
                  struct shard_file *ret, struct err *err);

/* 1: *ret is that of its text; 0: there is none. */
int dataset_shard_sha256(struct store *st, const char *dataset,
                         const char *shard, char ret[DIGEST_HEX],
                         struct err *err);

/* Remove all of it, or one shard (else NULL). ERR_CONFLICT while a job that
 * has not ended needs it. The files go with the next dataset_unlink. */
int dataset_delete(struct store *st, const char *dataset, const char *shard,
                   struct err *err);
/* Files whose rows are gone for good: their number and paths. On a reader, which
 * sees only what was committed: a removal that shares its commit with others may
 * still come to nothing. */
int dataset_doomed(struct store *st, json_t **ret, struct err *err);
/* Unlink those that are doomed still. The count. */
int dataset_unlink(struct store *st, const json_t *doomed, struct err *err);
/* A row with this text is gone: its index goes, too, unless another has it. */
int dataset_doom_index(struct store *st, const char *sha256, struct err *err);
/* At start: files that were published when the server was killed, and whose row
 * was not committed; and the temporary names beside them. The count. */
int dataset_sweep_published(struct store *st, struct err *err);
/* At start: unlink indexes of texts that nobody has. The count. */
int dataset_sweep_index(struct store *st, struct err *err);

/* 0 when it exists; else ERR_INVALID at /data/dataset. */
int dataset_exists(struct store *st, const char *name, struct err *err);
