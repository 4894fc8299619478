/* housekeep.h - what the server does unasked, about once a second.
 *
 * On the WRITE lane: silent leases expire, back-offs end, files of removed
 * shards are unlinked; less often, checkpoints that need not stay go. Then READ
 * looks for chunks that no checkpoint names, and CHUNK removes them, a few at
 * a time, so that a large sweep delays no save. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/err.h"

struct lanes;

struct housekeep { /* all-zero at first */
    int64_t beats;
    int64_t chunk_after; /* how far the sweep has looked */
    int64_t job_after;   /* and pruning */
    int64_t turn;        /* of the sweep, see backup.h */
    json_t *doomed;      /* files to unlink, for one beat */
};

/* Blocks until done; call it from a thread that is no lane's own. */
int housekeep_tick(struct housekeep *h, struct lanes *lanes, struct err *err);
