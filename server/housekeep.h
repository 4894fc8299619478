/* housekeep.h - what the server does unasked, about once a second.
 *
 * On the WRITE lane: silent leases expire, back-offs end, checkpoints beyond
 * `keep` go, files of removed shards are unlinked. Then, when chunks may have
 * lost their last checkpoint, READ finds them and CHUNK removes them, a few at
 * a time, so that a large sweep delays no save. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "schema/err.h"

struct lanes;

struct housekeep {
    int64_t swept_mono_ms; /* when a sweep last found nothing to do */
    bool sweep_more;       /* the last one stopped at its limit */
};

/* Blocks until done; call it from a thread that is no lane's own. */
int housekeep_tick(struct housekeep *h, struct lanes *lanes, struct err *err);
