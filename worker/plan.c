#include "worker/plan.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "schema/cleanup.h"
#include "worker/permute.h"

#define ENTRIES_AT_A_TIME 4096
#define WORDS 8 /* of 64 records, that one running count stands for */

/* Which records of a shard are not held out. */
struct kept {
    uint64_t *bits;
    int64_t *before; /* how many lie before each WORDS words */
};

struct member { /* of a group */
    int shard;
    int64_t first; /* rank of its first record within the group */
};

struct group {
    double weight;
    int64_t n;               /* records */
    int64_t first, uses;     /* slots */
    int64_t full;            /* of which so many are of full passes */
    struct permutation rest; /* whose records the others are */
    int members;             /* from plan.members + at */
    int at;
};

struct plan {
    struct shards *shards;
    double fraction;
    int64_t seed, cycle, draws;
    struct group *groups;
    int n_groups;
    struct member *members;
    struct kept *kept; /* per shard, once it was drawn from; NULL: all are */
    int64_t *held_out; /* per shard */
    struct permutation order;
};

void plan_free(struct plan *p)
{
    if (!p)
        return;
    for (int i = 0; p->kept && i < p->shards->n; i++) {
        free(p->kept[i].bits);
        free(p->kept[i].before);
    }
    free(p->kept);
    free(p->held_out);
    free(p->groups);
    free(p->members);
    free(p);
}

/* ---- groups ---- */

static int64_t records_of(const struct plan *p, int shard)
{
    return p->shards->v[shard].records - p->held_out[shard];
}

static void group_fill(struct plan *p, struct group *g)
{
    for (int i = 0; i < p->shards->n; i++) {
        if (p->shards->v[i].weight != g->weight)
            continue;
        p->members[g->at + g->members++] =
            (struct member){.shard = i, .first = g->n};
        g->n += records_of(p, i);
    }
    g->first = p->draws;
    g->uses = llround((double)g->n * g->weight);
    g->full = (int64_t)floor(g->weight) * g->n;
    p->draws += g->uses;
}

static bool has_group(const struct plan *p, double weight)
{
    for (int i = 0; i < p->n_groups; i++)
        if (p->groups[i].weight == weight)
            return true;
    return false;
}

static void make_groups(struct plan *p)
{
    int at = 0;
    for (int i = 0; i < p->shards->n; i++) {
        double weight = p->shards->v[i].weight;
        if (has_group(p, weight))
            continue;
        struct group *g = &p->groups[p->n_groups++];
        *g = (struct group){.weight = weight, .at = at};
        group_fill(p, g);
        at += g->members;
    }
}

static int read_held_out(struct plan *p, const json_t *data, struct err *err)
{
    const json_t *list = json_object_get(data, "shards");
    for (int i = 0; i < p->shards->n; i++) {
        const struct shard *s = &p->shards->v[i];
        if (!s->indexed)
            return err_set(err, ERR_INVALID,
                           "the claim names no index of shard '%s', which a "
                           "shuffle of all records needs",
                           s->name);
        if (p->fraction <= 0)
            continue;
        const json_t *n =
            json_object_get(json_array_get(list, (size_t)i), "held_out");
        p->held_out[i] = json_integer_value(n);
        if (!json_is_integer(n) || p->held_out[i] < 0 ||
            p->held_out[i] > s->records)
            return err_set(err, ERR_INVALID,
                           "the claim does not say how many records of shard "
                           "'%s' are held out",
                           s->name);
    }
    return 0;
}

int plan_new(const struct spec *spec, struct shards *shards, const json_t *data,
             int64_t cycle, struct plan **ret, struct err *err)
{
    struct plan *p = calloc(1, sizeof *p);
    if (!p)
        return err_set(err, ERR_NOMEM, "no memory for the order of records");
    size_t n = (size_t)shards->n + 1;
    p->shards = shards;
    p->fraction = spec->training.validation.fraction;
    p->seed = spec->training.seed;
    p->cycle = cycle;
    p->groups = calloc(n, sizeof *p->groups);
    p->members = calloc(n, sizeof *p->members);
    p->held_out = calloc(n, sizeof *p->held_out);
    if (p->fraction > 0)
        p->kept = calloc(n, sizeof *p->kept);
    int r = 0;
    if (!p->groups || !p->members || !p->held_out ||
        (p->fraction > 0 && !p->kept))
        r = err_set(err, ERR_NOMEM, "no memory for the order of records");
    if (r == 0)
        r = read_held_out(p, data, err);
    if (r == 0) {
        make_groups(p);
        const json_t *records = json_object_get(data, "records");
        if (records && json_integer_value(records) != p->draws)
            r = err_set(err, ERR_DATA,
                        "an epoch of these shards has %" PRId64
                        " records by their weights, the server says "
                        "%" JSON_INTEGER_FORMAT,
                        p->draws, json_integer_value(records));
    }
    if (r < 0) {
        plan_free(p);
        return r;
    }
    plan_epoch(p, 0);
    *ret = p;
    return 0;
}

int64_t plan_draws(const struct plan *p)
{
    return p->draws;
}

