/* shuffle.h - the order of records: a buffer of references and a generator
 * that counts.
 *
 * The buffer fills from the shards' start; each draw takes one reference and
 * puts the next of the stream in its place, or, when the stream has ended, the
 * buffer's last. Draw n of an epoch is a pure function of (seed, cycle, epoch,
 * n). A buffer of one keeps the records' own order.
 *
 * Every change is an operation in a journal, so that draws made ahead of the
 * trainer can be undone in a copy: see feed_save. */
#pragma once
#include <stdint.h>
#include "schema/err.h"
#include "worker/shard.h"

struct shuffle {
    struct ref *v;
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
/* Which place the next draw takes from. The buffer is not empty. */
int64_t shuffle_pick(const struct shuffle *s);
int shuffle_push(struct shuffle *s, struct journal *j, const struct ref *next,
                 struct err *err);
/* Take v[at] out; `next` replaces it, NULL at the stream's end. */
int shuffle_take(struct shuffle *s, struct journal *j, int64_t at,
                 const struct ref *next, struct ref *ret, struct err *err);

/* Undo a journal, last operation first, on a copy of the buffer with room for
 * `cap` references; *n is its count. */
void journal_undo(const struct journal *j, struct ref *v, int64_t *n);
/* How many references the buffer can have held within the journal. */
int64_t journal_room(const struct journal *j);
/* Append all of `from`, which is left empty. */
int journal_move(struct journal *j, struct journal *from, struct err *err);
void journal_release(struct journal *j);
