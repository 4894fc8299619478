#include "server/uses.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "schema/cleanup.h"
#include "schema/line_index.h"
#include "schema/wire.h"

/* ---- is it that shard, grown? ---- */

/* The digest of the first n blocks' digests: the same as long as that text is
 * the beginning of a shard. */
static void head_of(const json_t *blocks, size_t n, char out[DIGEST_HEX])
{
    AUTO_JSON json_t *first = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append(first, json_array_get(blocks, i));
    digest_of_json(first, out);
}

static int64_t whole_number(const json_t *shard, const char *name)
{
    return json_integer_value(json_object_get(shard, name));
}

static size_t whole_blocks(const json_t *shard)
{
    return (size_t)(whole_number(shard, "bytes") / WIRE_BLOCK_BYTES);
}

/* Record number n of it, by its index: what lies behind the whole blocks. 1, or
 * 0: it has none. */
static int entry_of(struct store *st, const json_t *shard, int64_t n,
                    struct line_entry *ret)
{
    AUTO_FREE char *path = NULL;
    const char *sha256 = json_string_value(json_object_get(shard, "sha256"));
    if (n < 0 || n >= whole_number(shard, "records") ||
        asprintf(&path, "%s/index/%s", store_dir(st), sha256) < 0)
        return 0;
    uint8_t sum[DIGEST_BYTES];
    struct line_index index;
    struct err none;
    if (digest_parse(sha256, sum) < 0 ||
        line_index_open(path, sum, whole_number(shard, "records"), &index,
                        &none) < 0)
        return 0;
    int r = line_index_check(&index, n, 1, NULL, &none);
    if (r >= 0)
        *ret = index.v[n];
    line_index_close(&index);
    return r >= 0;
}

/* q: the row of the shard of that name. */
static bool has_grown(struct store *st, const struct stmt *q,
                      const json_t *shard)
{
    size_t n = (size_t)col_int(q, 1);
    char head[DIGEST_HEX];
    if (n > whole_blocks(shard) ||
        col_int(q, 3) > whole_number(shard, "records"))
        return false;
    head_of(json_object_get(shard, "blocks"), n, head);
    if (strcmp(head, col_text(q, 2)))
        return false;
    struct line_entry last;
    if (col_null(q, 4) || !entry_of(st, shard, col_int(q, 3) - 1, &last))
        return true;
    return (int64_t)last.place == col_int(q, 4) &&
           (int64_t)last.hash == col_int(q, 5);
}

/* Of one shard, how many no earlier cycle had. */
static int shard_fresh(struct store *st, int64_t job, const json_t *shard,
                       int64_t *ret, struct err *err)
{
    *ret = snapshot_trained(shard);
    if (!job)
        return 0;
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_RECORDS_GET);
    stmt_int(&q, ":job", job);
    stmt_text(&q, ":name", json_string_value(json_object_get(shard, "name")));
    int r = stmt_row(&q, err);
    if (r <= 0)
        return r;
    if (has_grown(st, &q, shard))
        *ret -= col_int(&q, 0);
    if (*ret < 0)
        *ret = 0;
    return 0;
}

/* ---- the bucket ---- */

static int uses_left(struct store *st, int64_t job, int64_t *ret,
                     struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_USES_LEFT);
    stmt_int(&q, ":job", job);
    int r = stmt_row(&q, err);
    *ret = r > 0 ? col_int(&q, 0) : 0;
    return r < 0 ? r : 0;
}

int uses_fill(struct store *st, const struct spec *spec, int64_t job,
              const json_t *shards, struct snapshot *s, struct err *err)
{
    double k = spec->data.max_uses;
    int64_t left = 0;
    s->fresh = s->take = -1;
    if (k <= 0)
        return 0;
    int r = uses_left(st, job, &left, err);
    s->fresh = 0;
    size_t i;
    json_t *one;
    json_array_foreach((json_t *)shards, i, one)
    {
        int64_t n = 0;
        if (r >= 0)
            r = shard_fresh(st, job, one, &n, err);
        s->fresh += n;
    }
    if (r < 0)
        return r;
    int64_t there = left + (int64_t)floor((double)s->fresh * k);
    int64_t all = s->records * spec->training.epochs;
    int64_t least = spec->training.effective_batch;
    if (least > all)
        least = all;
    s->take = there < all ? there : all;
    s->uses_left = there - s->take;
    if (s->take < least) {
        /* those that are there and new count with those that are to come */
        int64_t need = (int64_t)ceil((double)(least - left) / k);
        s->wanted = need > s->fresh ? need - s->fresh : 1;
    }
    return 0;
}

int uses_wait(struct store *st, const struct spec *spec, int64_t job,
              struct snapshot *s, struct err *err)
{
    int64_t left = 0;
    int r = uses_left(st, job, &left, err);
    double need = (double)(spec->training.effective_batch - left);
    *s = (struct snapshot){.fresh = 0, .take = 0, .wanted = 1};
    if (need > spec->data.max_uses)
        s->wanted = (int64_t)ceil(need / spec->data.max_uses);
    return r;
}

static int keep_shard(struct store *st, int64_t job, const json_t *shard,
                      struct err *err)
{
    char head[DIGEST_HEX];
    struct line_entry last;
    size_t n = whole_blocks(shard);
    int64_t records = whole_number(shard, "records");
    head_of(json_object_get(shard, "blocks"), n, head);
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_RECORDS_PUT);
    stmt_int(&q, ":job", job);
    stmt_text(&q, ":name", json_string_value(json_object_get(shard, "name")));
    stmt_int(&q, ":trained", snapshot_trained(shard));
    stmt_int(&q, ":blocks", (int64_t)n);
    stmt_text(&q, ":head", head);
    stmt_int(&q, ":records", records);
    if (entry_of(st, shard, records - 1, &last)) {
        stmt_int(&q, ":place", (int64_t)last.place);
        stmt_int(&q, ":hash", (int64_t)last.hash);
    }
    int64_t r = stmt_run(&q, err);
    return r < 0 ? (int)r : 0;
}

int uses_keep(struct store *st, const struct spec *spec, int64_t job,
              const struct snapshot *s, struct err *err)
{
    int r = 0;
    size_t i;
    json_t *shard;
    if (spec->data.max_uses <= 0)
        return 0;
    json_array_foreach(json_object_get(s->data, "shards"), i, shard)
    {
        r = keep_shard(st, job, shard, err);
        if (r < 0)
            return r;
    }
    return 0;
}
