#include "server/metric.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "server/when.h"

#define CSV_PIECE (64 << 10) /* bytes, and then what is under way */
#define CSV_STEPS 256
#define CSV_SAMPLES 512

static int series_id(struct store *st, const char *name, int64_t *ret,
                     struct err *err)
{
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_SERIES_FIND);
        stmt_text(&q, ":name", name);
        int r = stmt_row(&q, err);
        if (r < 0)
            return r;
        if (r > 0) {
            *ret = col_int(&q, 0);
            return 0;
        }
    }
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_SERIES_ADD);
    stmt_text(&q, ":name", name);
    int64_t n = stmt_run(&q, err);
    if (n < 0)
        return (int)n;
    *ret = store_last_id(st);
    return 0;
}

static int put(struct store *st, int64_t cycle, int64_t lease, int64_t series,
               int64_t step, const json_t *value, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_METRIC_PUT);
    stmt_int(&q, ":cycle", cycle);
    stmt_int(&q, ":series", series);
    stmt_int(&q, ":step", step);
    stmt_int(&q, ":lease", lease);
    if (json_is_number(value))
        stmt_real(&q, ":value", json_number_value(value));
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

/* Is what an earlier lease with the same fingerprint reported different? */
static int differs(struct store *st, int64_t cycle, int64_t lease,
                   int64_t series, const char *name, int64_t step,
                   const json_t *value, char *ret_what, size_t cap,
                   struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_METRIC_BEFORE);
    stmt_int(&q, ":cycle", cycle);
    stmt_int(&q, ":series", series);
    stmt_int(&q, ":step", step);
    stmt_int(&q, ":lease", lease);
    int r;
    while ((r = stmt_row(&q, err)) > 0) {
        bool same = col_null(&q, 0) || !json_is_number(value)
                        ? col_null(&q, 0) == !json_is_number(value)
                        : col_real(&q, 0) == json_number_value(value);
        if (same)
            continue;
        snprintf(ret_what, cap,
                 "step %" PRId64 " was trained again and gave %s %.9g instead "
                 "of %.9g (leases %" PRId64 " and %" PRId64 ")",
                 step, name, json_number_value(value), col_real(&q, 0), lease,
                 col_int(&q, 1));
        return 1;
    }
    return r;
}

/* What must come out the same; speeds need not. */
static bool is_exact_series(const char *name)
{
    return !strcmp(name, "loss") || !strncmp(name, "loss/", 5) ||
           !strcmp(name, "lr") || !strcmp(name, "grad_norm");
}

static int has_archive(struct store *st, int64_t cycle, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_METRIC_ARCHIVED);
    stmt_int(&q, ":cycle", cycle);
    return stmt_row(&q, err);
}

int metric_add(struct store *st, int64_t cycle, int64_t lease,
               const json_t *rows, int64_t *ret_differ, char *ret_what,
               size_t cap, struct err *err)
{
    *ret_differ = 0;
    if (json_array_size(rows) == 0)
        return 0;
    int compare = has_archive(st, cycle, err);
    if (compare < 0)
        return compare;
    size_t i;
    json_t *row;
    json_array_foreach((json_t *)rows, i, row)
    {
        int64_t step = json_integer_value(json_array_get(row, 0));
        const char *name;
        json_t *v;
        json_object_foreach(json_array_get(row, 1), name, v)
        {
            int64_t series = 0;
            char what[256];
            int r = series_id(st, name, &series, err);
            if (r >= 0)
                r = put(st, cycle, lease, series, step, v, err);
            if (r >= 0 && compare && is_exact_series(name))
                r = differs(st, cycle, lease, series, name, step, v, what,
                            sizeof(what), err);
            if (r < 0)
                return r;
            if (r > 0 && (*ret_differ)++ == 0)
                snprintf(ret_what, cap, "%s", what);
        }
    }
    return 0;
}

int metric_archive(struct store *st, int64_t cycle, int64_t step,
                   struct err *err)
{
    static const enum sql_id moves[] = {SQL_METRIC_ARCHIVE, SQL_METRIC_DROP};
    for (int i = 0; i < 2; i++) {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, moves[i]);
        stmt_int(&q, ":cycle", cycle);
        stmt_int(&q, ":step", step);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
        if (n == 0)
            break;
    }
    return 0;
}

/* Is name in the comma-separated list? NULL or "": all are. */
static bool wanted(const char *list, const char *name)
{
    size_t n = strlen(name);
    if (!list || !*list)
        return true;
    for (const char *p = list; *p;) {
        size_t len = strcspn(p, ",");
        if (len == n && !memcmp(p, name, n))
            return true;
        p += len + (p[len] == ',');
    }
    return false;
}

