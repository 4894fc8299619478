#include "server/stall.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define QUIET_MIN_MS 30000
#define QUIET_STEPS 10
#define WEIGHT 0.2 /* of the newest step in the mean */

enum stall_word stall_look(struct stall *s, const char *stage, int64_t steps,
                           int64_t mono_ms)
{
    bool was = s->stalled;
    int64_t quiet = mono_ms - s->moved_mono_ms;
    if (quiet < 0)
        quiet = 0;
    if (steps > 0) {
        double each = (double)quiet / (double)steps;
        s->step_ms =
            s->step_ms > 0 ? s->step_ms + WEIGHT * (each - s->step_ms) : each;
        s->moved_mono_ms = mono_ms;
        s->stalled = false;
    } else if (!strcmp(stage, "load") || !strcmp(stage, "save") ||
               !strcmp(stage, "validate")) {
        s->moved_mono_ms = mono_ms; /* between two steps */
        s->stalled = false;
    } else if (!strcmp(stage, "train")) {
        double most = QUIET_STEPS * s->step_ms;
        s->stalled = quiet > (most > QUIET_MIN_MS ? most : QUIET_MIN_MS);
    }
    return s->stalled ? (was ? STALL_GOES_ON : STALL_BEGINS)
           : was      ? STALL_ENDS
                      : STALL_NONE;
}

void stall_text(const struct stall *s, int64_t mono_ms, char *ret, size_t cap)
{
    double usual = s->step_ms / 1000;
    int64_t quiet_s = (mono_ms - s->moved_mono_ms) / 1000;
    if (usual <= 0)
        snprintf(ret, cap, "no step for %" PRId64 " s", quiet_s);
    else
        snprintf(ret, cap,
                 usual < 1 ? "no step for %" PRId64
                             " s (one usually takes %.2g s)"
                 : usual < 10
                     ? "no step for %" PRId64 " s (one usually takes %.1f s)"
                     : "no step for %" PRId64 " s (one usually takes %.0f s)",
                 quiet_s, usual);
}

int stall_why(struct store *st, int64_t cycle, char *ret, size_t cap,
              struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_LEASE_STALLED);
    stmt_int(&q, ":cycle", cycle);
    int r = stmt_row(&q, err);
    if (r > 0)
        snprintf(ret, cap, "%s", col_text(&q, 0));
    return r;
}
