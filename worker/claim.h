/* claim.h - who this worker is, and asking for a lease. */
#pragma once
#include <jansson.h>
#include "schema/err.h"
#include "worker/client.h"
#include "worker/loop.h"

/* The claim's body; caller owns. */
json_t *claim_body(const struct worker_options *o, struct err *err);
/* Ask until a lease is granted: 1 and its answer (caller owns). 0: the server
 * is gone, the worker was told to end, or, with `once`, there is no work. */
int claim_wait(struct client *c, const struct worker_options *o, json_t **ret,
               struct err *err);
