#include "schema/ladder.h"
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "schema/cleanup.h"

/* Above LADDER_LENGTH_MAX an octave has OCTAVE bins. */
#define EXACT LADDER_LENGTH_MAX
#define EXACT_LOG2 16
#define OCTAVE 256
#define OCTAVE_LOG2 8
#define BINS (EXACT + 1 + (31 - EXACT_LOG2) * OCTAVE)

static int log2_of(int length)
{
    return 31 - __builtin_clz((unsigned)length);
}

static int bin_of(int length)
{
    if (length <= EXACT)
        return length;
    int above = length - 1; /* so that a power of two ends its octave */
    int octave = log2_of(above);
    int within = (above >> (octave - OCTAVE_LOG2)) - OCTAVE;
    return EXACT + 1 + (octave - EXACT_LOG2) * OCTAVE + within;
}

static int bin_top(int bin)
{
    if (bin <= EXACT)
        return bin;
    int octave = (bin - EXACT - 1) / OCTAVE + EXACT_LOG2;
    int64_t within = (bin - EXACT - 1) % OCTAVE;
    int64_t top = (within + 1 + OCTAVE) << (octave - OCTAVE_LOG2);
    return top > INT32_MAX ? INT32_MAX : (int)top;
}

static int grow(struct lengths *l, int n)
{
    if (n <= l->n)
        return 0;
    int cap = n < 64 ? 64 : n + n / 2 < BINS ? n + n / 2 : BINS;
    int64_t *count = realloc(l->count, (size_t)cap * sizeof(*count));
    if (!count)
        return -1;
    memset(count + l->n, 0, (size_t)(cap - l->n) * sizeof(*count));
    l->count = count;
    l->n = cap;
    return 0;
}

int lengths_add(struct lengths *l, int length, int64_t times)
{
    assert(length >= 0 && times >= 0);
    int bin = bin_of(length);
    if (times == 0)
        return 0;
    if (grow(l, bin + 1) < 0)
        return -1;
    l->count[bin] += times;
    l->records += times;
    l->sum += length * times;
    if (length > l->max)
        l->max = length;
    return 0;
}

int lengths_merge(struct lengths *l, const struct lengths *from)
{
    if (grow(l, from->n) < 0)
        return -1;
    for (int i = 0; i < from->n; i++)
        l->count[i] += from->count[i];
    l->records += from->records;
    l->sum += from->sum;
    if (from->max > l->max)
        l->max = from->max;
    return 0;
}

void lengths_release(struct lengths *l)
{
    if (!l)
        return;
    free(l->count);
    *l = (struct lengths){0};
}

int lengths_of_bin(const struct lengths *l, int bin)
{
    int top = bin_top(bin);
    return top < l->max ? top : l->max;
}

int lengths_percentile(const struct lengths *l, double fraction)
{
    /* 0.99 of 100 is 99, though in floating point it is a little more */
    double want = ceil(fraction * (double)l->records - 1e-9);
    int64_t so_far = 0;

    for (int i = 0; i < l->n; i++) {
        so_far += l->count[i];
        if (so_far > 0 && (double)so_far >= want)
            return lengths_of_bin(l, i);
    }
    return l->max;
}

int ladder_size(const int *sizes, int n, int length)
{
    if (length < 1)
        length = 1;
    for (int i = 0; i < n; i++)
        if (sizes[i] >= length)
            return sizes[i];
    return length;
}

/* That the longest of `batch` records is no longer than this bin's. */
static double at_most(const struct lengths *l, int64_t so_far, int batch)
{
    return pow((double)so_far / (double)l->records, batch);
}

double ladder_padded(const struct lengths *l, int batch, const int *sizes,
                     int n)
{
    double padded = 0, below = 0;
    int64_t so_far = 0;

    for (int i = 0; i < l->n; i++) {
        if (l->count[i] == 0)
            continue;
        so_far += l->count[i];
        double here = at_most(l, so_far, batch);
        padded += (here - below) * ladder_size(sizes, n, lengths_of_bin(l, i));
        below = here;
    }
    return padded;
}

/* Lengths that occur, ascending, and the chance that a batch needs no more. */
struct steps {
    int *length;
    double *chance;
    int n;
};

static void steps_release(struct steps *s)
{
    free(s->length);
    free(s->chance);
}

static int steps_fill(struct steps *s, const struct lengths *l, int batch)
{
    s->length = malloc((size_t)(l->n + 1) * sizeof(*s->length));
    s->chance = malloc((size_t)(l->n + 1) * sizeof(*s->chance));
    if (!s->length || !s->chance)
        return -1;
    int64_t so_far = 0;
    for (int i = 0; i < l->n; i++) {
        if (l->count[i] == 0)
            continue;
        int length = lengths_of_bin(l, i);
        if (length > LADDER_LENGTH_MAX)
            break; /* no size can hold them: each is padded to its own length */
        so_far += l->count[i];
        length = length < 1 ? 1 : length;
        if (s->n == 0 || s->length[s->n - 1] < length)
            s->n++;
        s->length[s->n - 1] = length;
        s->chance[s->n - 1] = at_most(l, so_far, batch);
    }
    return 0;
}

/* Best cost of sizes for the first j lengths, the last of them being length j:
 * best[j], from that with one size less, below[i] for i < j. The cost of a step
 * from i to j, length[j]·(chance[j] − chance[i]), has the Monge property, so the
 * best i grows with j: halves are solved within each other's bounds. */
struct layer {
    const struct steps *s;
    const double *below;
    double *best;
    int *from;
};

static void solve(const struct layer *y, int first, int last, int from_first,
                  int from_last)
{
    if (first > last)
        return;
    int j = first + (last - first) / 2;
    int end = from_last < j - 1 ? from_last : j - 1;
    y->best[j] = INFINITY;
    y->from[j] = from_first;
    for (int i = from_first; i <= end; i++) {
        double cost =
            y->below[i] + y->s->length[j] * (y->s->chance[j] - y->s->chance[i]);
        if (cost < y->best[j]) {
            y->best[j] = cost;
            y->from[j] = i;
        }
    }
    solve(y, first, j - 1, from_first, y->from[j]);
    solve(y, j + 1, last, y->from[j], from_last);
}

int ladder_choose(const struct lengths *l, int batch, int k, int *ret_sizes,
                  struct err *err)
{
    assert(k >= 1 && k <= LADDER_SIZES_MAX && batch >= 1);
    CLEANUP(steps_release) struct steps s = {0};
    if (steps_fill(&s, l, batch) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a ladder");
    if (s.n <= k) {
        for (int i = 0; i < s.n; i++)
            ret_sizes[i] = s.length[i];
        return s.n;
    }

    size_t n = (size_t)s.n;
    AUTO_FREE int *from = malloc((size_t)k * n * sizeof(*from));
    AUTO_FREE double *cost = malloc(2 * n * sizeof(*cost));
    if (!from || !cost)
        return err_set(err, ERR_NOMEM, "no memory for a ladder");
    double *below = cost, *best = cost + n;
    for (int j = 0; j < s.n; j++)
        below[j] = s.length[j] * s.chance[j]; /* one size */
    for (int i = 1; i < k; i++) {
        const struct layer y = {&s, below, best, from + (size_t)i * n};
        /* the i-th size is at least the i-th length */
        solve(&y, i, s.n - 1, i - 1, s.n - 2);
        double *t = below;
        below = best;
        best = t;
    }
    int j = s.n - 1;
    for (int i = k - 1; i >= 0; i--) {
        ret_sizes[i] = s.length[j];
        if (i > 0)
            j = from[(size_t)i * n + (size_t)j];
    }
    return k;
}
