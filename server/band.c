#include "server/band.h"
#include <stdbool.h>

#define LEVELS 5

static const int64_t width[LEVELS + 1] = {1, 16, 64, 256, 1024, 4096};

struct band {
    int64_t points, unfinite;
    int64_t unfinite_step, low_step, high_step; /* < 0: none */
    double low, high;
};

#define BAND_NONE                                                              \
    {                                                                          \
        .unfinite_step = -1, .low_step = -1, .high_step = -1                   \
    }

/* ---- rows and bands alike ---- */

/* The columns of BAND_ROWS and BAND_BELOW from `at` on. */
static void from_columns(const struct stmt *q, int at, struct band *ret)
{
    *ret = (struct band){
        .points = col_int(q, at),
        .unfinite = col_int(q, at + 1),
        .unfinite_step = col_null(q, at + 2) ? -1 : col_int(q, at + 2),
        .low = col_real(q, at + 3),
        .low_step = col_null(q, at + 4) ? -1 : col_int(q, at + 4),
        .high = col_real(q, at + 5),
        .high_step = col_null(q, at + 6) ? -1 : col_int(q, at + 6),
    };
}

/* `next` comes after b: of equal values the first one stays. */
static void merge(struct band *b, const struct band *next)
{
    b->points += next->points;
    b->unfinite += next->unfinite;
    if (b->unfinite_step < 0)
        b->unfinite_step = next->unfinite_step;
    if (next->low_step < 0)
        return;
    if (b->low_step < 0 || next->low < b->low) {
        b->low = next->low;
        b->low_step = next->low_step;
    }
    if (b->high_step < 0 || next->high > b->high) {
        b->high = next->high;
        b->high_step = next->high_step;
    }
}

/* What lies on `level` between two steps, in order. */
static struct stmt look(struct store *st, int64_t cycle, int64_t series,
                        int level, int64_t from, int64_t to)
{
    struct stmt q = stmt_use(st, level ? SQL_BAND_BELOW : SQL_BAND_ROWS);
    stmt_int(&q, ":cycle", cycle);
    stmt_int(&q, ":series", series);
    if (level)
        stmt_int(&q, ":level", level);
    stmt_int(&q, ":from", from / width[level]);
    stmt_int(&q, ":to", to / width[level]);
    return q;
}

/* ---- made anew ---- */

static int put(struct store *st, int64_t cycle, int64_t series, int level,
               int64_t stretch, const struct band *b, struct err *err)
{
    CLEANUP(stmt_end)
    struct stmt q = stmt_use(st, b->points ? SQL_BAND_PUT : SQL_BAND_DROP);
    stmt_int(&q, ":cycle", cycle);
    stmt_int(&q, ":series", series);
    stmt_int(&q, ":level", level);
    stmt_int(&q, ":stretch", stretch);
    if (b->points) {
        stmt_int(&q, ":points", b->points);
        stmt_int(&q, ":unfinite", b->unfinite);
        if (b->unfinite)
            stmt_int(&q, ":unfinite_step", b->unfinite_step);
        if (b->low_step >= 0) {
            stmt_real(&q, ":low", b->low);
            stmt_int(&q, ":low_step", b->low_step);
            stmt_real(&q, ":high", b->high);
            stmt_int(&q, ":high_step", b->high_step);
        }
    }
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

static int remake(struct store *st, int64_t cycle, int64_t series, int level,
                  int64_t step, struct err *err)
{
    struct band b = BAND_NONE, child;
    int64_t stretch = step / width[level], from = stretch * width[level];
    {
        CLEANUP(stmt_end)
        struct stmt q =
            look(st, cycle, series, level - 1, from, from + width[level] - 1);
        int r;
        while ((r = stmt_row(&q, err)) > 0) {
            from_columns(&q, 1, &child);
            merge(&b, &child);
        }
        if (r < 0)
            return r;
    }
    return put(st, cycle, series, level, stretch, &b, err);
}

/* The bands over `step`, from the narrowest to the last of `levels`. */
static int remake_over(struct store *st, int64_t cycle, int64_t series,
                       int64_t step, int levels, struct err *err)
{
    for (int level = 1; level <= levels; level++) {
        int r = remake(st, cycle, series, level, step, err);
        if (r < 0)
            return r;
    }
    return 0;
}

int band_pen_note(struct band_pen *p, int64_t series, int64_t step,
                  struct err *err)
{
    int i = 0, left = 0;
    while (i < p->n && p->open[i].series != series)
        i++;
    if (i == BAND_PENS) {
        int r = band_pen_end(p, err);
        if (r < 0)
            return r;
        i = 0;
    }
    if (i < p->n) {
        int64_t last = p->open[i].step;
        while (left < LEVELS &&
               last / width[left + 1] != step / width[left + 1])
            left++;
        int r = remake_over(p->st, p->cycle, series, last, left, err);
        if (r < 0)
            return r;
    } else {
        p->n++;
    }
    p->open[i].series = series;
    p->open[i].step = step;
    return 0;
}

int band_pen_end(struct band_pen *p, struct err *err)
{
    for (; p->n > 0; p->n--) {
        int r = remake_over(p->st, p->cycle, p->open[p->n - 1].series,
                            p->open[p->n - 1].step, LEVELS, err);
        if (r < 0)
            return r;
    }
    return 0;
}

int band_cut(struct store *st, int64_t cycle, int64_t series, int64_t step,
             struct err *err)
{
    for (int level = 1; level <= LEVELS; level++) {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_BAND_CUT);
        stmt_int(&q, ":cycle", cycle);
        stmt_int(&q, ":series", series);
        stmt_int(&q, ":level", level);
        stmt_int(&q, ":stretch", step / width[level]);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    return remake_over(st, cycle, series, step, LEVELS, err);
}

/* ---- curves ---- */

int band_count(struct store *st, int64_t cycle, int64_t series,
               int64_t *ret_points, int64_t *ret_unfinite, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_BAND_COUNT);
    stmt_int(&q, ":cycle", cycle);
    stmt_int(&q, ":series", series);
    stmt_int(&q, ":level", LEVELS);
    int r = stmt_row(&q, err);
    if (r < 0)
        return r;
    *ret_points = col_int(&q, 0);
    *ret_unfinite = col_int(&q, 1);
    return 0;
}

