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
 * Exit code and signal are kept apart, and 137 alone proves nothing: only the
 * kernel's own word (cgroup counter, log line) makes it an out-of-memory kill.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "schema/buf.h"
#include "schema/err.h"

struct server;
struct supervisor;

enum death_kind { DEATH_EXIT, DEATH_SIGNAL, DEATH_UNKNOWN };

/* How a worker ended. DEATH_UNKNOWN: it was adopted, so its status went to
 * init. */
struct death {
    int64_t pid, start_ticks;
    enum death_kind kind;
    int code, signal; /* one of them, or -1 */
    bool oom_confirmed;
    char verdict[160];    /* "was killed by signal 9, cause unknown" */
    char evidence[512];   /* the kernel's line or the counter; "" if none */
    char last_lines[600]; /* of its stderr; "" if none */
};

/* Is this exit the normal end of a worker? */
bool death_is_clean(const struct death *d);
/* Fill verdict from kind, code, signal and oom_confirmed. */
void death_judge(struct death *d);

/* Adopt the workers that live, report those that died unseen. Nobody is started
 * before supervisor_start. */
int supervisor_new(struct server *s, struct supervisor **ret, struct err *err);
int supervisor_start(struct supervisor *sup, struct err *err);
/* Workers get SIGTERM, the stand-by is let go, nobody is started any more.
 * Returns at once. */
void supervisor_drain(struct supervisor *sup);
/* Wait until all workers are gone: true, or until `timeout_ms`: false. */
bool supervisor_wait(struct supervisor *sup, int timeout_ms);
/* Workers that still live are left alone. */
void supervisor_free(struct supervisor *sup);
/* How many workers are alive now, the stand-by not counted. */
int supervisor_alive(struct supervisor *sup);
