#include "worker/shard.h"
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "schema/cleanup.h"
#include "schema/line_hash.h"
#include "worker/scanner.h"
#include "worker/shard_remote.h"
#include "worker/source.h"

struct verifier {
    struct shards *shards;
    pthread_t thread;
    bool started;
    atomic_bool stop;
    pthread_mutex_t lock;
    pthread_cond_t done_cond;
    bool done;
    int result;
    struct err err;
};

/* ---- reading ---- */

static size_t block_len(const struct shard *s, int64_t block)
{
    int64_t left = s->bytes - block * s->block_bytes;
    return (size_t)(left < s->block_bytes ? left : s->block_bytes);
}

static const char *what_happened(const struct shard *s)
{
    return source_replaced(s->source) ? "was replaced by another file"
                                      : "was edited";
}

static int block_check(const struct shard *s, int64_t block, const char *data,
                       size_t len, struct err *err)
{
    uint8_t sum[DIGEST_BYTES];
    digest_of(data, len, sum);
    if (!memcmp(sum, s->blocks[block], sizeof sum))
        return 0;
    int64_t offset = block * s->block_bytes;
    return source_err(err, s->name, offset,
                      "%s after the cycle's data was frozen: the first block "
                      "that differs begins at offset %" PRId64,
                      what_happened(s), offset);
}

int shards_block(struct shards *set, int shard, int64_t block, char *out,
                 size_t *ret_len, struct err *err)
{
    const struct shard *s = &set->v[shard];
    size_t len = block_len(s, block);
    int r;
    if (set->far) {
        r = far_block(set->far, shard, block, out, len, err);
    } else {
        r = source_read(s->source, block * s->block_bytes, out, len, err);
        if (r == 0)
            r = block_check(s, block, out, len, err);
    }
    if (r == 0)
        *ret_len = len;
    return r;
}

/* The line at a reference is not the one it speaks of. Where its blocks are
 * what they were, the reference is to blame. */
static int wrong_line(struct shards *set, const struct ref *ref,
                      struct err *err)
{
    const struct shard *s = &set->v[ref->shard];
    AUTO_FREE char *data = malloc((size_t)s->block_bytes);
    if (!data)
        return err_set(err, ERR_NOMEM, "no memory for a block");
    for (int64_t b = ref->offset / s->block_bytes;
         b * s->block_bytes < ref->offset + ref->length; b++) {
        size_t len;
        struct err why = {0};
        int r = shards_block(set, (int)ref->shard, b, data, &len, &why);
        if (r == 0)
            continue;
        if (r != ERR_DATA || set->far) {
            if (err)
                *err = why;
            return r;
        }
        r = source_err(err, s->name, ref->offset,
                       "%s after the cycle's data was frozen: the record at "
                       "offset %" PRId64 " is not the one that was there",
                       what_happened(s), ref->offset);
        if (err)
            err->line = shards_line_number(set, (int)ref->shard, ref->offset);
        return r;
    }
    return err_set(err, ERR_CORRUPT,
                   "what leads to the record at offset %" PRId64
                   " of shard '%s' is damaged: %s",
                   ref->offset, s->name,
                   s->indexed ? "the index of its lines"
                              : "the checkpoint's shuffle buffer");
}

static bool is_right(const struct ref *ref, const char *line)
{
    return (int64_t)line_hash(line, (size_t)ref->length) == ref->hash;
}

static bool is_within(const struct shards *set, const struct ref *ref)
{
    return ref->shard >= 0 && ref->shard < set->n && ref->offset >= 0 &&
           ref->length >= 0 &&
           ref->length <= set->v[ref->shard].bytes - ref->offset;
}

struct place {
    int64_t shard, offset;
    int i;
};

static int by_place(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->shard != y->shard)
        return x->shard < y->shard ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* In the order of the text: frames that several lines lie in are unpacked
 * once. */
static int read_lines(struct shards *set, const struct ref *v, const size_t *at,
                      int n, char *out, struct err *err)
{
    AUTO_FREE struct place *order = malloc((size_t)n * sizeof *order);
    if (!order)
        return err_set(err, ERR_NOMEM, "no memory for %d records", n);
    int k = 0;
    for (int i = 0; i < n; i++)
        if (v[i].length <= LINE_MAX_BYTES)
            order[k++] = (struct place){v[i].shard, v[i].offset, i};
    if (k > 1)
        qsort(order, (size_t)k, sizeof *order, by_place);
    for (int j = 0; j < k; j++) {
        const struct ref *ref = &v[order[j].i];
        int r = source_read(set->v[ref->shard].source, ref->offset,
                            out + at[order[j].i], (size_t)ref->length, err);
        if (r < 0)
            return r;
    }
    return 0;
}

