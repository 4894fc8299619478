/* scanner.h - the lines of frozen shards, front to back, blank ones left out.
 *
 * Each block is read and verified once; a line that lies within one is handed
 * out where it stands, without a copy. */
#pragma once
#include "worker/shard.h"

struct scanner {
    struct shards *shards;
    int shard; /* the next line begins here */
    int64_t offset;
    char *block;
    int64_t block_bytes, block_no;
    int block_shard;
    size_t block_len;
    struct buf carry;   /* a line that goes over a block's end */
    int64_t bytes_read; /* of text, in whole blocks */
};
int scanner_init(struct scanner *s, struct shards *shards, struct err *err);
void scanner_seek(struct scanner *s, int shard, int64_t offset);
/* 1, 0 after the last line, or ERR_DATA. *ret_line (may be NULL) holds until
 * the next call; it is NULL for a line above LINE_MAX_BYTES. SCANNER_PAD bytes
 * behind a line may be read, whatever they hold. */
#define SCANNER_PAD 64
int scanner_next(struct scanner *s, struct ref *ret, const char **ret_line,
                 struct err *err);
void scanner_release(struct scanner *s);
