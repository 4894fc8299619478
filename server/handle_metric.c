#include "server/handle.h"
#include "server/job.h"
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
    return r < 0 ? r : job_load(ctx->st, *ret_id, &j, err);
}

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
    if (req_as(req) == AS_CSV) {
        CLEANUP(buf_release) struct buf b = {0};
        r = metric_csv(ctx->st, id, cycle, series, &b, err);
        return r < 0 ? r : reply_bytes(ret, 200, "text/csv; charset=utf-8", &b);
    }
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
    if (req_as(req) == AS_CSV) {
        CLEANUP(buf_release) struct buf b = {0};
        r = memory_csv(ctx->st, id, &b, err);
        return r < 0 ? r : reply_bytes(ret, 200, "text/csv; charset=utf-8", &b);
    }
    json_t *out = NULL;
    r = memory_series(ctx->st, id, points, &out, err);
    return r < 0 ? r : reply_json(ret, 200, out);
}
