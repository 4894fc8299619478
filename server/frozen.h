/* frozen.h - a shard of a lease's snapshot, for a worker that cannot reach the
 * state folder: its text and its index of lines.
 *
 * Opened with the checks that a worker beside the file makes, and in its words:
 * ERR_DATA says which shard is missing, was replaced or has shrunk. What the
 * bytes are is checked by the worker, block by block. */
#pragma once
#include <stdint.h>
#include "schema/digest.h"
#include "schema/err.h"
#include "server/store.h"

struct errands;
struct shard_text;

struct frozen {
    char *name, *path; /* path as in the snapshot */
    char *root;        /* NULL: below DIR */
    char form[8];
    char sha256[DIGEST_HEX]; /* of the text */
    int64_t bytes, records;  /* of the text */
    bool indexed;
};
void frozen_release(struct frozen *f);

/* The n-th of the lease's shards; those for validation follow on. A snapshot
 * never changes, so those asked for last are remembered. ERR_NOT_FOUND. */
int frozen_find(struct store *st, int64_t lease, int64_t n, struct frozen *ret,
                struct err *err);
int frozen_open(const char *dir, const struct frozen *f,
                struct shard_text **ret, struct err *err);
/* Its index: the descriptor and the file's size. Where there is none it is made
 * meanwhile, and this is ERR_BUSY. */
int frozen_index(const char *dir, const struct frozen *f, struct errands *es,
                 int64_t *ret_bytes, struct err *err);