struct point {
    int64_t step;
    double value; /* NaN: not finite */
};

static json_t *point_json(const struct point *p)
{
    return json_pack("[Io]", p->step,
                     isfinite(p->value) ? json_real(p->value) : json_null());
}

/* Lowest and highest of each stretch, in order: spikes stay. */
static json_t *thin(const struct point *p, size_t n, int64_t points)
{
    json_t *out = json_array();
    size_t stretches = points < 2 ? 1 : (size_t)points / 2;
    if (n <= (size_t)points) {
        for (size_t i = 0; i < n; i++)
            json_array_append_new(out, point_json(&p[i]));
        return out;
    }
    for (size_t s = 0; s < stretches; s++) {
        size_t from = n * s / stretches, to = n * (s + 1) / stretches;
        size_t low = from, high = from;
        for (size_t i = from; i < to; i++) {
            if (!(p[i].value >= p[low].value))
                low = i;
            if (!(p[i].value <= p[high].value))
                high = i;
        }
        size_t first = low < high ? low : high,
               second = low < high ? high : low;
        if (s == stretches - 1)
            second = n - 1; /* where it stands now */
        json_array_append_new(out, point_json(&p[first]));
        if (second != first)
            json_array_append_new(out, point_json(&p[second]));
    }
    return out;
}

static int points_of(struct store *st, int64_t cycle, int64_t series,
                     struct point **ret, size_t *ret_n, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_METRIC_POINTS);
    stmt_int(&q, ":cycle", cycle);
    stmt_int(&q, ":series", series);
    AUTO_FREE struct point *p = NULL;
    size_t n = 0, cap = 0;
    int r;
    while ((r = stmt_row(&q, err)) > 0) {
        if (n == cap) {
            cap = cap ? cap * 2 : 256;
            struct point *more = realloc(p, cap * sizeof(*p));
            if (!more)
                return err_set(err, ERR_NOMEM, "no memory for a series");
            p = more;
        }
        p[n++] = (struct point){col_int(&q, 0),
                                col_null(&q, 1) ? NAN : col_real(&q, 1)};
    }
    if (r < 0)
        return r;
    *ret = p;
    *ret_n = n;
    p = NULL;
    return 0;
}

/* [cycle id, cycle number, series id, name] of what there is. */
static int list_series(struct store *st, int64_t job, int64_t cycle,
                       const char *series, json_t **ret, struct err *err)
{
    AUTO_JSON json_t *list = json_array();
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_METRIC_SERIES);
    stmt_int(&q, ":job", job);
    stmt_int(&q, ":cycle", cycle);
    int r;
    while ((r = stmt_row(&q, err)) > 0)
        if (wanted(series, col_text(&q, 3)))
            json_array_append_new(
                list, json_pack("[IIIs]", col_int(&q, 0), col_int(&q, 1),
                                col_int(&q, 2), col_text(&q, 3)));
    if (r < 0)
        return r;
    *ret = json_incref(list);
    return 0;
}

static int64_t int_at(const json_t *list, size_t i)
{
    return json_integer_value(json_array_get(list, i));
}

int metric_series(struct store *st, int64_t job, int64_t cycle,
                  const char *series, int64_t points, json_t **ret,
                  struct err *err)
{
    AUTO_JSON json_t *list = NULL;
    int r = list_series(st, job, cycle, series, &list, err);
    if (r < 0)
        return r;
    AUTO_JSON json_t *items = json_array();
    size_t i;
    json_t *s;
    json_array_foreach(list, i, s)
    {
        AUTO_FREE struct point *p = NULL;
        size_t n = 0;
        r = points_of(st, int_at(s, 0), int_at(s, 2), &p, &n, err);
        if (r < 0)
            return r;
        json_array_append_new(
            items, json_pack("{sI sO sI so}", "cycle", int_at(s, 1), "series",
                             json_array_get(s, 3), "count", (json_int_t)n,
                             "points", thin(p, n, points)));
    }
    *ret = json_pack("{sO}", "items", items);
    return 0;
}

int metric_last(struct store *st, int64_t job, int64_t cycle,
                const char *series, int64_t *ret_step, double *ret_value,
                struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_METRIC_LAST);
    stmt_text(&q, ":series", series);
    stmt_int(&q, ":job", job);
    stmt_int(&q, ":cycle", cycle);
    int r = stmt_row(&q, err);
    if (r > 0) {
        *ret_step = col_int(&q, 0);
        *ret_value = col_null(&q, 1) ? NAN : col_real(&q, 1);
    }
    return r;
}

