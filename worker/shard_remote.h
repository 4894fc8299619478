/* shard_remote.h - a set of shards that is at the server: shard.c's other half.
 *
 * What comes is verified and then kept in the cache. Does the whole set fit in
 * there, whole blocks are fetched, each once in its life. Where it does not,
 * lines that are wanted one by one are fetched as just those bytes, known by
 * their hashes; only what is read front to back comes in blocks, of which as many
 * are kept as there is room for. Indexes come
 * in pieces of 64 KiB: their entries are proved by the lines that they lead
 * to. */
#pragma once
#include "worker/shard.h"

struct far;
/* `first`: the server's number of the set's first shard. */
int far_new(const struct shards *set, struct remote *remote, int first,
            struct far **ret, struct err *err);
/* Verified. */
int far_block(struct far *f, int shard, int64_t block, char *out, size_t len,
              struct err *err);
/* Each of n lines to its place at out + at[i]. Their hashes are checked here,
 * and one that differs is read again by blocks, so that what is still wrong
 * then is no damage on the way. Those too long are left out. */
int far_lines(struct far *f, const struct ref *v, const size_t *at, int n,
              char *out, struct err *err);
int far_entries(struct far *f, int shard, int64_t first, int64_t n,
                struct line_entry *out, struct err *err);
void far_interrupt(struct far *f);
int64_t far_bytes_read(struct far *f);
void far_free(struct far *f);
