#include "server/metric.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "server/band.h"

#define CSV_PIECE (64 << 10) /* bytes, and then what is under way */
#define CSV_STEPS 256

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
           !strncmp(name, "validation/", 11) || !strcmp(name, "lr") ||
           !strcmp(name, "grad_norm");
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
    struct band_pen pen = BAND_PEN(st, cycle);
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
            if (r >= 0)
                r = band_pen_note(&pen, series, step, err);
            if (r >= 0 && compare && is_exact_series(name))
                r = differs(st, cycle, lease, series, name, step, v, what,
                            sizeof(what), err);
            if (r < 0)
                return r;
            if (r > 0 && (*ret_differ)++ == 0)
                snprintf(ret_what, cap, "%s", what);
        }
    }
    return band_pen_end(&pen, err);
}

/* One series of a cycle. */
static int archive(struct store *st, int64_t cycle, int64_t series,
                   int64_t step, struct err *err)
{
    static const enum sql_id moves[] = {SQL_METRIC_ARCHIVE, SQL_METRIC_DROP};
    for (int i = 0; i < 2; i++) {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, moves[i]);
        stmt_int(&q, ":cycle", cycle);
        stmt_int(&q, ":series", series);
        stmt_int(&q, ":step", step);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    return band_cut(st, cycle, series, step, err);
}

int metric_archive(struct store *st, int64_t cycle, int64_t step,
                   struct err *err)
{
    AUTO_JSON json_t *past = json_array();
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_METRIC_PAST);
        stmt_int(&q, ":cycle", cycle);
        stmt_int(&q, ":step", step);
        int r;
        while ((r = stmt_row(&q, err)) > 0)
            json_array_append_new(past, json_integer(col_int(&q, 0)));
        if (r < 0)
            return r;
    }
    size_t i;
    json_t *series;
    json_array_foreach(past, i, series)
    {
        int r = archive(st, cycle, json_integer_value(series), step, err);
        if (r < 0)
            return r;
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

struct item {
    int64_t cycle, number, series, points, unfinite, share;
    char name[129];
};

/* What there is of the series that are wanted: malloc'd. */
static int list_items(struct store *st, int64_t job, int64_t cycle,
                      const char *series, struct item **ret, size_t *ret_n,
                      struct err *err)
{
    AUTO_FREE struct item *list = NULL;
    size_t n = 0, cap = 0;
    int r;
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_METRIC_SERIES);
    stmt_int(&q, ":job", job);
    stmt_int(&q, ":cycle", cycle);
    while ((r = stmt_row(&q, err)) > 0) {
        if (!wanted(series, col_text(&q, 3)))
            continue;
        if (n == cap) {
            cap = cap ? cap * 2 : 16;
            struct item *more = realloc(list, cap * sizeof(*list));
            if (!more)
                return err_set(err, ERR_NOMEM, "no memory for the series");
            list = more;
        }
        struct item *i = &list[n++];
        *i = (struct item){.cycle = col_int(&q, 0),
                           .number = col_int(&q, 1),
                           .series = col_int(&q, 2)};
        snprintf(i->name, sizeof(i->name), "%s", col_text(&q, 3));
        r = band_count(st, i->cycle, i->series, &i->points, &i->unfinite, err);
        if (r < 0)
            return r;
    }
    if (r < 0)
        return r;
    *ret = list;
    *ret_n = n;
    list = NULL;
    return 0;
}

/* Each one's part of the points that its series may have in all cycles. */
static void share(struct item *list, size_t n, int64_t points)
{
    for (size_t i = 0; i < n; i++) {
        if (list[i].share)
            continue;
        int64_t all = 0;
        for (size_t k = i; k < n; k++)
            if (list[k].series == list[i].series)
                all += list[k].points;
        for (size_t k = i; k < n; k++)
            if (list[k].series == list[i].series)
                list[k].share = all <= points
                                    ? points
                                    : (list[k].points * points + all - 1) / all;
    }
}

int metric_series(struct store *st, int64_t job, int64_t cycle,
                  const char *series, int64_t points, json_t **ret,
                  struct err *err)
{
    AUTO_FREE struct item *list = NULL;
    size_t n = 0;
    int r = list_items(st, job, cycle, series, &list, &n, err);
    if (r < 0)
        return r;
    share(list, n, points);
    AUTO_JSON json_t *items = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *curve;
        r = band_curve(st, list[i].cycle, list[i].series, list[i].points,
                       list[i].share, &curve, err);
        if (r < 0)
            return r;
        json_array_append_new(
            items, json_pack("{sI ss sI sI so}", "cycle", list[i].number,
                             "series", list[i].name, "count", list[i].points,
                             "not_finite", list[i].unfinite, "points", curve));
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
