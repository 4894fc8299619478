/* line_index.h - where the records of a shard begin: what a shuffle of the
 * whole dataset draws from.
 *
 * 16 bytes a record, in the order of the text, behind a header of 64; behind them
 * a hash of each page of 256. The file is derived and named by the text's SHA-256
 * (DIR/index/<sha256>): where it is missing or damaged it is made again. An entry
 * carries its line's hash, so that no record is ever taken for another, and its
 * page's hash says that it is the n-th. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "schema/digest.h"
#include "schema/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Longer lines are no records: refused, or skipped, by name. */
#define LINE_MAX_BYTES ((1 << 24) - 1)
#define LINE_INDEX_MAGIC "PAWLIDX2"
/* magic, records (u64), SHA-256 of the text, XXH64 of the pages' hashes, zeros */
#define LINE_INDEX_HEAD 64
#define LINE_INDEX_PAGE 256 /* entries; its hash is XXH64, seed: its number */

/* Little-endian on disk. */
struct line_entry {
    uint64_t place; /* offset << 24 | length; length 0: too long */
    uint64_t hash;  /* line_hash; of a line that is too long: 0 */
};

static inline int64_t line_entry_offset(const struct line_entry *e)
{
    return (int64_t)(e->place >> 24);
}
static inline int64_t line_entry_length(const struct line_entry *e)
{
    return (int64_t)(e->place & LINE_MAX_BYTES);
}

/* Make one while the text streams by. */
#define LINE_INDEX_WRITER_BYTES (64 * 1024) /* of memory, about */
struct line_index_writer;
int line_index_new(const char *path, struct line_index_writer **ret,
                   struct err *err);
int line_index_add(struct line_index_writer *w, int64_t offset, int64_t length,
                   uint64_t hash, struct err *err);
/* Header, fsync. The file still has the path it was begun with. */
int line_index_end(struct line_index_writer *w,
                   const uint8_t text_sha256[DIGEST_BYTES], struct err *err);
void line_index_free(struct line_index_writer *w); /* unlinks one not ended */

/* Mapped to be read. ERR_CORRUPT when it is not the index of that text, with
 * so many records. */
struct line_index {
    const struct line_entry *v;
    int64_t n;
    const uint64_t *pages; /* their hashes */
    uint8_t *sound;        /* per page: it was looked at */
    void *map;
    size_t map_len;
};
int line_index_open(const char *path, const uint8_t text_sha256[DIGEST_BYTES],
                    int64_t records, struct line_index *ret, struct err *err);
/* Entries first … first+n−1 are what was written: to be asked before they are
 * read. Looks at each page once; by any number of threads. *ret_bytes (may be
 * NULL): what it read for that. ERR_CORRUPT. */
int line_index_check(struct line_index *x, int64_t first, int64_t n,
                     int64_t *ret_bytes, struct err *err);
void line_index_close(struct line_index *x);

/* Is a record held out for validation? By its hash alone: equal records fall on
 * the same side, whatever seed, order or later growth. A line that is too long
 * (hash 0) never is: it must not vanish unseen. fraction in [0, 1). */
bool line_is_held_out(uint64_t hash, double fraction);

#ifdef __cplusplus
}
#endif
