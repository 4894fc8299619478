/* evidence.h - what is left of the workers that a job lost.
 *
 * A job that kills its workers is failed so that it kills no more; whoever looks
 * into it then needs what only the dead knew. The job's error carries it: of
 * each of the last leases that were lost how its process ended (signal or exit
 * code, the kernel's word, the last lines on stderr), the last lines it logged,
 * and the last memory samples. */
#pragma once
#include <jansson.h>
#include <stdint.h>
#include "schema/err.h"
#include "server/death.h"
#include "server/store.h"

/* How a process ended: {"verdict", "signal" | "exit"?, "out_of_memory"?,
 * "kernel"?, "last_lines"?}. Caller owns. */
json_t *evidence_death(const struct death *d);

/* A list, newest first: {"lease", "worker", "from_step", "step", "stage",
 * "reason", "ended_at", "death"?, "log": […], "memory": […]}. Caller owns *ret. */
int evidence_of(struct store *st, int64_t cycle, json_t **ret, struct err *err);
