/* shard.h - the frozen shards of a cycle: bytes that are still what they were
 * when the cycle's data was frozen.
 *
 * The claim names each shard's size, mtime, inode and a SHA-256 per block. A
 * shard is read up to its frozen size only, so one that grew is fine. A block
 * is verified whenever it is read; a reference to a record carries the hash of
 * its line, which is verified when the record is read again. So nothing that
 * changed is ever trained on, and opening costs nothing that depends on size.
 * Where size, mtime or inode differ, a thread verifies all the rest besides,
 * and its finding is what shards_check returns. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/buf.h"
#include "schema/err.h"
#include "schema/line_index.h" /* LINE_MAX_BYTES */

struct shard {
    char *name, *path;
    int64_t bytes, records, mtime_ns, inode; /* as frozen */
    int64_t block_bytes, n_blocks;
    uint8_t (*blocks)[32];
    int fd;
    bool changed;  /* stat differs: verified on the thread */
    bool replaced; /* by a file with another inode */
};

struct shards {
    struct shard *v;
    int n;
    int64_t records; /* of all, as the server counted them */
    int64_t bytes;
    struct verifier *verifier; /* NULL when all are unchanged */
};

/* A record by its place. The hash is of its line, without the newline. */
struct ref {
    int64_t shard, offset, length, hash;
};

/* Open what the claim's `data` names. ERR_DATA when one is missing, a symbolic
 * link or shorter than it was; the sentence says which. */
int shards_open(const json_t *data, struct shards **ret, struct err *err);
void shards_close(struct shards *s);

/* Read one block (the last one may be short) and verify it. `out` holds
 * block_bytes. ERR_DATA names shard and offset. */
int shards_block(struct shards *s, int shard, int64_t block, char *out,
                 size_t *ret_len, struct err *err);
/* Read the line of a reference, verified by its hash, into out (replaced). */
int shards_line(struct shards *s, const struct ref *ref, struct buf *out,
                struct err *err);
/* 1-based number of the line that begins at offset; reads all before it, so
 * for messages only. 0 when that cannot be read. */
int64_t shards_line_number(struct shards *s, int shard, int64_t offset);
/* What the thread has found so far: 0 or ERR_DATA. With `wait`, once it has
 * looked at everything. */
int shards_check(struct shards *s, bool wait, struct err *err);

/* The lines of all shards in order, blank ones left out. */
struct scanner {
    struct shards *shards;
    int shard; /* the next line begins here */
    int64_t offset;
    char *block;
    int64_t block_bytes, block_no;
    int block_shard;
    size_t block_len;
    int64_t bytes_read;
};
int scanner_init(struct scanner *s, struct shards *shards, struct err *err);
void scanner_seek(struct scanner *s, int shard, int64_t offset);
/* 1, 0 after the last line, or ERR_DATA. */
int scanner_next(struct scanner *s, struct ref *ret, struct err *err);
void scanner_release(struct scanner *s);
