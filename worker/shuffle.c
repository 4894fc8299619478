#include "worker/shuffle.h"
#include <stdlib.h>
#include <string.h>
#include "schema/philox.h"

void shuffle_init(struct shuffle *s, int64_t cap, int64_t seed, int64_t cycle)
{
    *s = (struct shuffle){.cap = cap, .seed = seed, .cycle = cycle};
}

void shuffle_release(struct shuffle *s)
{
    free(s->v);
    s->v = NULL;
    s->n = s->allocated = 0;
}

int64_t shuffle_pick(const struct shuffle *s)
{
    uint32_t key[2] = {(uint32_t)s->seed,
                       (uint32_t)(s->seed >> 32) ^ 0x53680000u /* "Sh" */};
    uint32_t ctr[4] = {(uint32_t)s->draws, (uint32_t)(s->draws >> 32),
                       (uint32_t)s->epoch, (uint32_t)s->cycle};
    uint32_t out[4];
    philox4x32(ctr, key, out);
    uint64_t r = (uint64_t)out[1] << 32 | out[0];
    return (int64_t)((unsigned __int128)r * (uint64_t)s->n >> 64);
}

static int journal_add(struct journal *j, enum shuffle_kind kind, int64_t at,
                       const struct ref *ref, struct err *err)
{
    if (kind == SHUFFLE_PUSH && j->n && j->v[j->n - 1].kind == SHUFFLE_PUSH) {
        j->v[j->n - 1].at++;
        return 0;
    }
    if (j->n == j->cap) {
        int64_t cap = j->cap ? 2 * j->cap : 64;
        struct shuffle_op *v = realloc(j->v, (size_t)cap * sizeof *v);
        if (!v)
            return err_set(err, ERR_NOMEM, "no memory for the shuffle journal");
        j->v = v;
        j->cap = cap;
    }
    struct shuffle_op *op = &j->v[j->n++];
    *op = (struct shuffle_op){.kind = kind, .at = at};
    if (ref)
        op->ref = *ref;
    return 0;
}

int shuffle_push(struct shuffle *s, struct journal *j, const struct ref *next,
                 struct err *err)
{
    if (s->n == s->allocated) {
        int64_t cap = s->allocated ? 2 * s->allocated : 256;
        if (cap > s->cap)
            cap = s->cap;
        struct ref *v = realloc(s->v, (size_t)cap * sizeof *v);
        if (!v)
            return err_set(err, ERR_NOMEM, "no memory for the shuffle buffer");
        s->v = v;
        s->allocated = cap;
    }
    int r = journal_add(j, SHUFFLE_PUSH, 1, NULL, err);
    if (r == 0)
        s->v[s->n++] = *next;
    return r;
}

int shuffle_take(struct shuffle *s, struct journal *j, int64_t at,
                 const struct ref *next, struct ref *ret, struct err *err)
{
    struct ref drawn = s->v[at];
    int r = journal_add(j, next ? SHUFFLE_SWAP : SHUFFLE_DROP, at, &drawn, err);
    if (r < 0)
        return r;
    s->v[at] = next ? *next : s->v[s->n - 1];
    if (!next)
        s->n--;
    s->draws++;
    *ret = drawn;
    return 0;
}

void journal_undo(const struct journal *j, struct ref *v, int64_t *n)
{
    for (int64_t i = j->n - 1; i >= 0; i--) {
        const struct shuffle_op *op = &j->v[i];
        switch (op->kind) {
        case SHUFFLE_PUSH:
            *n -= op->at;
            break;
        case SHUFFLE_SWAP:
            v[op->at] = op->ref;
            break;
        case SHUFFLE_DROP:
            if (op->at < *n) /* else it was itself the last */
                v[*n] = v[op->at];
            v[op->at] = op->ref;
            ++*n;
            break;
        }
    }
}

int64_t journal_room(const struct journal *j)
{
    int64_t drops = 0;
    for (int64_t i = 0; i < j->n; i++)
        drops += j->v[i].kind == SHUFFLE_DROP;
    return drops;
}

int journal_move(struct journal *j, struct journal *from, struct err *err)
{
    if (!from->n)
        return 0;
    if (!j->n) {
        free(j->v);
        *j = *from;
        *from = (struct journal){0};
        return 0;
    }
    if (j->n + from->n > j->cap) {
        int64_t cap = j->n + from->n;
        struct shuffle_op *v = realloc(j->v, (size_t)cap * sizeof *v);
        if (!v)
            return err_set(err, ERR_NOMEM, "no memory for the shuffle journal");
        j->v = v;
        j->cap = cap;
    }
    memcpy(j->v + j->n, from->v, (size_t)from->n * sizeof *from->v);
    j->n += from->n;
    from->n = 0;
    return 0;
}

void journal_release(struct journal *j)
{
    free(j->v);
    *j = (struct journal){0};
}
