/* ending.h - how a lease ends, and what becomes of its cycle.
 *
 *   finished ──► the cycle is done
 *   yielded ───► ready again, at the front; costs nothing
 *   lost ──────► ready again, after a pause from the second loss on
 *   failed ────► final (data, spec, not finite): the job fails
 *                a state that does not verify: it is set aside, and the cycle
 *                goes on from the one before
 *                no room on disk for its state: it is parked (room.h)
 *                out of memory with "on_oom": "split": half the micro-batch
 *                else: ready again, after a pause from the second time on
 *
 * Three budgets of the spec's limits bound the repeats: `lost`, `failures`,
 * and `no_progress`, leases in a row that got no further than those before. A
 * checkpoint at a newer step fills all of them again; a spent one fails the
 * job with a sentence about the last time. A state that kills whoever loads it
 * twice in a row is set aside, too. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/err.h"
#include "server/cycle.h"
#include "server/lease_row.h"
#include "server/report.h"
#include "server/store.h"

/* Its worker is gone (`how`: "was killed by signal 9, cause unknown"), or
 * silent for too long: `expired`, and may come back. evidence, death
 * (evidence_death): or NULL. */
int ending_lost(struct store *st, struct lease *l, const char *how,
                const char *evidence, const json_t *death, bool expired,
                int64_t now_ms, struct err *err);

/* Its worker lets go of it, inside the caller's transaction. The report of it
 * is written down already. *ret: {"outcome"}. */
int ending_release(struct store *st, struct lease *l, struct cycle *c,
                   const struct release *in, int64_t now_ms, json_t **ret,
                   struct err *err);
