/* beat.h - the lease's pulse: a thread that reports and listens.
 *
 * It sends a heartbeat every few seconds, whatever the trainer is doing: one
 * step, a save or a scan of data may take longer than the lease's term. What
 * the trainer reports gathers in an outbox and stays there until the server has
 * acknowledged it, be it by a heartbeat or by a checkpoint that carried it. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "worker/client.h"
#include "worker/memory.h"

struct beat;

enum order {
    ORDER_CONTINUE,
    ORDER_YIELD, /* save, release, exit */
    ORDER_STOP,  /* exit without a save: the server wants none */
    ORDER_LOST,  /* somebody else has the cycle, or it is gone */
};

/* Totals of the cycle. */
struct progress {
    const char *stage; /* load, first_step, train, validate, save; static */
    int64_t step, epoch, records, micro_batches;
    double records_per_s; /* < 0: not known */
};

/* Means over the records of a step, or over those that are held out. */
struct loss_means {
    float total, policy, value;
};

/* One optimizer step; step is 1-based. */
struct metric {
    int64_t step;
    struct loss_means loss;
    float lr, grad_norm, records_per_s;
    int64_t shapes;   /* distinct ones of micro-batches, in this process */
    int64_t exceeded; /* records beyond the padding's profile, in this cycle;
                       * < 0: it has none */
    float waste;      /* part of this step's padded entries that hold nothing */
    bool validated;
    struct loss_means validation;
};

/* What was odd about the data so far in the cycle. */
struct data_report {
    int64_t skipped, renormalised;
    json_t *bad;      /* the first that were skipped */
    json_t *exceeded; /* {dimension: {"count", "longest"}} */
};

/* has_policy, has_value: which losses exist; from: what the first one says. */
int beat_start(const struct client_options *o, int64_t lease, int64_t token,
               int64_t runtime_version, double interval_s, bool has_policy,
               bool has_value, const struct progress *from, struct beat **ret,
               struct err *err);
void beat_stop(struct beat *b); /* joins the thread, frees */

void beat_progress(struct beat *b, const struct progress *p);
int beat_metric(struct beat *b, const struct metric *m, struct err *err);
void beat_memory(struct beat *b, const struct memory_sample *s);
void beat_log(struct beat *b, const char *level, const char *text);
/* The same, to stderr as well; b may be NULL. */
void beat_say(struct beat *b, const char *level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Takes its JSON. */
void beat_data(struct beat *b, const struct data_report *d);

/* What the server wants; *reason gets its word. */
enum order beat_order(struct beat *b, char *reason, size_t cap);
/* A newer runtime policy, once; caller owns. NULL: none. */
json_t *beat_runtime(struct beat *b);
/* Seconds since the server last answered; 0 while it does. */
double beat_away_s(struct beat *b);
/* A mark behind the metrics there are by now. */
size_t beat_mark(struct beat *b);
/* Send now what waits, and wait until all metrics up to a mark are
 * acknowledged. false: `give_up` said so. */
bool beat_flush_to(struct beat *b, size_t mark, client_give_up_fn *give_up,
                   void *arg);
/* The same, until so few are left, of everything, that one request takes them. */
bool beat_flush(struct beat *b, client_give_up_fn *give_up, void *arg);
/* Send a heartbeat now, without waiting for it. */
void beat_now(struct beat *b);

/* Put all that waits into a checkpoint's or release's body, as a heartbeat has
 * it (with position, without token); heartbeats leave it out until done. */
int beat_report(struct beat *b, json_t *body, struct err *err);
void beat_reported(struct beat *b, bool acknowledged);
