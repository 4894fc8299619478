/* upload.h - a body on its way to disk.
 *
 * A shard may be larger than memory, so its bytes go to DIR/tmp as they come,
 * and its text through intake.h. Plain text is stored as it is. What comes
 * compressed is stored as zstd frames with a seek table:
 *
 *   gzip  ──────────────► frames are made of the text as it streams by
 *   zstd  first frame above SEEKABLE_FRAME_MAX ► likewise from there on
 *         else the bytes are kept until the end, and then:
 *           they have a table that fits ► kept as they came, read once more
 *           else ► frames are made of them
 *
 * A long one's text has a thread of its own (belt.h): what is wrong with a record
 * may be said a little later than it came.
 *
 * A handler sees a complete upload that is on disk (fsync done) and publishes
 * it by rename; one that is not published leaves nothing behind. One that broke
 * off without an error can go on where it stopped (partial.h). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "schema/digest.h"
#include "schema/err.h"
#include "schema/unpack.h"
#include "server/intake.h"

struct upload_plan {
    const char *shard;    /* its name, for messages; NULL: it has none yet */
    enum packing packing; /* what the bytes must be */
    bool by_name;         /* because of the shard's name, not of a header */
    struct intake_rules *rules; /* or NULL; the upload's from then on */
};

struct upload {
    char *path;      /* the temporary file */
    char *published; /* its second name, NULL until there is one */
    bool settled;    /* which is not to be taken back */
    int fd;
    struct intake *text;  /* what is known of it */
    bool framed;          /* stored as zstd frames */
    int64_t stored_bytes; /* set by upload_end */
    struct upload_plan plan;
    int64_t received; /* bytes of the body so far */
    int64_t total;    /* of the body as announced; -1: it was not */
    bool failed, ended;
    uint8_t sha256[DIGEST_BYTES]; /* of the bytes received; by upload_end */
    bool in_parts;                /* upload_part was called */
    uint8_t part_sha256[DIGEST_BYTES]; /* then: of those since */
    struct upload_way *way;            /* upload.c's own */
};

/* Begin a file in `tmp_dir`. Takes the plan's rules, even when it fails. */
int upload_new(const char *tmp_dir, const struct upload_plan *plan,
               struct upload **ret, struct err *err);
/* Another request goes on with it: part_sha256 begins here. */
int upload_part(struct upload *u, struct err *err);
/* No more comes for a while: let go of what it can be done without. The bytes of
 * memory that it still holds. */
size_t upload_rest(struct upload *u);
/* ERR_MEDIA: compressed, and nobody said so; ERR_INVALID: not compressed as it
 * was said; ERR_DATA: damaged, or a record that does not fit the rules (line,
 * offset, field). Nothing may be added after an error. */
int upload_add(struct upload *u, const void *data, size_t len, struct err *err);
/* The last byte was added: digests, fsync. */
int upload_end(struct upload *u, struct err *err);
/* Make it `path` (whose folder is made if need be) and its index
 * DIR/index/<sha256>, atomically and durably; replaces a file that is there.
 * The inode and mtime stay as they are. The temporary name stays beside it until
 * the end: after a crash it tells which files may lack their row
 * (dataset_sweep_published). */
int upload_publish(struct upload *u, const char *dir, const char *path,
                   struct err *err);
/* What was published is committed. */
void upload_settle(struct upload *u);
/* Removes the file, unless it was published and that is settled. */
void upload_free(struct upload *u);
