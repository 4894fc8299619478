/* shuffle.h - the order of records: a buffer of references and a generator
 * that counts.
 *
 * The buffer fills from the shards' start; each draw takes one reference and
 * puts the next of the stream in its place, or, when the stream has ended, the
 * buffer's last. Draw n of an epoch is a pure function of (seed, cycle, epoch,
 * n). A buffer of one keeps the records' own order.
 *
 * Every change is an operation in a journal, so that draws made ahead of the
 * trainer can be undone in a copy: see feed_save.
 *
 * Beside a reference lies its line, as long as all of them fit into
 * SHUFFLE_LINES_BYTES: a draw then reads nothing. Lines are no state; after a
 * resume there are none, and who draws fetches what is missing. */
#pragma once
#include <stdint.h>
#include "schema/err.h"
#include "worker/shard.h"

#define SHUFFLE_LINES_BYTES (64 * 1024 * 1024)

struct shuffle {
    struct ref *v;
    char **lines; /* per reference; NULL: must be read */
    int64_t line_bytes, line_bytes_max;
    int64_t n, cap; /* cap: the size the spec asks for; memory grows with n */
    int64_t allocated;
    int64_t seed, cycle, epoch, draws; /* draws made in this epoch */
};

enum shuffle_kind {
    SHUFFLE_PUSH, /* `at` references were added at the end */
    SHUFFLE_SWAP, /* v[at] was drawn, the next of the stream took its place */
    SHUFFLE_DROP, /* v[at] was drawn, the last one took its place */
};

struct shuffle_op {
    enum shuffle_kind kind;
    int64_t at;
    struct ref ref; /* the one drawn */
};

struct journal {
    struct shuffle_op *v;
    int64_t n, cap;
};

void shuffle_init(struct shuffle *s, int64_t cap, int64_t seed, int64_t cycle);
void shuffle_release(struct shuffle *s);
/* Begin with these references, whose lines are not there. */
int shuffle_restore(struct shuffle *s, const struct ref *v, int64_t n,
                    struct err *err);
/* Which place draw `draw` of the epoch takes from, out of n > 0. */
int64_t shuffle_pick(const struct shuffle *s, int64_t draw, int64_t n);
/* `line` (may be NULL) is copied. */
int shuffle_push(struct shuffle *s, struct journal *j, const struct ref *next,
                 const char *line, struct err *err);
/* Take v[at] out; `next` replaces it, NULL at the stream's end. *ret_line is
 * the caller's to free, or NULL. */
int shuffle_take(struct shuffle *s, struct journal *j, int64_t at,
                 const struct ref *next, const char *line, struct ref *ret,
                 char **ret_line, struct err *err);
/* Give v[at] its line, whatever lines there are. Not of a buffer that another
 * thread saves from: lines are none of its business. */
int shuffle_give(struct shuffle *s, int64_t at, const char *line,
                 struct err *err);

/* Undo a journal, last operation first, on a copy of the buffer with room for
 * `cap` references; *n is its count. */
void journal_undo(const struct journal *j, struct ref *v, int64_t *n);
/* How many references the buffer can have held within the journal. */
int64_t journal_room(const struct journal *j);
/* Append all of `from`, which is left empty. */
int journal_move(struct journal *j, struct journal *from, struct err *err);
void journal_release(struct journal *j);
