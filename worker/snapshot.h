/* snapshot.h - a copy of the whole train state at an optimizer-step boundary.
 *
 * All tensors in host memory (from a device, too) and the feed's position: what
 * is written from it while training goes on is what would have been written had
 * training waited. It takes as many bytes as the state has, in one mapping that
 * goes back to the system as soon as it is freed. */
#pragma once
#include <stdint.h>
#include "schema/err.h"
#include "worker/feed.h"
#include "worker/save.h"
#include "worker/torch_shim.h"

struct snapshot;

/* `bytes`: of the state's tensors (trainer_state_bytes). ERR_NOMEM when there
 * is not that much memory; the trainer is as it was. */
int snapshot_take(struct trainer *t, struct feed *f, int64_t bytes,
                  struct snapshot **ret, struct err *err);
void snapshot_free(struct snapshot *s);
/* Its tensors and position, to be saved; borrowed from it. */
struct state_out snapshot_state(struct snapshot *s);
