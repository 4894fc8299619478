#include "schema/memory_need.h"
#include <string.h>

#define MB (1024.0 * 1024.0)
#define FLOAT 4.0

void batch_shape_add(const struct spec *s, const int *lengths,
                     struct batch_shape *ret)
{
    const struct record_desc *d = &s->record;
    int over = d->policy >= 0 ? d->fields[d->policy].over : -1;
    double rows = 1, candidates = 0;
    for (int i = 0; i < d->n_fields; i++) {
        const struct field *f = &d->fields[i];
        if (f->kind == FIELD_TARGET)
            continue;
        double n = f->dim >= 0 ? lengths[f->dim] : f->size;
        if (i == over)
            candidates += n;
        else
            rows += n;
    }
    ret->rows += rows;
    ret->pairs += rows * rows;
    ret->candidates += candidates;
    ret->cross += candidates * rows;
}

/* Floats that live when the backward pass begins, and what it takes itself. */
static double activations(const struct spec *s, const struct batch_shape *b,
                          bool packed)
{
    double d = s->model.d_model, ff = s->model.ff, heads = s->model.heads;
    bool drop = s->model.dropout > 0;
    double mask = packed ? 0.25 : 2; /* a byte; or floats, and their product */

    /* a layer keeps the input of each norm and each linear map, queries, keys
     * and values, both sides of the gelu, and the attention's weights */
    double row = 8 * d + 2 * ff + (drop ? mask * (2 * d + ff) : 0);
    double pair = heads * (packed ? 1 : drop ? 4 : 2);
    double kept = s->model.layers * (b->rows * row + b->pairs * pair);
    kept += b->rows * 2 * d; /* embedded; the last norm */
    if (s->record.policy >= 0)
        kept += b->candidates * 9 * d + b->rows * 2 * d + b->cross * pair;

    /* backward: slopes of the widest block, both sides, beside what is kept */
    double widest = ff > 3 * d ? ff : 3 * d;
    double slopes =
        b->rows * (2 * widest + 2 * d) + (packed ? 0 : b->pairs * heads * 2);
    return (kept + slopes) * FLOAT;
}

void memory_need(const struct spec *s, const struct batch_shape *b,
                 const char *device, struct memory_need *ret)
{
    bool host = !strcmp(device, "cpu");
    int64_t weights = spec_parameters(s) * (int64_t)FLOAT;
    double process = 195 * MB; /* with libtorch 1.13 and OpenBLAS at work */
    double context = !strcmp(device, "cuda") ? 700 * MB : 300 * MB;
    ret->weights = weights;
    ret->gradients = weights;
    ret->optimizer = 2 * weights;
    ret->activations = (int64_t)activations(s, b, host);
    ret->snapshot = 3 * weights;
    ret->library = (int64_t)(host ? process : context);
    ret->total = 4 * weights + ret->activations + ret->library +
                 (host ? 3 * weights : 0);
    ret->host = host ? ret->total : (int64_t)process + 3 * weights;
}
