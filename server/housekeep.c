#include "server/housekeep.h"
#include "server/checkpoint.h"
#include "server/dataset.h"
#include "server/lane.h"
#include "server/lease.h"
#include "server/once.h"
#include "server/worker.h"

#define PRUNE_BEATS 5
#define FORGET_BEATS 600
#define SWEEP_CHUNKS 2048 /* looked at in one go */

static int on_write(void *arg, struct ctx *ctx, struct err *err)
{
    const struct housekeep *h = arg;
    int r = lease_tick(ctx->st, ctx->now_ms, ctx->mono_ms, err);
    if (r >= 0)
        r = dataset_unlink(ctx->st, err);
    if (r >= 0 && h->beats % PRUNE_BEATS == 0)
        r = checkpoint_prune(ctx->st, err);
    if (r >= 0 && h->beats % FORGET_BEATS == 0)
        r = once_prune(ctx->st, ctx->now_ms, err);
    if (r >= 0 && h->beats % FORGET_BEATS == 0)
        r = worker_prune(ctx->st, ctx->now_ms, err);
    return r;
}

struct sweeping {
    struct housekeep *h;
    struct sweep sweep;
};

static int on_read(void *arg, struct ctx *ctx, struct err *err)
{
    struct sweeping *s = arg;
    return sweep_find(ctx->st, ctx->chunks, &s->h->chunk_after, SWEEP_CHUNKS,
                      &s->sweep, err);
}

static int on_chunk(void *arg, struct ctx *ctx, struct err *err)
{
    struct sweeping *s = arg;
    return sweep_run(ctx->st, &s->sweep, err);
}

int housekeep_tick(struct housekeep *h, struct lanes *lanes, struct err *err)
{
    h->beats++;
    int r = lanes_call(lanes, LANE_WRITE, on_write, h, err);
    if (r < 0 || h->beats % PRUNE_BEATS)
        return r;
    struct sweeping s = {.h = h};
    r = lanes_call(lanes, LANE_READ, on_read, &s, err);
    /* now and then also without orphans: ended leases let go of holds */
    if (r > 0 || (r == 0 && h->beats % FORGET_BEATS == 0))
        r = lanes_call(lanes, LANE_CHUNK, on_chunk, &s, err);
    sweep_release(&s.sweep);
    return r;
}
