/* dry_run.h - what a submission would become, explained.
 *
 * The resolved spec, its signature and steps, the memory that it will take and
 * who of the workers known now could train it; of the others, why not. Some
 * records are read for it, so that lengths are the data's and not guessed. */
#pragma once
#include <jansson.h>
#include <stdint.h>
#include "schema/err.h"
#include "schema/spec.h"
#include "server/store.h"

/* Reads only. ERR_INVALID as job_submit's. */
int dry_run(struct store *st, const struct spec *spec, int64_t now_ms,
            json_t **ret, struct err *err);
