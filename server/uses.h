/* uses.h - how often a record may be used over the cycles of a job.
 *
 * With data.max_uses k, each record that no earlier cycle of the job had adds k
 * uses, and a cycle takes what is there, at most all its epochs; what is left is
 * for the next. Where that is less than one effective batch the cycle waits for
 * new records. What a job has had stands in the table job_records, a row for each
 * shard: one that grew brings what came, one that is another by now all it has.
 * Records that are kept for validation do not count. */
#pragma once
#include <jansson.h>
#include <stdint.h>
#include "schema/err.h"
#include "server/snapshot.h"
#include "server/store.h"

/* fresh, take, uses_left and wanted of a snapshot of these shards. */
int uses_fill(struct store *st, const struct spec *spec, int64_t job,
              const json_t *shards, struct snapshot *ret, struct err *err);
/* The same of one without any shard yet. */
int uses_wait(struct store *st, const struct spec *spec, int64_t job,
              struct snapshot *ret, struct err *err);
/* A cycle has it: for later ones its records are new no more. */
int uses_keep(struct store *st, const struct spec *spec, int64_t job,
              const struct snapshot *s, struct err *err);