struct point {
    int64_t step; /* < 0: none */
    double value;
    bool finite;
};

static struct point last_of(const struct band *b)
{
    /* a row as a band: it has one point */
    bool finite = b->low_step >= 0;
    return (struct point){finite ? b->low_step : b->unfinite_step, b->low,
                          finite};
}

static void add_point(json_t *list, struct point p)
{
    json_t *pair = json_array();
    json_array_append_new(pair, json_integer(p.step));
    json_array_append_new(pair, p.finite ? json_real(p.value) : json_null());
    json_array_append_new(list, pair);
}

static void swap_late(struct point *a, struct point *b)
{
    if (a->step > b->step) {
        struct point t = *a;
        *a = *b;
        *b = t;
    }
}

/* Lowest, highest and what is not finite, in order of their steps. Of none of
 * them more than once: the two may be the same row. */
static void add_band(json_t *list, const struct band *b, int64_t *last_step)
{
    struct point p[3] = {{b->low_step, b->low, true},
                         {b->high_step, b->high, true},
                         {b->unfinite_step, 0, false}};
    swap_late(&p[0], &p[1]);
    swap_late(&p[1], &p[2]);
    swap_late(&p[0], &p[1]);
    for (int i = 0; i < 3; i++) {
        if (p[i].step <= *last_step)
            continue;
        add_point(list, p[i]);
        *last_step = p[i].step;
    }
}

/* First or last row of a series. */
static int end_of(struct store *st, int64_t cycle, int64_t series, bool last,
                  struct point *ret, struct err *err)
{
    struct band b = BAND_NONE;
    CLEANUP(stmt_end)
    struct stmt q = stmt_use(st, last ? SQL_BAND_LAST : SQL_BAND_FIRST);
    stmt_int(&q, ":cycle", cycle);
    stmt_int(&q, ":series", series);
    int r = stmt_row(&q, err);
    if (r > 0)
        from_columns(&q, 1, &b);
    *ret = last_of(&b);
    return r;
}

/* A curve's stretches: how many from step `base` on, and the level whose bands
 * they are made of. A band belongs to the stretch in which it begins. */
struct stretches {
    int64_t n, base, steps;
    int level;
};

static struct stretches stretches(int64_t first, int64_t last, int64_t points)
{
    struct stretches s = {.n = points > 4 ? (points - 1) / 2 : 1,
                          .level = LEVELS};
    while (s.level > 0 && (last - first) / s.n + 1 < width[s.level])
        s.level--;
    s.base = first / width[s.level] * width[s.level];
    s.steps = last - s.base + 1;
    return s;
}

/* Of the band, or row, that begins at `step`. */
static int64_t stretch_of(const struct stretches *s, int64_t step)
{
    return (int64_t)((double)(step - s->base) / (double)s->steps *
                     (double)s->n);
}

int band_curve(struct store *st, int64_t cycle, int64_t series, int64_t count,
               int64_t points, json_t **ret, struct err *err)
{
    struct point first, last;
    int r = end_of(st, cycle, series, false, &first, err);
    if (r > 0)
        r = end_of(st, cycle, series, true, &last, err);
    if (r < 0)
        return r;
    AUTO_JSON json_t *list = json_array();
    if (!list)
        return err_set(err, ERR_NOMEM, "no memory for a curve");
    if (r == 0) {
        *ret = json_incref(list);
        return 0;
    }
    int64_t at = -1, last_step = -1;
    /* all: as many stretches as there are steps */
    struct stretches s = stretches(first.step, last.step, points);
    if (count <= points)
        s = (struct stretches){.n = 1, .steps = 1};
    struct band b = BAND_NONE, child;
    CLEANUP(stmt_end)
    struct stmt q = look(st, cycle, series, s.level, first.step, last.step);
    while ((r = stmt_row(&q, err)) > 0) {
        int64_t stretch = stretch_of(&s, col_int(&q, 0) * width[s.level]);
        if (stretch != at) {
            add_band(list, &b, &last_step);
            b = (struct band)BAND_NONE;
            at = stretch;
        }
        from_columns(&q, 1, &child);
        merge(&b, &child);
    }
    if (r < 0)
        return r;
    add_band(list, &b, &last_step);
    if (last.step > last_step)
        add_point(list, last); /* where it stands now */
    *ret = json_incref(list);
    return 0;
}
