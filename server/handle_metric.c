#include <stdlib.h>
#include <string.h>
#include "server/handle.h"
#include "server/job.h"
#include "server/memory.h"
#include "server/metric.h"

#define POINTS_DEFAULT 1000
#define POINTS_MAX 100000

static int job_of(struct ctx *ctx, struct request *req, int64_t *ret_id,
                  int64_t *ret_points, struct err *err)
{
    CLEANUP(job_release) struct job j = {0};
    int r = req_id(req, "id", ret_id, err);
    if (r >= 0)
        r = req_query_int(req, "points", 2, POINTS_MAX, POINTS_DEFAULT,
                          ret_points, err);
    return r < 0 ? r : job_load_part(ctx->st, *ret_id, 0, &j, err);
}

/* ---- CSV ---- */

struct csv {
    int64_t job, cycle;
    char *series; /* NULL: all */
    struct csv_at at;
};

static void csv_free(void *p)
{
    struct csv *c = p;
    free(c->series);
    free(c);
}

static int metrics_next(struct ctx *ctx, void *source, struct buf *out,
                        struct err *err)
{
    struct csv *c = source;
    return metric_csv(ctx->st, c->job, c->cycle, c->series, &c->at, out, err);
}

static int memory_next(struct ctx *ctx, void *source, struct buf *out,
                       struct err *err)
{
    struct csv *c = source;
    return memory_csv(ctx->st, c->job, &c->at, out, err);
}

static int reply_csv(struct reply *ret, int64_t job, int64_t cycle,
                     const char *series, reply_next_fn *next, struct err *err)
{
    struct csv *c = calloc(1, sizeof(*c));
    if (c && series)
        c->series = strdup(series);
    if (!c || (series && !c->series)) {
        free(c);
        return err_set(err, ERR_NOMEM, "no memory for a table");
    }
    c->job = job;
    c->cycle = cycle;
    return reply_stream(ret, "text/csv; charset=utf-8", 0, next, c, csv_free);
}

/* ---- requests ---- */

int handle_metrics(struct ctx *ctx, struct request *req, struct reply *ret,
                   struct err *err)
{
    int64_t id, points, cycle;
    const char *series = req_query(req, "series");
    int r = req_query_int(req, "cycle", 0, INT64_MAX, 0, &cycle, err);
    if (r >= 0)
        r = job_of(ctx, req, &id, &points, err);
    if (r < 0)
        return r;
    if (req_as(req) == AS_CSV)
        return reply_csv(ret, id, cycle, series, metrics_next, err);
    json_t *out = NULL;
    r = metric_series(ctx->st, id, cycle, series, points, &out, err);
    return r < 0 ? r : reply_json(ret, 200, out);
}

int handle_memory(struct ctx *ctx, struct request *req, struct reply *ret,
                  struct err *err)
{
    int64_t id, points;
    int r = job_of(ctx, req, &id, &points, err);
    if (r < 0)
        return r;
    if (req_as(req) == AS_CSV)
        return reply_csv(ret, id, 0, NULL, memory_next, err);
    json_t *out = NULL;
    r = memory_series(ctx->st, id, points, &out, err);
    return r < 0 ? r : reply_json(ret, 200, out);
}
