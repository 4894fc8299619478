/* upload.h - a body on its way to disk.
 *
 * A shard may be larger than memory, so its bytes go to DIR/tmp as they come.
 * What the manifest needs is taken from the stream: size, SHA-256 of the whole
 * and of each block, records. A handler sees a complete upload that is on disk
 * (fsync done) and publishes it by rename; one that is not published leaves
 * nothing behind. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "schema/digest.h"
#include "schema/err.h"
#include "schema/lines.h"

#define UPLOAD_HEAD 6

struct upload {
    char *path; /* the temporary file; NULL once published */
    int fd;
    struct line_count lines; /* .records, .bytes */
    char sha256[DIGEST_HEX]; /* set by upload_end */
    char (
        *blocks)[DIGEST_HEX]; /* of WIRE_BLOCK_BYTES each; the last is short */
    size_t n_blocks, cap_blocks;
    size_t in_block;                 /* bytes in the block under way */
    unsigned char head[UPLOAD_HEAD]; /* the first bytes of all */
    size_t n_head;
    struct digest *whole, *block;
};

/* Begin a file in `tmp_dir`. */
int upload_new(const char *tmp_dir, struct upload **ret, struct err *err);
/* ERR_MEDIA when its first bytes are those of a compressed file: a shard is
 * plain lines, whatever its name says. */
int upload_add(struct upload *u, const void *data, size_t len, struct err *err);
/* The last byte was added: digests, fsync. */
int upload_end(struct upload *u, struct err *err);
/* Make it `path` (whose folder is made if need be), atomically and durably;
 * replaces a file that is there. The inode and mtime stay as they are. */
int upload_publish(struct upload *u, const char *path, struct err *err);
/* Removes the file unless it was published. */
void upload_free(struct upload *u);
