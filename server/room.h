/* room.h - is there room on disk for a state, and whose is it?
 *
 *   a worker asks before its save ──► the room is promised to its lease ──►
 *        │                            its chunks take it up ──► checkpoint or
 *        │                            release: what is left is let go
 *        └─► bytes are missing: the job says so, the save is put off, the
 *            checkpoint before it stays
 *   a lease ends without a save ──► its cycle is parked: waiting, at the cost of
 *            no budget ──► there is room for it (room_tick) ──► ready again
 *
 * Room is what the disk has free, less store_spare: the last of it is kept for
 * what must be written even then, heartbeats and releases above all. Pages that
 * checkpoints.db has free itself count as room, for the next chunks go there.
 *
 * Promises are in memory. They only keep two saves from beginning where one can
 * end; each chunk is measured against the disk besides. So a restart may forget
 * them: at worst a chunk is refused, and its save is put off. A promise that no
 * chunk has been seen for since a minute is let go. Any lane may call. */
#pragma once
#include <stdint.h>
#include "schema/err.h"
#include "server/cycle.h"
#include "server/lease_row.h"
#include "server/report.h"
#include "server/store.h"

struct room; /* the promises of one server */
int room_new(struct room **ret, struct err *err);
void room_free(struct room *room);

/* Promise room for a state of `bytes` to a lease, in place of what it was
 * promised before; *ret_missing: 0, or the bytes that are missing, and then
 * nothing is promised. `chunks` is a connection to checkpoints.db. */
int room_ask(struct room *room, struct store *chunks, int64_t lease,
             int64_t bytes, int64_t mono_ms, int64_t *ret_missing,
             struct err *err);
/* Before a chunk is stored: ERR_NOSPACE, with missing_bytes, when it would take
 * what was promised to others. */
int room_check(struct room *room, struct store *chunks, int64_t lease,
               int64_t bytes, int64_t mono_ms, struct err *err);
/* It is stored. */
void room_used(struct room *room, int64_t lease, int64_t bytes,
               int64_t mono_ms);
void room_drop(struct room *room, int64_t lease);

/* ---- what the job says of it (pawl.db) ---- */

/* What a lease was told when it asked: missing 0 for room. */
int room_told(struct store *st, int64_t lease, int64_t token, int64_t step,
              int64_t missing, int64_t now_ms, struct err *err);
/* 1 and a sentence while the save of a cycle's live lease is put off; or 0. */
int room_why(struct store *st, int64_t cycle, char *ret, size_t cap,
             struct err *err);
/* A lease ended for want of room: its cycle waits for that. */
int room_park(struct store *st, struct lease *l, struct cycle *c,
              const struct release *in, int64_t now_ms, struct err *err);
/* Now and then, on the WRITE lane: unpark what there is room for, say how much
 * is missing for the others, let go of promises to leases that ended. */
int room_tick(struct room *room, struct store *st, struct store *chunks,
              int64_t now_ms, int64_t mono_ms, struct err *err);
