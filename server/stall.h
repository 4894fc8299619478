/* stall.h - does a lease still take steps?
 *
 * A worker that hangs in a driver, a lock or a network file goes on sending
 * heartbeats. So each lease keeps when it took its last step and what a step
 * usually takes (a mean that forgets), and one whose training has taken none
 * for ten times that, and for 30 s at least, is stalled: the job's reason says
 * so, and an event does. It is told, not killed: steps may be
 * long, and only its owner knows.
 *
 * Loading, the first step and saves take what they take and are not judged;
 * neither is time in which the server did not listen (the clock is that of
 * heard_mono_ms, which lease_listening sets anew). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "schema/err.h"
#include "server/store.h"

struct stall {
    int64_t moved_mono_ms; /* its last step, or when it could take one */
    double step_ms;        /* 0: not known yet */
    bool stalled;
};
enum stall_word { STALL_NONE, STALL_BEGINS, STALL_GOES_ON, STALL_ENDS };
/* After a heartbeat in `stage` with so many more steps. Pure. */
enum stall_word stall_look(struct stall *s, const char *stage, int64_t steps,
                           int64_t mono_ms);
/* "no step for 95 s (one usually takes 2.1 s)" */
void stall_text(const struct stall *s, int64_t mono_ms, char *ret, size_t cap);

/* 1 and the sentence when the cycle's lease is stalled. */
int stall_why(struct store *st, int64_t cycle, char *ret, size_t cap,
              struct err *err);
