/* partial.h - uploads that broke off and may go on where they stopped.
 *
 * What came of such a body stays in DIR/tmp, and how far its digests and its
 * decompression are in memory: so it lasts an hour, and no longer than this
 * server. At most PARTIALS_MAX are kept, one per name, and of memory no more than
 * PARTIALS_BYTES (a zstd stream may look 128 MiB back); the oldest go first. Any
 * thread may call. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "schema/err.h"

#define PARTIALS_MAX 32
#define PARTIALS_BYTES ((size_t)64 << 20)
#define PARTIAL_KEEP_MS (3600 * (int64_t)1000)

struct partials;
struct upload;

int partials_new(struct partials **ret, struct err *err);
void partials_free(struct partials *p);
/* One of that name is under way, until so many ends. */
void partials_begin(struct partials *p, const char *dataset, const char *shard);
void partials_end(struct partials *p, const char *dataset, const char *shard);
bool partials_under_way(struct partials *p, const char *dataset,
                        const char *shard);
/* Take the upload; keep it if it can go on. */
void partials_keep(struct partials *p, const char *dataset, const char *shard,
                   struct upload *u, int64_t mono_ms);
/* Bytes that came of it; 0: nothing is kept. */
int64_t partials_offset(struct partials *p, const char *dataset,
                        const char *shard, int64_t mono_ms);
/* Hand it over to who goes on with it, or NULL. */
struct upload *partials_take(struct partials *p, const char *dataset,
                             const char *shard, int64_t mono_ms);
/* Drop those that are too old; now and then. */
void partials_expire(struct partials *p, int64_t mono_ms);
