/* band.h - lowest and highest of each stretch of a series (table bands).
 *
 *   level 0   one row of `metrics`
 *   level 1   16 steps, 16 rows
 *   level 2   64 steps, 4 bands of level 1
 *   …         4 of the level below
 *   level 5   4096 steps
 *
 * A curve of some hundred points out of a million is drawn from the level whose
 * bands are a little narrower than the curve's stretches: it costs a few rows a
 * point, however long the series is. What is drawn are points that were
 * reported, never means: the lowest and the highest of each stretch, so spikes
 * stay, and the first value in it that is not finite.
 *
 * A band follows from what is right below it and from nothing else. Whoever
 * changes a row has the bands above it made anew, in the same
 * transaction. So a value that is reported again, or archived when a lease
 * resumes before it, leaves no trace in them. */
#pragma once
#include <jansson.h>
#include <stdint.h>
#include "schema/err.h"
#include "server/store.h"

/* ---- rows changed ---- */

/* Of one cycle. Rows mostly come in the order of their steps: a band is made
 * anew when the steps have left it, and the last ones by band_pen_end. */
#define BAND_PENS 32
struct band_pen {
    struct store *st;
    int64_t cycle;
    int n; /* series whose newest bands are still to be made */
    struct {
        int64_t series, step;
    } open[BAND_PENS];
};
#define BAND_PEN(store, of_cycle)                                              \
    {                                                                          \
        .st = (store), .cycle = (of_cycle)                                     \
    }
int band_pen_note(struct band_pen *p, int64_t series, int64_t step,
                  struct err *err);
int band_pen_end(struct band_pen *p, struct err *err);

/* The rows of a series past `step` are gone. */
int band_cut(struct store *st, int64_t cycle, int64_t series, int64_t step,
             struct err *err);

/* ---- curves ---- */

/* How many rows a series has, and how many of them are not finite. */
int band_count(struct store *st, int64_t cycle, int64_t series,
               int64_t *ret_points, int64_t *ret_unfinite, struct err *err);
/* [[step, value or null], …], `points` at most unless values are not finite:
 * all of `count` rows, or lowest and highest of stretches, each about as wide
 * and of whole bands, and the last row. Caller owns *ret. */
int band_curve(struct store *st, int64_t cycle, int64_t series, int64_t count,
               int64_t points, json_t **ret, struct err *err);