void plan_epoch(struct plan *p, int64_t epoch)
{
    permute_init(&p->order, p->draws, p->seed, p->cycle, epoch, 0);
    for (int i = 0; i < p->n_groups; i++) {
        struct group *g = &p->groups[i];
        permute_init(&g->rest, g->n, p->seed, p->cycle, epoch, 1 + i);
    }
}

/* ---- which records of a shard are kept ---- */

static int kept_build(struct plan *p, int shard, struct kept *k,
                      struct err *err)
{
    const struct shard *s = &p->shards->v[shard];
    size_t words = (size_t)(s->records + 63) / 64, counts = words / WORDS + 2;
    AUTO_FREE uint64_t *bits = calloc(words + WORDS, sizeof *bits);
    AUTO_FREE int64_t *before = calloc(counts, sizeof *before);
    AUTO_FREE struct line_entry *e = malloc(ENTRIES_AT_A_TIME * sizeof *e);
    if (!bits || !before || !e)
        return err_set(err, ERR_NOMEM, "no memory for the records held out");
    for (int64_t at = 0; at < s->records; at += ENTRIES_AT_A_TIME) {
        int64_t n = s->records - at < ENTRIES_AT_A_TIME ? s->records - at
                                                        : ENTRIES_AT_A_TIME;
        int r = shards_entries(p->shards, shard, at, n, e, err);
        if (r < 0)
            return r;
        for (int64_t i = 0; i < n; i++)
            if (!line_is_held_out(e[i].hash, p->fraction))
                bits[(at + i) / 64] |= (uint64_t)1 << (at + i) % 64;
    }
    int64_t count = 0;
    for (size_t i = 0; i < words; i++) {
        if (i % WORDS == 0)
            before[i / WORDS] = count;
        count += __builtin_popcountll(bits[i]);
    }
    before[(words + WORDS - 1) / WORDS] = count;
    if (count != records_of(p, shard))
        return err_set(err, ERR_CORRUPT,
                       "the index of shard '%s' is damaged: it holds out "
                       "%" PRId64 " of its records, the server says %" PRId64,
                       s->name, s->records - count, p->held_out[shard]);
    *k = (struct kept){bits, before};
    bits = NULL;
    before = NULL;
    return 0;
}

/* The place of the kept record with this rank, below their count. */
static int64_t kept_select(const struct kept *k, int64_t words, int64_t rank)
{
    int64_t low = 0, high = (words + WORDS - 1) / WORDS; /* of `before` */
    while (high - low > 1) {
        int64_t mid = low + (high - low) / 2;
        if (k->before[mid] <= rank)
            low = mid;
        else
            high = mid;
    }
    rank -= k->before[low];
    int64_t w = low * WORDS;
    for (int n; (n = __builtin_popcountll(k->bits[w])) <= rank; w++)
        rank -= n;
    uint64_t word = k->bits[w];
    for (; rank; rank--)
        word &= word - 1;
    return w * 64 + __builtin_ctzll(word);
}

static int entry_of(struct plan *p, int shard, int64_t rank, int64_t *ret,
                    struct err *err)
{
    *ret = rank;
    if (!p->kept || !p->held_out[shard])
        return 0;
    struct kept *k = &p->kept[shard];
    int r = k->bits ? 0 : kept_build(p, shard, k, err);
    if (r == 0)
        *ret = kept_select(k, (p->shards->v[shard].records + 63) / 64, rank);
    return r;
}

/* ---- draws ---- */

struct ref plan_entry_ref(int shard, const struct line_entry *e)
{
    int64_t length = line_entry_length(e);
    return (struct ref){.shard = shard,
                        .offset = line_entry_offset(e),
                        .length = length ? length : LINE_MAX_BYTES + 1,
                        .hash = (int64_t)e->hash};
}

static const struct group *group_at(const struct plan *p, int64_t slot)
{
    int low = 0, high = p->n_groups;
    while (high - low > 1) {
        int mid = low + (high - low) / 2;
        if (p->groups[mid].first <= slot)
            low = mid;
        else
            high = mid;
    }
    return &p->groups[low];
}

static const struct member *member_at(const struct plan *p,
                                      const struct group *g, int64_t rank)
{
    const struct member *v = p->members + g->at;
    int low = 0, high = g->members;
    while (high - low > 1) {
        int mid = low + (high - low) / 2;
        if (v[mid].first <= rank)
            low = mid;
        else
            high = mid;
    }
    return &v[low];
}

int plan_ref(struct plan *p, int64_t draw, struct ref *ret, struct err *err)
{
    int64_t slot = permute_at(&p->order, draw);
    const struct group *g = group_at(p, slot);
    slot -= g->first;
    int64_t rank =
        slot < g->full ? slot % g->n : permute_at(&g->rest, slot - g->full);
    const struct member *m = member_at(p, g, rank);
    int64_t entry;
    struct line_entry e;
    int r = entry_of(p, m->shard, rank - m->first, &entry, err);
    if (r == 0)
        r = shards_entries(p->shards, m->shard, entry, 1, &e, err);
    if (r < 0)
        return r;
    *ret = plan_entry_ref(m->shard, &e);
    return 0;
}
