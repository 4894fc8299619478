/* run.h - one lease under way, as the worker's loop sees it (loop.h).
 *
 * prepare.c brings it from the claim to its first step, loop.c trains, leave.c
 * ends it. What they share stands here. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/err.h"
#include "schema/spec.h"
#include "worker/beat.h"
#include "worker/client.h"
#include "worker/evaluate.h"
#include "worker/feed.h"
#include "worker/loop.h"
#include "worker/memory.h"
#include "worker/remote.h"
#include "worker/saver.h"
#include "worker/torch_shim.h"
#include "worker/trace.h"

struct run {
    const struct worker_options *o;
    struct client *client;
    json_t *claim; /* the server's answer */
    struct spec spec;
    struct runtime_policy runtime;
    int64_t lease, token, steps, step_base, cycle;
    json_t *fingerprint; /* goes into manifests */
    const char *signature, *device;
    double began; /* when the lease was granted */

    struct beat *beat;
    struct trainer *trainer;
    struct remote *remote; /* NULL: the shards are here */
    int remote_tries;      /* in a row */
    double remote_asked;
    struct feed *feed;
    struct evaluate *evaluate; /* NULL: nothing is held out */
    struct trace *trace;
    struct saver *saver;
    struct memory memory;
    struct thresholds thresholds;

    struct progress progress;
    const char *oom_stage; /* where memory would run out now */
    struct lease_use use;
    int64_t first_step; /* trained by this lease: steps before it */

    struct memory_sample sample, sample_sent;
    double padded, held; /* entries of batches, up to the last step */
    bool unsaved; /* a step that must not count: it could not be validated */
    double step_began, rate, rate_weight;

    int tries;           /* at what is under way for the lease's end */
    int64_t state_bytes; /* that there was no room for */
};

double run_seconds(void); /* monotonic */
bool run_told_to_end(const struct run *r);
/* Nothing that this lease writes will count any more. */
bool run_is_over(struct run *r);
/* Between attempts at what the lease cannot begin or end without; arg: the run. */
bool run_give_up(void *arg);
/* Between attempts to get data. Nothing is lost with them: whoever is to end does
 * not wait. */
bool run_data_give_up(void *arg);

void run_set_stage(struct run *r, const char *stage);
/* What was odd about the data so far, for the next report. *ret (may be NULL):
 * what the feed counted; its list is gone. Returns the records beyond the
 * padding's profile, once for each dimension. */
int64_t run_tell_data(struct run *r, struct feed_stats *ret);
void run_use_policy(struct run *r);
void run_take_sample(struct run *r);
/* Keep the sample for the server if it tells something: a new peak, or merely
 * that time went by. */
void run_keep_sample(struct run *r, bool always);
