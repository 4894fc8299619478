#include "worker/shuffle.h"
#include <stdlib.h>
#include <string.h>
#include "schema/philox.h"

void shuffle_init(struct shuffle *s, int64_t cap, int64_t seed, int64_t cycle)
{
    *s = (struct shuffle){.cap = cap,
                          .seed = seed,
                          .cycle = cycle,
                          .line_bytes_max = SHUFFLE_LINES_BYTES};
}

void shuffle_release(struct shuffle *s)
{
    for (int64_t i = 0; i < s->n; i++)
        free(s->lines[i]);
    free(s->lines);
    free(s->v);
    s->v = NULL;
    s->lines = NULL;
    s->n = s->allocated = s->line_bytes = 0;
}

static int grow(struct shuffle *s, int64_t want, struct err *err)
{
    if (want <= s->allocated)
        return 0;
    struct ref *v = realloc(s->v, (size_t)want * sizeof *v);
    if (v)
        s->v = v;
    char **lines = realloc(s->lines, (size_t)want * sizeof *lines);
    if (lines)
        s->lines = lines;
    if (!v || !lines)
        return err_set(err, ERR_NOMEM, "no memory for the shuffle buffer");
    s->allocated = want;
    return 0;
}

int shuffle_restore(struct shuffle *s, const struct ref *v, int64_t n,
                    struct err *err)
{
    shuffle_release(s);
    int r = grow(s, n, err);
    if (r < 0 || !n)
        return r;
    memcpy(s->v, v, (size_t)n * sizeof *v);
    memset(s->lines, 0, (size_t)n * sizeof *s->lines);
    s->n = n;
    return 0;
}

int64_t shuffle_pick(const struct shuffle *s, int64_t draw, int64_t n)
{
    uint32_t key[2] = {(uint32_t)s->seed,
                       (uint32_t)(s->seed >> 32) ^ 0x53680000u /* "Sh" */};
    uint32_t ctr[4] = {(uint32_t)draw, (uint32_t)(draw >> 32),
                       (uint32_t)s->epoch, (uint32_t)s->cycle};
    uint32_t out[4];
    philox4x32(ctr, key, out);
    uint64_t r = (uint64_t)out[1] << 32 | out[0];
    return (int64_t)((unsigned __int128)r * (uint64_t)n >> 64);
}

/* A copy of the line that is kept, if there is room for it. */
static int keep(struct shuffle *s, const struct ref *ref, const char *line,
                char **ret, struct err *err)
{
    *ret = NULL;
    if (!line || s->line_bytes + ref->length > s->line_bytes_max)
        return 0;
    *ret = malloc((size_t)ref->length + 1);
    if (!*ret)
        return err_set(err, ERR_NOMEM, "no memory for the shuffle's lines");
    memcpy(*ret, line, (size_t)ref->length);
    s->line_bytes += ref->length;
    return 0;
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
                 const char *line, struct err *err)
{
    int r = 0;
    if (s->n == s->allocated) {
        int64_t want = s->allocated ? 2 * s->allocated : 256;
        r = grow(s, want < s->cap ? want : s->cap, err);
    }
    char *kept = NULL;
    if (r == 0)
        r = keep(s, next, line, &kept, err);
    if (r == 0)
        r = journal_add(j, SHUFFLE_PUSH, 1, NULL, err);
    if (r < 0) {
        free(kept);
        return r;
    }
    s->lines[s->n] = kept;
    s->v[s->n++] = *next;
    return 0;
}

int shuffle_take(struct shuffle *s, struct journal *j, int64_t at,
                 const struct ref *next, const char *line, struct ref *ret,
                 char **ret_line, struct err *err)
{
    struct ref drawn = s->v[at];
    char *kept = NULL;
    int r = next ? keep(s, next, line, &kept, err) : 0;
    if (r == 0)
        r = journal_add(j, next ? SHUFFLE_SWAP : SHUFFLE_DROP, at, &drawn, err);
    if (r < 0) {
        free(kept);
        return r;
    }
    *ret = drawn;
    *ret_line = s->lines[at];
    if (*ret_line)
        s->line_bytes -= drawn.length;
    if (!next)
        s->n--;
    s->v[at] = next ? *next : s->v[s->n];
    s->lines[at] = next ? kept : s->lines[s->n];
    s->draws++;
    return 0;
}

int shuffle_give(struct shuffle *s, int64_t at, const char *line,
                 struct err *err)
{
    char *copy = malloc((size_t)s->v[at].length + 1);
    if (!copy)
        return err_set(err, ERR_NOMEM, "no memory for the shuffle's lines");
    memcpy(copy, line, (size_t)s->v[at].length);
    free(s->lines[at]);
    s->lines[at] = copy;
    s->line_bytes += s->v[at].length;
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
