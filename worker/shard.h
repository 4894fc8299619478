/* shard.h - the frozen shards of a cycle: text that is still what it was when
 * the cycle's data was frozen.
 *
 * The claim names each shard's size and a SHA-256 per block of its text, and
 * size, mtime and inode of the file that holds it. A shard is read up to its
 * frozen size only, so one that grew is fine. A block is verified whenever it
 * is read; a reference to a record carries the hash of its line, which is
 * verified when the record is read again. So nothing that changed is ever
 * trained on, and opening costs nothing that depends on size. Where a file's
 * size, mtime or inode differ, a thread verifies all the rest besides, and its
 * finding is what shards_check returns.
 *
 * Where the bytes come from is source.h's: a file, a compressed one, or the
 * server and the cache that stands before it. All calls but open and close may
 * be made by several threads at a time. */
#pragma once
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/buf.h"
#include "schema/digest.h"
#include "schema/err.h"
#include "schema/line_index.h" /* struct line_entry, LINE_MAX_BYTES */

struct far;
struct remote;
struct source;

struct shard {
    char *name;
    int64_t bytes, records; /* of the text, as frozen */
    int64_t block_bytes, n_blocks;
    uint8_t (*blocks)[DIGEST_BYTES];
    uint8_t sha256[DIGEST_BYTES]; /* of the text; of use when indexed */
    bool indexed;                 /* shards_entries can be asked */
    char *index_path;
    struct line_index index; /* once it was asked, under the set's lock */
    struct line_entry *made; /* instead: made here, for want of a file */
    double weight;           /* uses per epoch and record; 1 unless said */
    struct source *source;   /* NULL: from the server */
};

struct shards {
    struct shard *v;
    int n;
    int64_t records; /* of all, as the server counted them */
    int64_t bytes;
    struct verifier *verifier; /* NULL when all files are unchanged */
    struct far *far;           /* NULL: the files are here */
    pthread_mutex_t lock;
    atomic_llong index_bytes; /* of entries read here */
};

/* A record by its place. The hash is of its line, without the newline. One
 * longer than LINE_MAX_BYTES has the hash 0 and is never read. */
struct ref {
    int64_t shard, offset, length, hash;
};

/* Open what the claim's `data` names: in place, or with `remote` from the
 * server, where nothing is asked before it is read. ERR_DATA when a file is
 * missing, a symbolic link or shorter than it was; the sentence says which. */
int shards_open(const json_t *data, struct remote *remote, struct shards **ret,
                struct err *err);
/* The same for the shards of `data`'s validation; an empty set if none. */
int shards_open_validation(const json_t *data, struct remote *remote,
                           struct shards **ret, struct err *err);
/* Reads under way, and all that follow, end with ERR_NET instead of waiting
 * for a server that is away. */
void shards_interrupt(struct shards *s);
void shards_close(struct shards *s);

/* Read one block (the last one may be short) and verify it. `out` holds
 * block_bytes. ERR_DATA names shard and offset. */
int shards_block(struct shards *s, int shard, int64_t block, char *out,
                 size_t *ret_len, struct err *err);
/* Read the line of a reference, verified by its hash, into out (replaced). */
int shards_line(struct shards *s, const struct ref *ref, struct buf *out,
                struct err *err);
/* Many at once, which from afar is much faster than one by one: appended to
 * `out` in the order of v, each with a newline behind it; those longer than
 * LINE_MAX_BYTES as the newline alone. */
int shards_lines(struct shards *s, const struct ref *v, int n, struct buf *out,
                 struct err *err);
/* Entries first … first+n−1 of a shard's line index: each lies within the text.
 * An index that is missing or another text's is made here, from the text. */
int shards_entries(struct shards *s, int shard, int64_t first, int64_t n,
                   struct line_entry *out, struct err *err);
/* Its reference. One too long has no length in the index: LINE_MAX_BYTES + 1. */
static inline struct ref shards_ref(int shard, const struct line_entry *e)
{
    int64_t length = line_entry_length(e);
    return (struct ref){shard, line_entry_offset(e),
                        length ? length : LINE_MAX_BYTES + 1, (int64_t)e->hash};
}
/* 1-based number of the line that begins at offset; reads all before it, so
 * for messages only. 0 when that cannot be read. */
int64_t shards_line_number(struct shards *s, int shard, int64_t offset);
/* What the thread has found so far: 0 or ERR_DATA. With `wait`, once it has
 * looked at everything. */
int shards_check(struct shards *s, bool wait, struct err *err);
/* Bytes read so far from files, cache and server: text, compressed text, pieces
 * of indexes. */
int64_t shards_bytes_read(struct shards *s);
