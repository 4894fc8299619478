/* reader.h - lines ahead of who decodes them: a thread reads, verifies and
 * splits while another one works on what is there.
 *
 * What it reads is either the shards front to back, without the lines that are
 * held out for validation, or the draws of a plan (plan.h), many at a time. It
 * begins with little, so that the first line comes at once and a resume reads
 * not much more than it needs, and takes longer strides as it goes; what lies
 * ready is bounded. Epochs follow each other without a stop. */
#pragma once
#include <stdint.h>
#include "schema/err.h"
#include "worker/plan.h"
#include "worker/shard.h"

struct reader;

struct reader_line {
    struct ref ref;
    const char *text;      /* NULL: too long; until the next call */
    int64_t shard, offset; /* front to back: where the next line begins */
};

/* Front to back with `plan` NULL, leaving out the held-out `fraction`. Both
 * outlive the reader; the plan is the reader's thread's alone. */
int reader_new(struct shards *shards, struct plan *plan, double fraction,
               int64_t epochs, struct reader **ret, struct err *err);
/* Where to begin; before the first reader_next. With a plan, at a draw, else at
 * a place in the text. */
void reader_seek(struct reader *r, int64_t epoch, int64_t draw, int64_t shard,
                 int64_t offset);
/* The next line: 1; 0 once at the end of each epoch; or an error, which stays.
 * By one thread. */
int reader_next(struct reader *r, struct reader_line *ret, struct err *err);
/* Interrupt the shards first, if a read may wait. */
void reader_free(struct reader *r);
