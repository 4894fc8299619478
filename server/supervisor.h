/* supervisor.h - keeps N local workers alive, and says how each one ended.
 *
 * A worker trains one lease and exits; that is the normal end, and a stand-by
 * with libtorch loaded steps in once the predecessor's process is gone. A
 * worker that dies is seen at once (pidfd), also one that an earlier run of
 * this server started: those are found in the worker table by pid, start time
 * and boot id, and count among N.
 *
 *   spawned --standby ──"go"──► active ──exit 0──► (gone) ─► stand-by steps in
 *                                 └──── signal, code ─► death ─► reported
 *
 * One that an earlier run had started and that claimed only after this one
 * looked is adopted within a second. A worker that hangs, so that its lease was
 * lost by silence, is killed when it had time to come back: its stand-by may
 * not start beside it.
 *
 * What a death is taken for, and on what evidence, is death.h's affair. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "schema/err.h"
#include "server/death.h"

struct server;
struct supervisor;

/* Adopt the workers that live, report those that died unseen. Nobody is started
 * before supervisor_start. */
int supervisor_new(struct server *s, struct supervisor **ret, struct err *err);
int supervisor_start(struct supervisor *sup, struct err *err);
/* Workers get SIGTERM, the stand-by is let go, nobody is started any more; who
 * has not ended when the drain timeout is over is killed. Returns at once. */
void supervisor_drain(struct supervisor *sup);
/* Wait until all workers are gone: true, or until `timeout_ms`: false. */
bool supervisor_wait(struct supervisor *sup, int timeout_ms);
/* Workers that still live are left alone. */
void supervisor_free(struct supervisor *sup);
/* How many workers are alive now, the stand-by not counted. */
int supervisor_alive(struct supervisor *sup);
