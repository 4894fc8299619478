/* lease.h - who may train which cycle, until when.
 *
 * A lease is a promise with an end. Each claim of a cycle raises the cycle's
 * token, and a write counts only with the newest one: a worker that wakes up
 * late cannot overwrite its successor. Whatever is sent twice gets the first
 * answer and changes nothing the second time.
 *
 *   claim ──► live ── release ──► finished | yielded | failed
 *              │ ▲
 *   silence or │ │ a heartbeat with the newest token, as long as nobody else
 *   death      ▼ │ claimed the cycle (a dead process sends none)
 *             lost
 *
 * Silence is measured on the monotonic clock of the server's run: a lease that
 * an earlier run handed out counts from the moment this one began to listen
 * (lease_listening). Times are passed in; nothing here reads a clock.
 *
 * Yields cost nothing. Lost leases and failures each have a budget that durable
 * progress (a newer checkpoint) fills again; leases in a row that got no
 * further than those before them have a third. A spent budget fails the job. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/digest.h"
#include "schema/err.h"
#include "server/death.h"
#include "server/report.h"
#include "server/store.h"
#include "server/worker.h"

/* How often workers report and when silence ends a lease. Fixed before the
 * first claim; tests shorten it. */
struct lease_timing {
    int64_t heartbeat_ms, expiry_ms;
};
extern struct lease_timing lease_timing;

/* ---- for the server's run ---- */

/* This run began to listen at mono_ms: leases of earlier runs count from here.
 * Once, before the first lease_tick. */
int lease_listening(struct store *st, int64_t mono_ms, struct err *err);
/* About once a second, on the WRITE lane: expire silent leases, end back-offs.
 * The count of leases lost, or < 0. */
int lease_tick(struct store *st, int64_t now_ms, int64_t mono_ms,
               struct err *err);
/* A process of this host is gone, whoever found out. 1: it held a lease, which
 * is lost now; 0: it held none. */
int lease_died(struct store *st, const struct death *d, const char *boot,
               int64_t now_ms, struct err *err);
/* The same where only that is known. `how` ends the sentence "the worker …"
 * ("ended while the server was away"). evidence: NULL or what proves it. */
int lease_worker_died(struct store *st, int64_t pid, int64_t started,
                      const char *boot, const char *how, const char *evidence,
                      int64_t now_ms, struct err *err);

/* ---- the worker protocol (schema/wire.h), in order of use ---- */

/* Claim the first cycle that this worker can train, or get back the lease that
 * it holds. 1: *ret is the answer's body; 0: there is none for it. A process
 * whose lease has ended, or that was drained, gets ERR_STALE: it may go. */
int lease_claim(struct store *st, const struct worker_claim *in, int64_t now_ms,
                int64_t mono_ms, json_t **ret, struct err *err);

/* 0 when the lease is live and the token is its own, else ERR_STALE or
 * ERR_NOT_FOUND. Reads only. */
int lease_check(struct store *st, int64_t id, int64_t token, struct err *err);

int lease_heartbeat(struct store *st, int64_t id, int64_t token,
                    const struct report *in, bool shutting_down, int64_t now_ms,
                    int64_t mono_ms, json_t **ret, struct err *err);

/* A manifest whose chunks were found to be stored (checkpoint.h). */
struct checkpoint_in;
/* Make the checkpoint exist, and with `release` end the lease in the same
 * transaction. *ret: {"id", "digest", "outcome"?}. */
int lease_checkpoint(struct store *st, int64_t id, int64_t token,
                     const struct checkpoint_in *in,
                     const struct release *release, int64_t now_ms,
                     int64_t mono_ms, json_t **ret, struct err *err);
/* *ret: {"outcome"}. */
int lease_release(struct store *st, int64_t id, int64_t token,
                  const struct release *in, int64_t now_ms, int64_t mono_ms,
                  json_t **ret, struct err *err);

/* ---- for readers ---- */

/* {"items", "next"} of a job's leases, oldest first, as DESIGN §7 has them. */
int lease_list(struct store *st, int64_t job, int64_t after, int64_t limit,
               json_t **ret, struct err *err);
