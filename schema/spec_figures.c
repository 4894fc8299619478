/* spec_figures.c - what follows from a spec by arithmetic alone: steps, learning
 * rates, parameters (spec.h). */
#include <math.h>
#include "schema/spec.h"

int64_t spec_steps(const struct spec *s, int64_t records)
{
    int64_t batch = s->training.effective_batch;
    return s->training.epochs * (records / batch + (records % batch > 0));
}

double spec_learning_rate(const struct training_spec *t, int64_t step,
                          int64_t steps)
{
    double lr = t->optimizer.lr, end = t->schedule.final_fraction;
    int64_t warmup = t->schedule.warmup_steps;
    if (step < warmup)
        return lr * ((double)(step + 1) / (double)warmup);

    /* From 0 at the first step after the warm-up to 1 at the last. A cycle of
     * one step trains with lr. */
    int64_t span = steps - 1 - warmup;
    double x = span > 0    ? (double)(step - warmup) / (double)span
               : steps > 1 ? 1
                           : 0;
    if (x > 1)
        x = 1;
    switch (t->schedule.type) {
    case SCHEDULE_CONSTANT:
        break;
    case SCHEDULE_LINEAR:
        return lr * (end + (1 - end) * (1 - x));
    case SCHEDULE_COSINE:
        return lr * (end + (1 - end) * (0.5 * (1 + cos(M_PI * x))));
    }
    return lr;
}

double spec_cycle_rate(const struct training_spec *t, int64_t step_base,
                       int64_t step, int64_t steps)
{
    return t->schedule.steps
               ? spec_learning_rate(t, step_base + step, t->schedule.steps)
               : spec_learning_rate(t, step, steps);
}

/* Written out in worker/model.h. */
int64_t spec_parameters(const struct spec *s)
{
    int64_t d = s->model.d_model, ff = s->model.ff;
    int64_t linear = d * d + d, norm = 2 * d;
    int64_t sum = d; /* class token */
    for (int i = 0; i < s->record.n_fields; i++) {
        const struct field *f = &s->record.fields[i];
        if (f->kind == FIELD_TARGET)
            continue;
        int64_t rows = 1; /* of D: the field's own */
        rows += f->kind == FIELD_TOKENS ? f->vocab : 0;
        for (int c = 0; c < f->n_columns; c++)
            rows += f->columns[c].vocab;
        if (f->kind != FIELD_ROWS)
            rows += f->dim >= 0 ? s->model.max_length : f->size;
        rows += f->kind == FIELD_NUMBERS ? 1 : f->n_nums;
        sum += rows * d;
    }
    int64_t attention = norm + 3 * d * d + d + linear;
    int64_t feed_forward = norm + ff * d + ff + d * ff + d;
    sum += s->model.layers * (attention + feed_forward) + norm;
    if (s->record.policy >= 0)
        sum += norm + linear + 2 * d * d + linear + norm + linear + d;
    if (s->record.value >= 0)
        sum += linear + d + 1;
    return sum;
}
