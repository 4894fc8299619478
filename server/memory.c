#include "server/memory.h"
#include <inttypes.h>
#include <stdlib.h>
#include "server/when.h"

#define CSV_SAMPLES 512

static void size_bind(struct stmt *q, const char *bind, const json_t *row,
                      const char *name)
{
    const json_t *v = json_object_get(row, name);
    if (json_is_integer(v) && json_integer_value(v) >= 0)
        stmt_int(q, bind, json_integer_value(v));
}

int memory_add(struct store *st, int64_t job, int64_t lease, const json_t *rows,
               struct err *err)
{
    int64_t added = 0; /* a sample that comes again is not kept again */
    size_t i;
    json_t *row;
    json_array_foreach((json_t *)rows, i, row)
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_MEMORY_ADD);
        stmt_int(&q, ":job", job);
        stmt_int(&q, ":lease", lease);
        stmt_int(&q, ":at", json_integer_value(json_object_get(row, "at_ms")));
        stmt_int(&q, ":step", json_integer_value(json_object_get(row, "step")));
        size_bind(&q, ":allocated", row, "allocated_bytes");
        size_bind(&q, ":device", row, "device_bytes");
        size_bind(&q, ":rss", row, "rss_bytes");
        size_bind(&q, ":available", row, "available_bytes");
        size_bind(&q, ":swap", row, "swap_bytes");
        size_bind(&q, ":shapes", row, "shapes");
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
        added += n;
    }
    if (!added)
        return 0;
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_MEMORY_ADDED);
    stmt_int(&q, ":lease", lease);
    stmt_int(&q, ":n", added);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

static const char *const memory_names[] = {
    "allocated_bytes", "device_bytes", "rss_bytes", "available_bytes",
    "swap_bytes",      "shapes",       NULL};

static void add_sample(json_t *items, const struct stmt *q)
{
    json_t *one = json_pack("{sI so sI}", "lease", col_int(q, 0), "at",
                            when_json(col_int(q, 1)), "step", col_int(q, 2));
    for (int k = 0; memory_names[k]; k++)
        json_object_set_new(
            one, memory_names[k],
            col_null(q, 3 + k) ? json_null() : json_integer(col_int(q, 3 + k)));
    json_array_append_new(items, one);
}

struct of_lease {
    int64_t id, samples;
};

static int list_leases(struct store *st, int64_t job, struct of_lease **ret,
                       size_t *ret_n, int64_t *ret_samples, struct err *err)
{
    AUTO_FREE struct of_lease *list = NULL;
    size_t n = 0, cap = 0;
    int r;
    *ret_samples = 0;
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_MEMORY_LEASES);
    stmt_int(&q, ":job", job);
    while ((r = stmt_row(&q, err)) > 0) {
        if (n == cap) {
            cap = cap ? cap * 2 : 64;
            struct of_lease *more = realloc(list, cap * sizeof(*list));
            if (!more)
                return err_set(err, ERR_NOMEM, "no memory for the samples");
            list = more;
        }
        list[n] = (struct of_lease){col_int(&q, 0), col_int(&q, 1)};
        *ret_samples += list[n++].samples;
    }
    if (r < 0)
        return r;
    *ret = list;
    *ret_n = n;
    list = NULL;
    return 0;
}

static int all_of(struct store *st, int64_t job, int64_t lease, int64_t samples,
                  json_t *items, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_MEMORY_ALL);
    stmt_int(&q, ":job", job);
    stmt_int(&q, ":lease", lease);
    stmt_int(&q, ":at", INT64_MIN);
    stmt_int(&q, ":step", INT64_MIN);
    stmt_int(&q, ":limit", samples);
    int r;
    while ((r = stmt_row(&q, err)) > 0)
        add_sample(items, &q);
    return r;
}

struct sample_at {
    int64_t at_ms, step;
};

