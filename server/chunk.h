/* chunk.h - the bytes of train states in checkpoints.db, by their SHA-256.
 *
 * No transaction spans both files. A chunk is durable before the manifest's
 * transaction in pawl.db makes the checkpoint exist; one that no manifest names
 * is swept, but not while a live lease holds it:
 *
 *   PUT or HEAD of a chunk ──► hold (lease, chunk) ──► manifest names it ──►
 *   the checkpoint's own ──► let go with it ──► nobody's: swept
 *
 * A lease lets go of holds two checkpoints later. A sweep first reads, at one
 * moment of pawl.db, which chunks are nobody's and which leases live; leases
 * younger than that moment count as live. */
#pragma once
#include <jansson.h>
#include <stdint.h>
#include "schema/buf.h"
#include "schema/digest.h"
#include "schema/err.h"
#include "server/store.h"

/* Bytes that have the SHA-256 they are named by. To find that out takes longer
 * than all else about a chunk but the disk, so it is done apart, on a thread
 * that keeps nobody waiting. */
struct chunk {
    uint8_t name[DIGEST_BYTES];
    const void *data; /* the caller's */
    size_t len;
};
int chunk_check(const char *sha256, const void *data, size_t len,
                struct chunk *ret, struct err *err); /* ERR_INVALID */
/* Store it for a lease. Mends what was damaged on disk. */
int chunk_store(struct store *chunks, int64_t lease, const struct chunk *in,
                struct err *err);
/* Both. */
int chunk_put(struct store *chunks, int64_t lease, const char *sha256,
              const void *data, size_t len, struct err *err);
/* Is it there, and whole? Holds it for the lease: 1, or 0. */
int chunk_hold(struct store *chunks, int64_t lease, const char *sha256,
               struct err *err);
/* Bytes of a chunk, checked against its name: ERR_CORRUPT, ERR_NOT_FOUND. */
int chunk_read(struct store *chunks, const char *sha256, struct buf *ret,
               struct err *err);

/* How many bytes are stored under that name: 1, or 0 for none. */
int chunk_size(struct store *chunks, const uint8_t sha[DIGEST_BYTES],
               int64_t *ret, struct err *err);

/* ---- sweeping ---- */

/* Chunks that no manifest names, at most `limit` looked at after rowid
 * *after (moved on; 0 at the end of the file). */
struct chunk_sweep {
    json_t *orphans;      /* [sha256, …] */
    json_t *live;         /* [[lease, holds that it let go], …] */
    int64_t newest_lease; /* leases above it are live, whatever they are */
};
void chunk_sweep_release(struct chunk_sweep *s);
int chunk_sweep_find(struct store *st, struct store *chunks, int64_t *after,
                     int64_t limit, struct chunk_sweep *ret, struct err *err);
/* Delete those that no live lease holds. The count. */
int chunk_sweep_run(struct store *chunks, const struct chunk_sweep *s,
                    struct err *err);
