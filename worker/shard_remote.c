#include "worker/shard_remote.h"
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "schema/cleanup.h"
#include "schema/line_hash.h"
#include "worker/cache.h"
#include "worker/remote.h"
#include "worker/source.h"

#define AHEAD 4          /* blocks asked for at a time, when read in order */
#define GROUP 8          /* blocks held at a time for lines that lie anywhere */
#define GAP (16 * 1024)  /* bytes that nobody wants, rather than a request */
#define RUN (256 * 1024) /* and no more than this for several lines */
#define PIECE ((size_t)64 * 1024) /* of an index */
#define PIECE_ENTRIES ((int64_t)(PIECE / sizeof(struct line_entry)))
#define PIECES_KEPT 1024 /* in memory */
#define PIECES_ASKED 16  /* at a time */

struct ahead {
    char *data;
    int shard; /* −1: empty */
    int64_t block;
};

struct index_piece {
    int shard;
    int64_t no;
    struct line_entry v[];
};

struct far {
    const struct shards *set;
    struct remote *remote;
    struct cache *cache; /* or NULL */
    int first;
    bool fits;    /* the whole set, into the cache */
    double share; /* of its blocks that are kept there; 1 when it fits */
    int64_t block_bytes;
    atomic_bool stop;
    pthread_mutex_t lock; /* of all below */
    struct ahead ahead[AHEAD];
    int last_shard; /* read last, by blocks */
    int64_t last_block;
    struct index_piece **pieces; /* by a hash of shard and number */
};

int far_new(const struct shards *set, struct remote *remote, int first,
            struct far **ret, struct err *err)
{
    struct far *f = calloc(1, sizeof *f);
    if (f)
        f->pieces = calloc(PIECES_KEPT, sizeof(struct index_piece *));
    if (!f || !f->pieces) {
        free(f);
        return err_set(err, ERR_NOMEM, "no memory for the list of shards");
    }
    f->set = set;
    f->remote = remote;
    f->cache = remote_cache(remote);
    f->first = first;
    pthread_mutex_init(&f->lock, NULL);
    f->last_shard = -1;
    int64_t all = 0;
    for (int i = 0; i < set->n; i++) {
        all += set->v[i].bytes;
        if (set->v[i].indexed)
            all += set->v[i].records * (int64_t)sizeof(struct line_entry);
        if (set->v[i].block_bytes > f->block_bytes)
            f->block_bytes = set->v[i].block_bytes;
    }
    for (int i = 0; i < AHEAD; i++)
        f->ahead[i].shard = -1;
    int64_t room = f->cache ? cache_max(f->cache) / 8 * 7 : 0;
    f->fits = f->cache && all <= room;
    f->share = f->fits ? 1 : (double)room / (double)(all + 1);
    *ret = f;
    return 0;
}

void far_interrupt(struct far *f)
{
    atomic_store(&f->stop, true);
}

int64_t far_bytes_read(struct far *f)
{
    return remote_bytes_read(f->remote) +
           (f->cache ? cache_bytes_read(f->cache) : 0);
}

