/* memory.h - what a job's workers used, by time: the three levels of DESIGN 6.
 *
 * A sample belongs to a lease; one that comes again is kept once. How many a
 * lease sent stands in its row, so that a long series is thinned by a few seeks
 * instead of by reading it. */
#pragma once
#include <jansson.h>
#include <stdint.h>
#include "schema/buf.h"
#include "schema/err.h"
#include "server/metric.h"
#include "server/store.h"

/* Samples of a report. */
int memory_add(struct store *st, int64_t job, int64_t lease, const json_t *rows,
               struct err *err);
/* {"items": [{lease, at, step, allocated_bytes, …}], "count"}: all, or at most
 * `points` at about equal distances of time in each lease. */
int memory_series(struct store *st, int64_t job, int64_t points, json_t **ret,
                  struct err *err);
/* The same in rows, a piece at a time (metric_csv). */
int memory_csv(struct store *st, int64_t job, struct csv_at *at,
               struct buf *ret, struct err *err);
