/* trace.h - a debugging aid: PAWL_TRACE=FILE gets one line of JSON per trained
 * optimizer step, {"step", "epoch", "records": [[shard, offset], …]}, in the
 * order in which the records were trained. Steps count from 1. */
#pragma once
#include <stdint.h>
#include "schema/err.h"
#include "worker/feed.h"

struct trace;

/* *ret is NULL when PAWL_TRACE is not set; every call accepts that. */
int trace_open(struct trace **ret, struct err *err);
void trace_micro(struct trace *t, const struct feed *f,
                 const struct feed_batch *b);
void trace_step(struct trace *t, int64_t step, int64_t epoch);
void trace_close(struct trace *t);