int shards_lines(struct shards *set, const struct ref *v, int n,
                 struct buf *out, struct err *err)
{
    if (n <= 0)
        return 0;
    AUTO_FREE size_t *at = malloc((size_t)n * sizeof *at);
    size_t bytes = 0;
    for (int i = 0; i < n; i++) {
        bool is_line = v[i].length <= LINE_MAX_BYTES;
        if (is_line && !is_within(set, &v[i]))
            return err_set(err, ERR_CORRUPT,
                           "a reference to a record is outside the data");
        bytes += is_line ? (size_t)v[i].length + 1 : 1;
    }
    if (!at || buf_reserve(out, bytes + SCANNER_PAD) < 0)
        return err_set(err, ERR_NOMEM, "no memory for records of %zu bytes",
                       bytes);
    char *to = out->data + out->len;
    size_t end = 0;
    for (int i = 0; i < n; i++) {
        at[i] = end;
        end += v[i].length <= LINE_MAX_BYTES ? (size_t)v[i].length : 0;
        to[end++] = '\n';
    }
    int r = set->far ? far_lines(set->far, v, at, n, to, err)
                     : read_lines(set, v, at, n, to, err);
    for (int i = 0; i < n && r == 0; i++)
        if (v[i].length <= LINE_MAX_BYTES && !is_right(&v[i], to + at[i]))
            r = wrong_line(set, &v[i], err);
    if (r < 0)
        return r;
    out->len += end;
    out->data[out->len] = 0;
    return 0;
}

int shards_line(struct shards *set, const struct ref *ref, struct buf *out,
                struct err *err)
{
    buf_clear(out);
    int r = shards_lines(set, ref, 1, out, err);
    if (r == 0 && out->len)
        out->data[--out->len] = 0; /* the newline */
    return r;
}

int64_t shards_line_number(struct shards *set, int shard, int64_t offset)
{
    const struct shard *s = &set->v[shard];
    AUTO_FREE char *data = malloc((size_t)s->block_bytes);
    if (!data)
        return 0;
    int64_t line = 1;
    for (int64_t at = 0; at < offset; at += s->block_bytes) {
        size_t len = block_len(s, at / s->block_bytes);
        int r = set->far ? far_block(set->far, shard, at / s->block_bytes, data,
                                     len, NULL)
                         : source_read(s->source, at, data, len, NULL);
        if (r < 0)
            return 0;
        size_t want = (int64_t)len < offset - at ? len : (size_t)(offset - at);
        for (const char *p = data, *end = data + want;
             (p = memchr(p, '\n', (size_t)(end - p))); p++)
            line++;
    }
    return line;
}

int64_t shards_bytes_read(struct shards *s)
{
    int64_t n = s->far ? far_bytes_read(s->far) : 0;
    n += atomic_load(&s->index_bytes);
    for (int i = 0; i < s->n; i++)
        n += s->v[i].source ? source_bytes_read(s->v[i].source) : 0;
    return n;
}

/* ---- indexes ---- */

static int make_index(struct shards *set, int shard, struct err *err)
{
    struct shard *s = &set->v[shard];
    AUTO_FREE struct line_entry *v =
        malloc((size_t)(s->records + 1) * sizeof *v);
    if (!v)
        return err_set(err, ERR_NOMEM,
                       "no memory for an index of %" PRId64 " records",
                       s->records);
    CLEANUP(scanner_release) struct scanner scan;
    int r = scanner_init(&scan, set, err);
    scanner_seek(&scan, shard, 0);
    int64_t n = 0;
    struct ref ref;
    while (r == 0 && (r = scanner_next(&scan, &ref, NULL, err)) > 0 &&
           ref.shard == shard && n <= s->records) {
        bool is_line = ref.length <= LINE_MAX_BYTES;
        v[n++] = (struct line_entry){(uint64_t)ref.offset << 24 |
                                         (uint64_t)(is_line ? ref.length : 0),
                                     (uint64_t)ref.hash};
        r = 0;
    }
    if (r < 0)
        return r;
    if (n != s->records)
        return source_err(err, s->name, 0,
                          "holds %" PRId64 " records, not the %" PRId64
                          " that were counted",
                          n, s->records);
    s->made = v;
    v = NULL;
    return 0;
}

/* Under the lock. */
static int open_index(struct shards *set, int shard,
                      const struct line_entry **ret, struct err *err)
{
    struct shard *s = &set->v[shard];
    int r = 0;
    if (!s->made && !s->index.map) {
        struct err why = {0};
        r = line_index_open(s->index_path, s->sha256, s->records, &s->index,
                            &why);
        if (r < 0)
            r = make_index(set, shard, err);
    }
    if (r == 0)
        *ret = s->made ? s->made : s->index.v;
    return r;
}

