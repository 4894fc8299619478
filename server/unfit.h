/* unfit.h - why nobody takes a job that could be claimed.
 *
 * A claim that gets nothing, and the server's beat, ask of each need in the
 * queue whether one of the known workers meets it (match.h). Where none does,
 * the end of the sentence is kept here, one row a need, and stands behind "waits
 * for a worker" in the reasons of its jobs, those submitted later included:
 * " with a cuda device: worker a has no cuda device". Where no worker is known
 * and the server's own end at once, it is their last words.
 *
 * All jobs of a need are told once, when the sentence changes, some hundred at a
 * time; as long as nothing changes it costs a look at each need. */
#pragma once
#include <stdint.h>
#include "schema/err.h"
#include "server/store.h"

/* Look, and tell those for whom it changed. */
int unfit_tell(struct store *st, int64_t now_ms, struct err *err);

/* The server's own workers end at once: their last words. NULL: no more. */
int unfit_workers(struct store *st, const char *why, struct err *err);
