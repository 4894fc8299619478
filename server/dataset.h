/* dataset.h - named rows of shards, and the snapshot a cycle is trained on.
 *
 * A shard is one JSONL file at DIR/datasets/<dataset>/<shard>, published whole
 * and never changed: other bytes under its name are refused. A snapshot freezes
 * which shards a cycle reads, their sizes and a digest per block, so that what
 * is trained on can be checked as it is read. Shards stand in bytewise order of
 * their names. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/digest.h"
#include "schema/err.h"
#include "schema/spec.h"
#include "server/store.h"

struct upload;

/* [A-Za-z0-9][A-Za-z0-9._-]{0,127} without "..". ERR_INVALID naming `what`. */
int dataset_name_check(const char *name, const char *what, struct err *err);

/* Take a complete upload as shard `name`. *ret_new: false when the same bytes
 * were there already (the upload is left unpublished); ERR_CONFLICT when other
 * bytes were. */
int dataset_put(struct store *st, const char *dataset, const char *shard,
                struct upload *up, int64_t now_ms, bool *ret_new, json_t **ret,
                struct err *err);

int dataset_list(struct store *st, int64_t after, int64_t limit, json_t **ret,
                 struct err *err);
/* {"name", "bytes", "records", "shards": [{name, bytes, records, …}]} */
int dataset_get(struct store *st, const char *name, json_t **ret,
                struct err *err);
struct shard_file {
    char path[4096];
    char sha256[DIGEST_HEX];
    int64_t bytes;
};
int dataset_shard(struct store *st, const char *dataset, const char *shard,
                  struct shard_file *ret, struct err *err);

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

/* 0 when it exists; else ERR_INVALID at /data/dataset. */
int dataset_exists(struct store *st, const char *name, struct err *err);
/* Freeze: *ret_data as the claim's `data` has it, paths relative to DIR.
 * ERR_INVALID with a pointer when nothing matches, ERR_DATA with the shard
 * when one is empty. */
int dataset_snapshot(struct store *st, const struct data_spec *d,
                     json_t **ret_data, char ret_digest[DIGEST_HEX],
                     int64_t *ret_records, struct err *err);
/* A snapshot's paths made absolute, for the claim. */
void dataset_snapshot_place(struct store *st, json_t *data);