static int read_entries(struct shards *set, int shard, int64_t first, int64_t n,
                        struct line_entry *out, struct err *err)
{
    if (set->far) /* the server makes one, where there is none */
        return far_entries(set->far, shard, first, n, out, err);
    const struct line_entry *v = NULL;
    struct shard *s = &set->v[shard];
    int64_t bytes = 0;
    pthread_mutex_lock(&set->lock);
    int r = open_index(set, shard, &v, err);
    if (r == 0 && !s->made) {
        struct err why = {0};
        r = line_index_check(&s->index, first, n, &bytes, &why);
        if (r < 0) { /* made anew of the text, which is what counts */
            r = make_index(set, shard, err);
            v = s->made;
        }
    }
    pthread_mutex_unlock(&set->lock);
    if (r < 0)
        return r;
    memcpy(out, v + first, (size_t)n * sizeof *out);
    atomic_fetch_add(&set->index_bytes, bytes);
    return 0;
}

int shards_entries(struct shards *set, int shard, int64_t first, int64_t n,
                   struct line_entry *out, struct err *err)
{
    struct shard *s = &set->v[shard];
    if (!s->indexed || first < 0 || n < 0 || n > s->records - first)
        return err_set(err, ERR_INVALID,
                       "the claim gives shard '%s' no index of its lines",
                       s->name);
    int r = n ? read_entries(set, shard, first, n, out, err) : 0;
    for (int64_t i = 0; i < n && r == 0; i++)
        if (line_entry_offset(&out[i]) + line_entry_length(&out[i]) > s->bytes)
            r = err_set(err, ERR_CORRUPT,
                        "the index of shard '%s' is damaged: record %" PRId64
                        " is said to lie behind its end",
                        s->name, first + i);
    return r;
}

/* ---- the verifying thread ---- */

static int verify_all(struct verifier *v, struct err *err)
{
    int64_t cap = 0;
    for (int i = 0; i < v->shards->n; i++)
        if (v->shards->v[i].block_bytes > cap)
            cap = v->shards->v[i].block_bytes;
    AUTO_FREE char *data = malloc((size_t)cap + 1);
    if (!data)
        return err_set(err, ERR_NOMEM, "no memory to verify shards");
    for (int i = 0; i < v->shards->n; i++) {
        const struct shard *s = &v->shards->v[i];
        if (!source_changed(s->source))
            continue;
        for (int64_t b = 0; b < s->n_blocks && !atomic_load(&v->stop); b++) {
            size_t len;
            int r = shards_block(v->shards, i, b, data, &len, err);
            if (r < 0)
                return r;
        }
    }
    return 0;
}

static void *verifier_main(void *arg)
{
    struct verifier *v = arg;
    struct err err = {0};
    int r = verify_all(v, &err);
    pthread_mutex_lock(&v->lock);
    v->result = r;
    v->err = err;
    v->done = true;
    pthread_cond_broadcast(&v->done_cond);
    pthread_mutex_unlock(&v->lock);
    return NULL;
}

static int verifier_start(struct shards *s, struct err *err)
{
    struct verifier *v = calloc(1, sizeof *v);
    if (!v)
        return err_set(err, ERR_NOMEM, "no memory to verify shards");
    v->shards = s;
    pthread_mutex_init(&v->lock, NULL);
    pthread_cond_init(&v->done_cond, NULL);
    s->verifier = v;
    int e = pthread_create(&v->thread, NULL, verifier_main, v);
    if (e)
        return err_set(err, ERR_NOMEM, "cannot start a thread: %s",
                       strerror(e));
    v->started = true;
    return 0;
}

static void verifier_free(struct verifier *v)
{
    if (!v)
        return;
    atomic_store(&v->stop, true);
    if (v->started)
        pthread_join(v->thread, NULL);
    pthread_cond_destroy(&v->done_cond);
    pthread_mutex_destroy(&v->lock);
    free(v);
}

int shards_check(struct shards *s, bool wait, struct err *err)
{
    struct verifier *v = s->verifier;
    if (!v)
        return 0;
    pthread_mutex_lock(&v->lock);
    while (wait && !v->done)
        pthread_cond_wait(&v->done_cond, &v->lock);
    int r = v->result;
    if (r < 0 && err)
        *err = v->err;
    pthread_mutex_unlock(&v->lock);
    return r;
}

/* ---- opening ---- */

