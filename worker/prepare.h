/* prepare.h - a lease from its claim to the first step (run.h). */
#pragma once
#include "worker/run.h"

/* What every lease needs, from the server's answer in r->claim. ERR_INVALID. */
int prepare_claim(struct run *r, struct err *err);
/* Specs, data, model and the state to go on from. *ret_bad: the checkpoint that
 * did not verify. */
int prepare(struct run *r, int64_t *ret_bad, struct err *err);
