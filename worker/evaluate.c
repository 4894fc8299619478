#include "worker/evaluate.h"
#include <stdlib.h>
#include "worker/holdout.h"

struct evaluate {
    struct holdout *records;
};

static int none(struct err *err)
{
    return err_set(err, ERR_DATA,
                   "no records to validate with: none is held out");
}

int evaluate_open(const struct spec *spec, const struct runtime_policy *runtime,
                  const json_t *data, struct remote *remote,
                  struct evaluate **ret, struct err *err)
{
    struct holdout *records = NULL;
    int r = holdout_open(spec, runtime, data, remote, &records, err);
    if (r <= 0)
        return r;
    struct evaluate *e = calloc(1, sizeof *e);
    if (!e) {
        holdout_close(records);
        return err_set(err, ERR_NOMEM, "no memory for the validation");
    }
    e->records = records;
    const struct batch *b;
    r = holdout_next(records, &b, err); /* now, not after an epoch's training */
    if (r == 0)
        r = none(err);
    if (r < 0) {
        evaluate_close(e);
        return r;
    }
    *ret = e;
    return 1;
}

int evaluate_set_runtime(struct evaluate *e,
                         const struct runtime_policy *runtime, struct err *err)
{
    return holdout_set_runtime(e->records, runtime, err);
}

bool evaluate_is_due(const struct spec *spec, int64_t step, bool epoch_end,
                     bool cycle_end)
{
    int64_t every = spec->training.validation.every;
    return cycle_end || (every ? step % every == 0 : epoch_end);
}

int evaluate_run(struct evaluate *e, struct trainer *t,
                 evaluate_give_up_fn *give_up, void *arg, struct losses *ret,
                 struct err *err)
{
    struct losses sum = {0};
    const struct batch *b;
    int r;
    holdout_rewind(e->records);
    while ((r = holdout_next(e->records, &b, err)) > 0) {
        if (give_up(arg))
            return err_set(err, ERR_STALE, "the validation is not wanted");
        r = trainer_evaluate(t, b, &sum, err);
        if (r < 0)
            return r;
    }
    if (r < 0)
        return r;
    if (!sum.records)
        return none(err);
    *ret = sum;
    return 0;
}

void evaluate_close(struct evaluate *e)
{
    if (!e)
        return;
    holdout_close(e->records);
    free(e);
}