static int parse_blocks(const json_t *blocks, struct shard *s, struct err *err)
{
    s->n_blocks = (int64_t)json_array_size(blocks);
    if (s->bytes < 0 || s->block_bytes < 4096 ||
        s->block_bytes > 64 * 1024 * 1024 ||
        s->n_blocks != (s->bytes + s->block_bytes - 1) / s->block_bytes)
        return err_set(err, ERR_INVALID,
                       "the claim's block digests of shard '%s' do not cover "
                       "its %" PRId64 " bytes",
                       s->name, s->bytes);
    s->blocks = calloc((size_t)s->n_blocks + 1, sizeof *s->blocks);
    if (!s->blocks)
        return err_set(err, ERR_NOMEM, "no memory for block digests");
    for (int64_t i = 0; i < s->n_blocks; i++) {
        const char *hex = json_string_value(json_array_get(blocks, (size_t)i));
        if (!hex || digest_parse(hex, s->blocks[i]) < 0)
            return err_set(err, ERR_INVALID,
                           "block digest %" PRId64 " of shard '%s' is not one",
                           i, s->name);
    }
    return 0;
}

static int shard_parse(const json_t *in, struct shard *s, struct err *err)
{
    const char *name = json_string_value(json_object_get(in, "name"));
    const char *index = json_string_value(json_object_get(in, "index"));
    const char *sha256 = json_string_value(json_object_get(in, "sha256"));
    const json_t *blocks = json_object_get(in, "blocks");
    const json_t *weight = json_object_get(in, "weight");
    if (!name || !json_is_array(blocks))
        return err_set(err, ERR_INVALID,
                       "the claim names a shard without name or blocks");
    s->name = strdup(name);
    s->index_path = index ? strdup(index) : NULL;
    if (!s->name || (index && !s->index_path))
        return err_set(err, ERR_NOMEM, "no memory for the list of shards");
    s->bytes = json_integer_value(json_object_get(in, "bytes"));
    s->records = json_integer_value(json_object_get(in, "records"));
    s->block_bytes = json_integer_value(json_object_get(in, "block_bytes"));
    s->weight = json_is_number(weight) ? json_number_value(weight) : 1;
    s->indexed = index != NULL;
    if (s->records < 0 ||
        (index && (!sha256 || digest_parse(sha256, s->sha256) < 0)))
        return err_set(err, ERR_INVALID,
                       "the claim gives shard '%s' an index, but no digest",
                       name);
    return parse_blocks(blocks, s, err);
}

static int open_list(const json_t *list, struct remote *remote, int first,
                     struct shards **ret, struct err *err)
{
    struct shards *s = calloc(1, sizeof *s);
    if (s)
        s->v = calloc(json_array_size(list) + 1, sizeof *s->v);
    if (!s || !s->v) {
        free(s);
        return err_set(err, ERR_NOMEM, "no memory for the list of shards");
    }
    pthread_mutex_init(&s->lock, NULL);
    bool changed = false;
    int r = 0;
    for (size_t i = 0; i < json_array_size(list) && r == 0; i++) {
        const json_t *in = json_array_get(list, i);
        struct shard *one = &s->v[s->n++];
        r = shard_parse(in, one, err);
        if (r == 0 && !remote)
            r = source_open(in, &one->source, err);
        if (r == 0 && !remote)
            changed |= source_changed(one->source);
        s->records += one->records;
        s->bytes += one->bytes;
    }
    if (r == 0 && remote)
        r = far_new(s, remote, first, &s->far, err);
    if (r == 0 && changed)
        r = verifier_start(s, err);
    if (r < 0) {
        shards_close(s);
        return r;
    }
    *ret = s;
    return 0;
}

int shards_open(const json_t *data, struct remote *remote, struct shards **ret,
                struct err *err)
{
    const json_t *list = json_object_get(data, "shards");
    if (!json_is_array(list))
        return err_set(err, ERR_INVALID, "the claim names no shards");
    return open_list(list, remote, 0, ret, err);
}

int shards_open_validation(const json_t *data, struct remote *remote,
                           struct shards **ret, struct err *err)
{
    const json_t *validation = json_object_get(data, "validation");
    return open_list(json_object_get(validation, "shards"), remote,
                     (int)json_array_size(json_object_get(data, "shards")), ret,
                     err);
}

void shards_interrupt(struct shards *s)
{
    if (s->far)
        far_interrupt(s->far);
}

void shards_close(struct shards *s)
{
    if (!s)
        return;
    verifier_free(s->verifier);
    far_free(s->far);
    for (int i = 0; i < s->n; i++) {
        struct shard *one = &s->v[i];
        free(one->name);
        free(one->blocks);
        free(one->index_path);
        free(one->made);
        if (one->index.map)
            line_index_close(&one->index);
        source_close(one->source);
    }
    pthread_mutex_destroy(&s->lock);
    free(s->v);
    free(s);
}