/* The first sample from at_ms on that comes after `last`: 1 and *last is it. */
static int sample_from(struct store *st, int64_t job, int64_t lease,
                       int64_t at_ms, struct sample_at *last, json_t *items,
                       struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_MEMORY_FROM);
    stmt_int(&q, ":job", job);
    stmt_int(&q, ":lease", lease);
    stmt_int(&q, ":at", at_ms);
    stmt_int(&q, ":after_at", last->at_ms);
    stmt_int(&q, ":after_step", last->step);
    int r = stmt_row(&q, err);
    if (r > 0) {
        *last = (struct sample_at){col_int(&q, 1), col_int(&q, 2)};
        add_sample(items, &q);
    }
    return r;
}

/* `share` of a lease's samples, as far apart in time as may be, its last one
 * among them: a seek each. */
static int some_of(struct store *st, int64_t job, int64_t lease, int64_t share,
                   json_t *items, struct err *err)
{
    CLEANUP(stmt_end) struct stmt end = stmt_use(st, SQL_MEMORY_LAST);
    stmt_int(&end, ":job", job);
    stmt_int(&end, ":lease", lease);
    int r = stmt_row(&end, err);
    if (r <= 0)
        return r;
    struct sample_at last = {INT64_MIN, INT64_MIN};
    int64_t first_ms = 0, span = 0;
    for (int64_t i = 0; i < share - 1; i++) {
        r = sample_from(st, job, lease,
                        i ? first_ms + span / (share - 1) * i : INT64_MIN,
                        &last, items, err);
        if (r <= 0)
            return r;
        if (i == 0) {
            first_ms = last.at_ms;
            span = col_int(&end, 1) - first_ms;
        }
    }
    if (last.at_ms != col_int(&end, 1) || last.step != col_int(&end, 2))
        add_sample(items, &end);
    return 0;
}

int memory_series(struct store *st, int64_t job, int64_t points, json_t **ret,
                  struct err *err)
{
    AUTO_FREE struct of_lease *list = NULL;
    size_t n = 0;
    int64_t samples, given = 0, before = 0;
    int r = list_leases(st, job, &list, &n, &samples, err);
    if (r < 0)
        return r;
    AUTO_JSON json_t *items = json_array();
    for (size_t i = 0; i < n; i++) {
        /* rounded on what was given so far, so that the last one gets some */
        before += list[i].samples;
        int64_t share =
            samples <= points
                ? list[i].samples
                : (int64_t)((double)before / (double)samples * (double)points) -
                      given;
        if (i == n - 1 && share < 1)
            share = 1;
        if (share < 1)
            continue;
        given += share;
        r = share >= list[i].samples
                ? all_of(st, job, list[i].id, list[i].samples, items, err)
                : some_of(st, job, list[i].id, share, items, err);
        if (r < 0)
            return r;
    }
    *ret = json_pack("{sO sI}", "items", items, "count", samples);
    return 0;
}

int memory_csv(struct store *st, int64_t job, struct csv_at *at,
               struct buf *ret, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_MEMORY_ALL);
    stmt_int(&q, ":job", job);
    stmt_int(&q, ":lease", at->lease);
    stmt_int(&q, ":at", at->at_ms);
    stmt_int(&q, ":step", at->step);
    stmt_int(&q, ":limit", CSV_SAMPLES);
    int bad = 0, r = 0, n = 0;
    if (!at->begun)
        bad = buf_adds(ret, "lease,at,step,allocated_bytes,device_bytes,"
                            "rss_bytes,available_bytes,swap_bytes,shapes\n");
    at->begun = true;
    while (!bad && (r = stmt_row(&q, err)) > 0) {
        char when[WHEN_MAX];
        n++;
        at->lease = col_int(&q, 0);
        at->at_ms = col_int(&q, 1);
        at->step = col_int(&q, 2);
        when_text(at->at_ms, when);
        bad =
            buf_addf(ret, "%" PRId64 ",%s,%" PRId64, at->lease, when, at->step);
        for (int k = 0; !bad && memory_names[k]; k++)
            bad = col_null(&q, 3 + k)
                      ? buf_adds(ret, ",")
                      : buf_addf(ret, ",%" PRId64, col_int(&q, 3 + k));
        if (!bad)
            bad = buf_adds(ret, "\n");
    }
    if (bad)
        return err_set(err, ERR_NOMEM, "no memory for the series");
    return r < 0 ? r : n == CSV_SAMPLES;
}
