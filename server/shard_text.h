/* shard_text.h - the text of one stored shard, whatever form its file has.
 *
 * Offsets and lengths are those of the text. A file that is missing, is no
 * regular file any more or ends too early is an ERR_IO or ERR_CORRUPT that names
 * the shard: who trains on it will find the same. One thread at a time. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "schema/err.h"

struct shard_text;
/* `form` as in the table shards: "plain" or "zstd"; `bytes` of the text. */
int shard_text_open(const char *path, const char *form, int64_t bytes,
                    struct shard_text **ret, struct err *err);
/* The same of a file that is open. Takes fd, whatever is returned. */
int shard_text_of(int fd, const char *name, const char *form, int64_t bytes,
                  struct shard_text **ret, struct err *err);
/* Up to len bytes at offset, all of them unless the text ends: how many. */
int64_t shard_text_read(struct shard_text *t, int64_t offset, void *out,
                        size_t len, struct err *err);
int64_t shard_text_bytes(const struct shard_text *t);
void shard_text_close(struct shard_text *t);
