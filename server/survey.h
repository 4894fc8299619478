/* survey.h - what must be read before a cycle's data can be frozen.
 *
 *   cycle_ready ──► waits for 'data' ──► errand: list the root, read what is new
 *        ▲                               or changed, make indexes that are
 *        │                               missing, count what is held out
 *        └── job_settle ◄── what it found, in the cycle's row ◄──┘
 *
 * Each file that was read is kept at once, so a server that stops goes on where
 * it was. The job says how far it is. An error of the data is the job's end, as
 * it is anywhere else; a disk that fails is tried again. A cycle that waits for
 * new records below a root is looked at again in the same way. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "schema/err.h"
#include "server/root.h" /* root_stop_fn */
#include "server/store.h"

struct errand;
struct errands;
struct lanes;

/* From now on cycles that want it are seen to; NULL: no more. */
void survey_start(struct errands *es);
/* On the writer, about once a second: what was not begun, because the server
 * was started anew or the disk failed; and those that wait for new records. */
int survey_tick(struct store *st, int64_t now_ms, struct err *err);
/* One cycle, on an errand's thread; what survey_start's errands run. */
int survey_run(struct errand *e, struct lanes *lanes, int64_t cycle,
               struct err *err);

/* Make DIR/index/<sha256> of a stored text anew. ERR_DATA when the text is not
 * that one any more. Not on a lane: it reads all of it. */
int survey_index(const char *dir, const char *path, const char *form,
                 int64_t bytes, const char *sha256, root_stop_fn *stop,
                 void *arg, struct err *err);
