/* metric.h - time series of a job: losses and rates by step.
 *
 * One value per cycle, series and step. When a lease begins, rows past the
 * point at which it resumes are archived, not mixed in: the steps are trained
 * again, and what the new lease reports for them is compared with what the old
 * one said. With equal fingerprints the two must be equal to the last bit.
 * Curves are drawn from bands (band.h), which every change here keeps. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/buf.h"
#include "schema/err.h"
#include "server/store.h"

/* A report's rows, [[step, {series: value}], …]. *ret_differ: how many values
 * of loss, lr and grad_norm differ from an archived lease's; *ret_what: the
 * first of them, as a sentence. */
int metric_add(struct store *st, int64_t cycle, int64_t lease,
               const json_t *rows, int64_t *ret_differ, char *ret_what,
               size_t cap, struct err *err);
/* Archive the rows of a cycle past `step`. */
int metric_archive(struct store *st, int64_t cycle, int64_t step,
                   struct err *err);

/* {"items": [{cycle, series, count, not_finite, points: [[step, value], …]}]}:
 * of all cycles, or one (0: all); of all series, or those in a comma-separated
 * list. At most about `points` a series, in all cycles together: the lowest and
 * highest of each stretch, and what is not finite. */
int metric_series(struct store *st, int64_t job, int64_t cycle,
                  const char *series, int64_t points, json_t **ret,
                  struct err *err);
/* The newest value of a series in a cycle: 1, or 0. */
int metric_last(struct store *st, int64_t job, int64_t cycle,
                const char *series, int64_t *ret_step, double *ret_value,
                struct err *err);
/* Where a table goes on; {0}: at its start. */
struct csv_at {
    bool begun;
    int64_t cycle, step, lease, at_ms;
};
/* cycle,step,series,value of all there is, a piece at a time, so that a long
 * job costs no more memory than a short one. 1: call again; 0: that was all. */
int metric_csv(struct store *st, int64_t job, int64_t cycle, const char *series,
               struct csv_at *at, struct buf *ret, struct err *err);
