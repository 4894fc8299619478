/* cache.h - blocks that came from a server, kept in a folder.
 *
 * A block is a file named by its SHA-256, written beside its place and renamed
 * into it. All workers of a host share the folder. It holds at most max_bytes,
 * a figure that stands in the file `size` and is changed under its lock before
 * a block is written; where there is no room, those used longest ago go. Nobody
 * relies on anything in it: each file is verified when it is read, one that is
 * damaged is removed, the whole folder may vanish at any moment, and a disk
 * that is full means that nothing is added for a while. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "schema/digest.h"
#include "schema/err.h"

struct cache;

/* Make the folder if need be. max_bytes 0: nothing is ever kept. */
int cache_open(const char *dir, int64_t max_bytes, struct cache **ret,
               struct err *err);
int64_t cache_max(const struct cache *c);
/* All len bytes of a block, verified: true when it was there. */
bool cache_get(struct cache *c, const uint8_t sum[DIGEST_BYTES], void *out,
               size_t len);
/* Some bytes of it, not verified: for a reader that knows the hash of just
 * those, and calls cache_drop when they are not what they should be. */
bool cache_peek(struct cache *c, const uint8_t sum[DIGEST_BYTES],
                int64_t offset, void *out, size_t len);
bool cache_has(struct cache *c, const uint8_t sum[DIGEST_BYTES]);
/* Keep a block that was verified, if there is room. */
void cache_put(struct cache *c, const uint8_t sum[DIGEST_BYTES],
               const void *data, size_t len);
void cache_drop(struct cache *c, const uint8_t sum[DIGEST_BYTES]);
/* What was kept under a name of the caller's instead of its digest (a piece of
 * an index): the file ends with a hash of its bytes. */
bool cache_get_named(struct cache *c, const char *name, void *out, size_t len);
void cache_put_named(struct cache *c, const char *name, const void *data,
                     size_t len);
int64_t cache_bytes_read(struct cache *c);
void cache_close(struct cache *c);