void far_free(struct far *f)
{
    if (!f)
        return;
    for (int i = 0; i < AHEAD; i++)
        free(f->ahead[i].data);
    for (int i = 0; i < PIECES_KEPT; i++)
        free(f->pieces[i]);
    free(f->pieces);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

/* ---- blocks ---- */

static size_t block_len(const struct shard *s, int64_t block)
{
    int64_t left = s->bytes - block * s->block_bytes;
    return (size_t)(left < s->block_bytes ? left : s->block_bytes);
}

static bool block_is(const struct shard *s, int64_t block, const char *data)
{
    uint8_t sum[DIGEST_BYTES];
    digest_of(data, block_len(s, block), sum);
    return !memcmp(sum, s->blocks[block], sizeof sum);
}

static struct piece block_piece(const struct far *f, int shard, int64_t block,
                                char *out)
{
    const struct shard *s = &f->set->v[shard];
    return (struct piece){.shard = f->first + shard,
                          .offset = block * s->block_bytes,
                          .len = block_len(s, block),
                          .out = out};
}

/* Of a set that does not fit always the same blocks are kept, whoever reads it
 * how often: read front to back again and again, each would push out the one
 * that is needed next. */
static bool is_kept(const struct far *f, const uint8_t sum[DIGEST_BYTES])
{
    uint64_t n;
    memcpy(&n, sum, sizeof n);
    return f->cache && (double)(n >> 11) * 0x1p-53 < f->share;
}

/* A block that came: kept, if it is the one. Else it is asked for once more,
 * since bytes may be damaged on the way, too. */
static int arrived(struct far *f, int shard, int64_t block, char *data,
                   struct err *err)
{
    const struct shard *s = &f->set->v[shard];
    bool right = block_is(s, block, data);
    if (!right) {
        struct piece again = block_piece(f, shard, block, data);
        int r = remote_get(f->remote, &again, 1, &f->stop, err);
        if (r < 0)
            return r;
        right = block_is(s, block, data);
    }
    int64_t offset = block * s->block_bytes;
    if (!right)
        return source_err(err, s->name, offset,
                          "is not what it was when the cycle's data was "
                          "frozen: the first block that differs begins at "
                          "offset %" PRId64,
                          offset);
    if (is_kept(f, s->blocks[block]))
        cache_put(f->cache, s->blocks[block], data, block_len(s, block));
    return 0;
}

static struct ahead *ahead_find(struct far *f, int shard, int64_t block)
{
    for (int i = 0; i < AHEAD; i++)
        if (f->ahead[i].shard == shard && f->ahead[i].block == block)
            return &f->ahead[i];
    return NULL;
}

/* The block, and where blocks are read in order those behind it that the cache
 * lacks, into f->ahead. */
static int fetch_ahead(struct far *f, int shard, int64_t block, struct err *err)
{
    const struct shard *s = &f->set->v[shard];
    bool in_order = f->last_shard == shard && f->last_block == block - 1;
    struct piece pieces[AHEAD] = {0};
    int n = 0;
    for (int i = 0; i < AHEAD; i++)
        f->ahead[i].shard = -1;
    for (int64_t b = block; b < s->n_blocks && n < (in_order ? AHEAD : 1);
         b++) {
        if (b > block && f->cache && cache_has(f->cache, s->blocks[b]))
            break;
        struct ahead *a = &f->ahead[n];
        if (!a->data)
            a->data = malloc((size_t)f->block_bytes);
        if (!a->data)
            return err_set(err, ERR_NOMEM, "no memory for a block");
        a->block = b;
        pieces[n++] = block_piece(f, shard, b, a->data);
    }
    int r = remote_get(f->remote, pieces, n, &f->stop, err);
    for (int i = 0; i < n && r == 0; i++) {
        struct err why = {0};
        r = arrived(f, shard, f->ahead[i].block, f->ahead[i].data, &why);
        if (r == 0)
            f->ahead[i].shard = shard;
        else if (i == 0 && err)
            *err = why;
        else if (i > 0)
            return 0; /* said when its turn comes */
    }
    return r;
}

int far_block(struct far *f, int shard, int64_t block, char *out, size_t len,
              struct err *err)
{
    const struct shard *s = &f->set->v[shard];
    int r = 0;
    pthread_mutex_lock(&f->lock);
    struct ahead *a = ahead_find(f, shard, block);
    if (!a && !(f->cache && cache_get(f->cache, s->blocks[block], out, len))) {
        r = fetch_ahead(f, shard, block, err);
        a = r == 0 ? ahead_find(f, shard, block) : NULL;
    }
    if (a)
        memcpy(out, a->data, len);
    f->last_shard = shard;
    f->last_block = block;
    pthread_mutex_unlock(&f->lock);
    return r;
}

/* ---- lines ---- */

/* A part of a line that lies within one block. */
struct part {
    int shard;
    int64_t block;
    size_t offset, len; /* within the block */
    char *out;
};

struct parts {
    struct part *v;
    int n, cap;
};

static void parts_release(struct parts *p)
{
    free(p->v);
}

static int parts_add(struct parts *p, struct part one, struct err *err)
{
    if (p->n == p->cap) {
        int cap = p->cap ? 2 * p->cap : 64;
        struct part *v = realloc(p->v, (size_t)cap * sizeof *v);
        if (!v)
            return err_set(err, ERR_NOMEM, "no memory for references");
        p->v = v;
        p->cap = cap;
    }
    p->v[p->n++] = one;
    return 0;
}

static int by_place(const void *a, const void *b)
{
    const struct part *x = a, *y = b;
    if (x->shard != y->shard)
        return x->shard < y->shard ? -1 : 1;
    if (x->block != y->block)
        return x->block < y->block ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static int split(const struct far *f, const struct ref *ref, char *out,
                 struct parts *ret, struct err *err)
{
    const struct shard *s = &f->set->v[ref->shard];
    int r = 0;
    for (int64_t at = ref->offset, end = ref->offset + ref->length;
         at < end && r == 0;) {
        int64_t block = at / s->block_bytes;
        int64_t stop = (block + 1) * s->block_bytes;
        int64_t n = (stop < end ? stop : end) - at;
        r = parts_add(
            ret,
            (struct part){.shard = (int)ref->shard,
                          .block = block,
                          .offset = (size_t)(at - block * s->block_bytes),
                          .len = (size_t)n,
                          .out = out},
            err);
        at += n;
        out += n;
    }
    return r;
}

/* What the cache has, from there; the rest moves to the front of `p`. */
static void take_cached(struct far *f, struct parts *p)
{
    int left = 0;
    for (int i = 0; i < p->n; i++) {
        const struct part *one = &p->v[i];
        const uint8_t *sum = f->set->v[one->shard].blocks[one->block];
        if (!f->cache || !cache_peek(f->cache, sum, (int64_t)one->offset,
                                     one->out, one->len))
            p->v[left++] = *one;
    }
    p->n = left;
}

/* Whole blocks, which are kept: up to GROUP of them for the parts from *at on,
 * which moves behind those that are served. */
static int take_group(struct far *f, const struct parts *p, int *at,
                      char *buffer, struct err *err)
{
    struct piece pieces[GROUP] = {0};
    int n = 0, begin = *at, end = begin;
    for (; end < p->n; end++) {
        const struct part *one = &p->v[end];
        bool same = end > begin && one->shard == p->v[end - 1].shard &&
                    one->block == p->v[end - 1].block;
        if (same)
            continue;
        if (n == GROUP)
            break;
        pieces[n] =
            block_piece(f, one->shard, one->block, buffer + n * f->block_bytes);
        n++;
    }
    int r = remote_get(f->remote, pieces, n, &f->stop, err);
    int k = -1;
    for (int i = begin; i < end && r == 0; i++) {
        const struct part *one = &p->v[i];
        bool same = i > begin && one->shard == p->v[i - 1].shard &&
                    one->block == p->v[i - 1].block;
        if (!same)
            r = arrived(f, one->shard, one->block, pieces[++k].out, err);
        if (r == 0)
            memcpy(one->out, pieces[k].out + one->offset, one->len);
    }
    *at = end;
    return r;
}

static int take_blocks(struct far *f, const struct parts *p, struct err *err)
{
    AUTO_FREE char *buffer = malloc((size_t)(GROUP * f->block_bytes));
    if (!buffer)
        return err_set(err, ERR_NOMEM, "no memory for blocks");
    int r = 0;
    for (int at = 0; at < p->n && r == 0;)
        r = take_group(f, p, &at, buffer, err);
    return r;
}

/* Just the bytes, but for small gaps between them: parts first … end−1 are one
 * run of the text. */
struct run {
    int first, end;
    int64_t offset;
    size_t len;
};

static int64_t part_offset(const struct far *f, const struct part *p)
{
    return p->block * f->set->v[p->shard].block_bytes + (int64_t)p->offset;
}

static struct run next_run(const struct far *f, const struct parts *p, int i)
{
    struct run run = {i, i + 1, part_offset(f, &p->v[i]), p->v[i].len};
    for (; run.end < p->n; run.end++) {
        const struct part *one = &p->v[run.end];
        int64_t offset = part_offset(f, one);
        int64_t stop = run.offset + (int64_t)run.len;
        int64_t to = offset + (int64_t)one->len;
        if (one->shard != p->v[i].shard || offset > stop + GAP ||
            to - run.offset > RUN)
            break;
        if (to > stop)
            run.len = (size_t)(to - run.offset);
    }
    return run;
}

static int take_runs(struct far *f, const struct parts *p, struct err *err)
{
    AUTO_FREE struct run *runs = malloc((size_t)p->n * sizeof *runs);
    AUTO_FREE struct piece *pieces = malloc((size_t)p->n * sizeof *pieces);
    if (!runs || !pieces)
        return err_set(err, ERR_NOMEM, "no memory for references");
    size_t bytes = 0;
    int n = 0;
    for (int i = 0; i < p->n; i = runs[n++].end) {
        runs[n] = next_run(f, p, i);
        bytes += runs[n].len;
    }
    AUTO_FREE char *buffer = malloc(bytes + 1);
    if (!buffer)
        return err_set(err, ERR_NOMEM, "no memory for records");
    char *to = buffer;
    for (int k = 0; k < n; k++) {
        pieces[k] =
            (struct piece){.shard = f->first + p->v[runs[k].first].shard,
                           .offset = runs[k].offset,
                           .len = runs[k].len,
                           .out = to};
        to += runs[k].len;
    }
    int r = remote_get(f->remote, pieces, n, &f->stop, err);
    for (int k = 0; k < n && r == 0; k++)
        for (int i = runs[k].first; i < runs[k].end; i++)
            memcpy(p->v[i].out,
                   pieces[k].out + (part_offset(f, &p->v[i]) - runs[k].offset),
                   p->v[i].len);
    return r;
}

/* One line again, by blocks that are verified. */
static int line_by_blocks(struct far *f, const struct ref *ref, char *out,
                          struct err *err)
{
    const struct shard *s = &f->set->v[ref->shard];
    AUTO_FREE char *data = malloc((size_t)s->block_bytes);
    CLEANUP(parts_release) struct parts parts = {0};
    if (!data)
        return err_set(err, ERR_NOMEM, "no memory for a block");
    int r = split(f, ref, out, &parts, err);
    for (int i = 0; i < parts.n && r == 0; i++) {
        const struct part *one = &parts.v[i];
        r = far_block(f, one->shard, one->block, data, block_len(s, one->block),
                      err);
        if (r == 0)
            memcpy(one->out, data + one->offset, one->len);
    }
    return r;
}

int far_lines(struct far *f, const struct ref *v, const size_t *at, int n,
              char *out, struct err *err)
{
    CLEANUP(parts_release) struct parts parts = {0};
    int r = 0;
    for (int i = 0; i < n && r == 0; i++)
        if (v[i].length <= LINE_MAX_BYTES)
            r = split(f, &v[i], out + at[i], &parts, err);
    if (r < 0)
        return r;
    take_cached(f, &parts);
    if (parts.n) {
        qsort(parts.v, (size_t)parts.n, sizeof *parts.v, by_place);
        r = f->fits ? take_blocks(f, &parts, err) : take_runs(f, &parts, err);
    }
    for (int i = 0; i < n && r == 0; i++)
        if (v[i].length <= LINE_MAX_BYTES &&
            (int64_t)line_hash(out + at[i], (size_t)v[i].length) != v[i].hash)
            r = line_by_blocks(f, &v[i], out + at[i], err);
    return r;
}

/* ---- indexes ---- */

static struct index_piece **piece_slot(struct far *f, int shard, int64_t no)
{
    uint64_t h = ((uint64_t)shard << 40 ^ (uint64_t)no) * 0x9E3779B97F4A7C15u;
    return &f->pieces[(h >> 32) % PIECES_KEPT];
}

static bool piece_is(const struct index_piece *p, int shard, int64_t no)
{
    return p && p->shard == shard && p->no == no;
}

static size_t piece_bytes(const struct shard *s, int64_t no)
{
    int64_t left = s->records - no * PIECE_ENTRIES;
    return (size_t)(left < PIECE_ENTRIES ? left : PIECE_ENTRIES) *
           sizeof(struct line_entry);
}

static void piece_name(const struct shard *s, int64_t no, char out[128])
{
    char hex[DIGEST_HEX];
    digest_hex(s->sha256, hex);
    snprintf(out, 128, "index %s %" PRId64, hex, no);
}

/* Pieces no … no+n−1 into memory, from the cache or the server. They stay in
 * `fresh`, whichever of them find a place among those that are kept. */
static int load_pieces(struct far *f, int shard, int64_t no, int n,
                       struct index_piece **fresh, struct err *err)
{
    const struct shard *s = &f->set->v[shard];
    struct piece wanted[PIECES_ASKED];
    int which[PIECES_ASKED], k = 0;
    char name[128];
    for (int i = 0; i < n; i++) {
        fresh[i] = malloc(sizeof **fresh + PIECE);
        if (!fresh[i])
            return err_set(err, ERR_NOMEM, "no memory for an index");
        fresh[i]->shard = shard;
        fresh[i]->no = no + i;
        piece_name(s, no + i, name);
        size_t len = piece_bytes(s, no + i);
        if (f->cache && cache_get_named(f->cache, name, fresh[i]->v, len))
            continue;
        which[k] = i;
        wanted[k++] = (struct piece){.shard = f->first + shard,
                                     .index = true,
                                     .offset = LINE_INDEX_HEAD +
                                               (no + i) * (int64_t)PIECE,
                                     .len = len,
                                     .out = (char *)fresh[i]->v};
    }
    int r = k ? remote_get(f->remote, wanted, k, &f->stop, err) : 0;
    for (int i = 0; i < k && r == 0 && f->cache; i++) {
        piece_name(s, no + which[i], name);
        cache_put_named(f->cache, name, wanted[i].out, wanted[i].len);
    }
    return r;
}

/* Entries first … first+n−1, all of the pieces no … no+k−1 that are loaded, or
 * of one that is kept. */
static void copy_entries(const struct index_piece *p, int64_t first, int64_t n,
                         struct line_entry *out)
{
    int64_t begin = p->no * PIECE_ENTRIES, end = begin + PIECE_ENTRIES;
    int64_t from = first > begin ? first : begin;
    int64_t to = first + n < end ? first + n : end;
    if (from < to)
        memcpy(out + (from - first), p->v + (from - begin),
               (size_t)(to - from) * sizeof *out);
}

static int copy_loaded(struct far *f, int shard, int64_t no, int k,
                       int64_t first, int64_t n, struct line_entry *out,
                       struct err *err)
{
    struct index_piece *fresh[PIECES_ASKED] = {0};
    int r = load_pieces(f, shard, no, k, fresh, err);
    for (int i = 0; i < k; i++) {
        if (r < 0) {
            free(fresh[i]);
            continue;
        }
        copy_entries(fresh[i], first, n, out);
        struct index_piece **slot = piece_slot(f, shard, no + i);
        free(*slot);
        *slot = fresh[i];
    }
    return r;
}

int far_entries(struct far *f, int shard, int64_t first, int64_t n,
                struct line_entry *out, struct err *err)
{
    int64_t no = first / PIECE_ENTRIES, last = (first + n - 1) / PIECE_ENTRIES;
    int r = 0;
    pthread_mutex_lock(&f->lock);
    while (no <= last && r == 0) {
        struct index_piece *kept = *piece_slot(f, shard, no);
        if (piece_is(kept, shard, no)) {
            copy_entries(kept, first, n, out);
            no++;
            continue;
        }
        int k = 1;
        while (k < PIECES_ASKED && no + k <= last)
            k++;
        r = copy_loaded(f, shard, no, k, first, n, out, err);
        no += k;
    }
    pthread_mutex_unlock(&f->lock);
    return r;
}
