/* source.h - the text of one shard as its file holds it: plain, or compressed
 * into frames that can be read one by one (schema/seekable.h).
 *
 * A source knows the file as it was when the cycle's data was frozen. Opening
 * refuses what cannot be that text any more: no file, a symbolic link, not a
 * regular file, fewer bytes. What may be it (another time, another file of the
 * same size) is `changed` or `replaced`, and its bytes are what counts. Any
 * thread may read. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/err.h"

struct source;

/* `in`: a shard of the claim. */
int source_open(const json_t *in, struct source **ret, struct err *err);
bool source_changed(const struct source *s);  /* or replaced */
bool source_replaced(const struct source *s); /* by a file with another inode */

/* All len bytes at offset, which lie below the frozen size. ERR_DATA: they are
 * not there, or not readable as what the file was. */
int source_read(struct source *s, int64_t offset, char *out, size_t len,
                struct err *err);
int64_t source_bytes_read(struct source *s); /* from the file */
void source_close(struct source *s);

/* Fill *err with ERR_DATA, "shard 'NAME' what", shard and offset. */
int source_err(struct err *err, const char *name, int64_t offset,
               const char *fmt, ...) __attribute__((format(printf, 4, 5)));