/* ---- CSV ---- */

static int next_of(struct stmt *q, int64_t *ret, struct err *err)
{
    int r = stmt_row(q, err);
    if (r <= 0 || col_null(q, 0))
        return r < 0 ? r : 0;
    *ret = col_int(q, 0);
    return 1;
}

static int next_cycle(struct store *st, int64_t job, int64_t cycle,
                      struct csv_at *at, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_METRIC_CYCLE);
    stmt_int(&q, ":job", job);
    stmt_int(&q, ":after", at->cycle);
    stmt_int(&q, ":cycle", cycle);
    at->step = -1;
    return next_of(&q, &at->cycle, err);
}

static int next_step(struct store *st, int64_t job, const struct csv_at *at,
                     int64_t *ret, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_METRIC_NEXT);
    stmt_int(&q, ":job", job);
    stmt_int(&q, ":number", at->cycle);
    stmt_int(&q, ":after", at->step);
    return next_of(&q, ret, err);
}

static int add_steps(struct store *st, int64_t job, const char *series,
                     int64_t from, struct csv_at *at, struct buf *ret,
                     struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_METRIC_STEPS);
    stmt_int(&q, ":job", job);
    stmt_int(&q, ":number", at->cycle);
    stmt_int(&q, ":from", from);
    stmt_int(&q, ":to", from + CSV_STEPS - 1);
    at->step = from + CSV_STEPS - 1;
    int bad = 0, r = 0;
    while (!bad && (r = stmt_row(&q, err)) > 0) {
        const char *name = col_text(&q, 1);
        if (!wanted(series, name))
            continue;
        bad = buf_addf(ret, "%" PRId64 ",%" PRId64 ",%s,", at->cycle,
                       col_int(&q, 0), name);
        if (!bad)
            bad = col_null(&q, 2) ? buf_adds(ret, "\n")
                                  : buf_addf(ret, "%.9g\n", col_real(&q, 2));
    }
    return bad ? err_set(err, ERR_NOMEM, "no memory for the series") : r;
}

int metric_csv(struct store *st, int64_t job, int64_t cycle, const char *series,
               struct csv_at *at, struct buf *ret, struct err *err)
{
    int r;
    if (!at->begun) {
        if (buf_adds(ret, "cycle,step,series,value\n") < 0)
            return err_set(err, ERR_NOMEM, "no memory for the series");
        at->begun = true;
        r = next_cycle(st, job, cycle, at, err);
        if (r <= 0)
            return r;
    }
    while (ret->len < CSV_PIECE) {
        int64_t from;
        r = next_step(st, job, at, &from, err);
        if (r > 0) {
            r = add_steps(st, job, series, from, at, ret, err);
        } else if (r == 0) {
            r = next_cycle(st, job, cycle, at, err);
            if (r == 0)
                return 0;
        }
        if (r < 0)
            return r;
    }
    return 1;
}

/* ---- memory ---- */

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
    }
    return 0;
}

static const char *const memory_names[] = {
    "allocated_bytes", "device_bytes", "rss_bytes", "available_bytes",
    "swap_bytes",      "shapes",       NULL};

int memory_series(struct store *st, int64_t job, int64_t points, json_t **ret,
                  struct err *err)
{
    int64_t n = 0;
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_MEMORY_COUNT);
        stmt_int(&q, ":job", job);
        int r = stmt_row(&q, err);
        if (r < 0)
            return r;
        n = col_int(&q, 0);
    }
    int64_t stride = points > 0 && n > points ? (n + points - 1) / points : 1;
    AUTO_JSON json_t *items = json_array();
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_MEMORY_ALL);
    stmt_int(&q, ":job", job);
    stmt_int(&q, ":lease", 0);
    stmt_int(&q, ":at", 0);
    stmt_int(&q, ":step", 0);
    stmt_int(&q, ":limit", -1);
    int r;
    for (int64_t i = 0; (r = stmt_row(&q, err)) > 0; i++) {
        if (i % stride && i != n - 1)
            continue;
        json_t *one =
            json_pack("{sI so sI}", "lease", col_int(&q, 0), "at",
                      when_json(col_int(&q, 1)), "step", col_int(&q, 2));
        for (int k = 0; memory_names[k]; k++)
            json_object_set_new(one, memory_names[k],
                                col_null(&q, 3 + k)
                                    ? json_null()
                                    : json_integer(col_int(&q, 3 + k)));
        json_array_append_new(items, one);
    }
    if (r < 0)
        return r;
    *ret = json_pack("{sO sI}", "items", items, "count", n);
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
