/* evaluate.h - how well the model does on the records that are held out.
 *
 * After the steps that training.validation names, and after the last one of a
 * cycle, before that step is reported: so a step has its validation however
 * often it is trained again, and none has two. The model is as predictions use
 * it, without dropout; no generator is drawn from and nothing of the state
 * changes, so training goes on as if it had not happened. The records are the
 * same ones in the same micro-batches each time (holdout.h). */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/err.h"
#include "schema/spec.h"
#include "worker/torch_shim.h"

struct evaluate;
struct remote;

/* For a claim's `data`. 1: *ret is there; 0: it has no `validation`. ERR_DATA
 * where no record is held out. The spec must outlive it; `remote` as for
 * feed_open. */
int evaluate_open(const struct spec *spec, const struct runtime_policy *runtime,
                  const json_t *data, struct remote *remote,
                  struct evaluate **ret, struct err *err);
/* Padding or micro-batch changed. */
int evaluate_set_runtime(struct evaluate *e,
                         const struct runtime_policy *runtime, struct err *err);

/* Is it done after optimizer step `step` (1-based) of the cycle? */
bool evaluate_is_due(const struct spec *spec, int64_t step, bool epoch_end,
                     bool cycle_end);

/* Between micro-batches: true ends it, with ERR_STALE. */
typedef bool evaluate_give_up_fn(void *arg);
/* Sums over all records that are held out. ERR_DATA where one of them is bad. */
int evaluate_run(struct evaluate *e, struct trainer *t,
                 evaluate_give_up_fn *give_up, void *arg, struct losses *ret,
                 struct err *err);
void evaluate_close(struct evaluate *e);
