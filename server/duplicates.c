#include "server/duplicates.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "schema/cleanup.h"
#include "schema/digest.h"
#include "schema/line_index.h"
#include "server/keyset.h"

#define STRETCH 65536 /* entries between two steps: 1 MiB */
#define PARTS_MAX 65536

size_t duplicates_slots = DUPLICATES_SLOTS;

struct search {
    const struct duplicates_shard *v;
    int n;
    duplicates_step_fn *step;
    void *arg;
    int64_t bytes; /* read so far */
    struct keyset keys;
    unsigned parts, part;
    struct duplicates *found;
    uint64_t hashes[DUPLICATES_SHOWN]; /* of what was found */
};

static void search_release(struct search *s)
{
    keyset_release(&s->keys);
}

/* Its own bits, so that a part's keys are spread over all slots. */
static unsigned part_of(uint64_t hash, unsigned parts)
{
    return (unsigned)(((hash >> 24 & 0xffffffff) * parts) >> 32);
}

static unsigned parts_for(int64_t records)
{
    int64_t each = (int64_t)(duplicates_slots / 8 * 5);
    return (unsigned)(records / each + 1);
}

int64_t duplicates_bytes(int64_t records)
{
    return records * (int64_t)sizeof(struct line_entry) * parts_for(records);
}

static bool is_before(const struct duplicate_place *a,
                      const struct duplicate_place *b)
{
    return a->shard != b->shard ? a->shard < b->shard : a->offset < b->offset;
}

/* Keep the first ones, in order. */
static void keep(struct search *s, uint64_t hash,
                 const struct duplicate_place *at)
{
    struct duplicates *d = s->found;
    int i = d->n;
    if (i == DUPLICATES_SHOWN && !is_before(at, &d->v[i - 1].at))
        return;
    if (i < DUPLICATES_SHOWN)
        d->n++;
    else
        i--;
    for (; i > 0 && is_before(at, &d->v[i - 1].at); i--) {
        d->v[i] = d->v[i - 1];
        s->hashes[i] = s->hashes[i - 1];
    }
    d->v[i].at = *at;
    s->hashes[i] = hash;
}

/* One entry of shard i: 1 goes on, 0 ends the walk. */
typedef int entry_fn(struct search *s, int shard, const struct line_entry *e,
                     struct err *err);

static int walk_shard(struct search *s, int shard, entry_fn *fn,
                      struct err *err)
{
    uint8_t sha256[DIGEST_BYTES];
    CLEANUP(line_index_close) struct line_index x = {0};
    if (digest_parse(s->v[shard].sha256, sha256) < 0)
        return err_set(err, ERR_CORRUPT, "a shard has no digest");
    int r = line_index_open(s->v[shard].index, sha256, s->v[shard].records, &x,
                            err);
    if (r < 0)
        return r;
    for (int64_t i = 0; i < x.n;) {
        int64_t end = x.n - i < STRETCH ? x.n : i + STRETCH;
        int64_t bytes = (end - i) * (int64_t)sizeof(*x.v);
        r = line_index_check(&x, i, end - i, NULL, err);
        if (r < 0)
            return r;
        for (; i < end; i++) {
            if (line_entry_length(&x.v[i]) == 0)
                continue; /* too long for a record */
            r = fn(s, shard, &x.v[i], err);
            if (r <= 0)
                return r;
        }
        /* what was read need not stay in this process */
        madvise(x.map, (size_t)((const char *)&x.v[i] - (const char *)x.map),
                MADV_DONTNEED);
        s->bytes += bytes;
        if (s->step && !s->step(s->arg, s->bytes))
            return err_set(err, ERR_BUSY, "the search was stopped");
    }
    return 1;
}

/* 1: to the end; 0: fn ended it. */
static int walk(struct search *s, entry_fn *fn, struct err *err)
{
    int r = 1;
    for (int i = 0; i < s->n && r > 0; i++)
        r = walk_shard(s, i, fn, err);
    return r;
}

static int count_entry(struct search *s, int shard, const struct line_entry *e,
                       struct err *err)
{
    if (part_of(e->hash, s->parts) != s->part)
        return 1;
    int r = keyset_add(&s->keys, e->hash);
    if (r < 0)
        return err_set(err, ERR_NOMEM, "no memory to search for duplicates");
    if (r > 0)
        return keyset_exact(&s->keys);
    const struct duplicate_place at = {shard, line_entry_offset(e)};
    s->found->records++;
    keep(s, e->hash, &at);
    return 1;
}

/* 1: counted; 0: a part had more than fits. */
static int count_parts(struct search *s, struct err *err)
{
    s->found->records = 0;
    s->found->n = 0;
    for (s->part = 0; s->part < s->parts; s->part++) {
        keyset_clear(&s->keys);
        int r = walk(s, count_entry, err);
        if (r <= 0)
            return r;
    }
    return 1;
}

/* The first place of each hash that was found. */
static int first_entry(struct search *s, int shard, const struct line_entry *e,
                       struct err *err)
{
    bool all = true;
    for (int i = 0; i < s->found->n; i++) {
        struct duplicate_place *first = &s->found->v[i].first;
        if (first->shard < 0 && s->hashes[i] == e->hash)
            *first = (struct duplicate_place){shard, line_entry_offset(e)};
        all = all && first->shard >= 0;
    }
    return !all;
}

int duplicates_find(const struct duplicates_shard *v, int n,
                    duplicates_step_fn *step, void *arg, struct duplicates *ret,
                    struct err *err)
{
    struct duplicates found = {0};
    CLEANUP(search_release)
    struct search s = {
        .v = v, .n = n, .step = step, .arg = arg, .found = &found};
    int64_t records = 0;
    s.keys.max = duplicates_slots;
    for (int i = 0; i < n; i++)
        records += v[i].records;
    int r = 0;
    for (s.parts = parts_for(records); r == 0; s.parts *= 2) {
        if (s.parts > PARTS_MAX)
            return err_set(err, ERR_CORRUPT,
                           "too many hashes of lines begin "
                           "alike to be searched");
        r = count_parts(&s, err);
    }
    for (int i = 0; i < found.n; i++)
        found.v[i].first.shard = -1;
    if (r > 0 && found.n)
        r = walk(&s, first_entry, err);
    if (r < 0)
        return r;
    *ret = found;
    return 0;
}
