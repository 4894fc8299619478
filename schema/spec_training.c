#include "schema/spec_training.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "schema/cleanup.h"
#include "schema/json_read.h"
#include "schema/spec_data.h"

#define VALIDATION_RECORDS 10000 /* unless given */

static const char *const optimizer_types[] = {"adamw", NULL};
static const char *const between_cycles[] = {"continue", "restart", NULL};
static const char *const schedules[] = {"constant", "linear", "cosine", NULL};
static const char *const shuffle_modes[] = {"none", "buffer", "global", NULL};
static const char *const precisions[] = {"float32", "bfloat16", "float16",
                                         NULL};

static int no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "no memory for a job spec");
}

static void not_yet(struct json_read *r, const char *name)
{
    if (json_read_get(r, name))
        json_read_fail(r, name, "%s is not supported yet", name);
}

static int read_optimizer(const json_t *in, struct training_spec *t,
                          struct err *err)
{
    struct json_read r;
    json_read_open(&r, in, "/training/optimizer", err, "type", "lr",
                   "weight_decay", "betas", "eps", "cycles", NULL);
    json_read_word(&r, "type", optimizer_types, 0);
    t->optimizer.restart = json_read_word(&r, "cycles", between_cycles, 0) == 1;
    t->optimizer.lr = json_read_real(&r, "lr", 0, 1000, 0.001);
    t->optimizer.weight_decay =
        json_read_real(&r, "weight_decay", 0, 1000, 0.01);
    t->optimizer.eps = json_read_real(&r, "eps", 1e-30, 1, 1e-8);
    t->optimizer.beta1 = 0.9;
    t->optimizer.beta2 = 0.999;
    const json_t *betas = json_read_array(&r, "betas", 2);
    if (betas && r.r == 0) {
        double *out[] = {&t->optimizer.beta1, &t->optimizer.beta2};
        if (json_array_size(betas) != 2)
            json_read_fail(&r, "betas", "betas must have 2 entries");
        for (size_t i = 0; i < 2 && r.r == 0; i++) {
            const json_t *b = json_array_get(betas, i);
            double v = json_number_value(b) + 0.0;
            if (json_is_number(b) && v >= 0 && v < 1) {
                *out[i] = v;
                continue;
            }
            char at[JSON_POINTER_MAX];
            json_pointer_index(at, "/training/optimizer/betas", i);
            r.r = err_at(err, ERR_INVALID, at,
                         "betas must be numbers from 0 to below 1");
        }
    }
    return r.r;
}

static int read_schedule(const json_t *in, struct training_spec *t,
                         struct err *err)
{
    struct json_read r;
    json_read_open(&r, in, "/training/schedule", err, "type", "warmup_steps",
                   "final_fraction", "steps", NULL);
    t->schedule.type = (enum schedule_type)json_read_word(&r, "type", schedules,
                                                          SCHEDULE_CONSTANT);
    t->schedule.warmup_steps =
        (int)json_read_int(&r, "warmup_steps", 0, 1000000000, 0);
    t->schedule.final_fraction = json_read_real(&r, "final_fraction", 0, 1, 0);
    t->schedule.steps = json_read_int(&r, "steps", 1, 1000000000000, 0);
    if (r.r == 0 && t->schedule.steps &&
        t->schedule.warmup_steps > t->schedule.steps)
        json_read_fail(&r, "warmup_steps",
                       "warmup_steps is %d, more than the schedule's %" PRId64
                       " steps",
                       t->schedule.warmup_steps, t->schedule.steps);
    return r.r;
}

static int read_losses(const json_t *in, const struct record_desc *record,
                       struct training_spec *t, struct err *err)
{
    struct json_read r;
    t->losses = calloc((size_t)record->n_fields, sizeof *t->losses);
    if (!t->losses)
        return no_memory(err);
    json_read_open_any(&r, in, "/training/losses", err);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)r.object, key, value)
    {
        int i = record_desc_field(record, key);
        if (i < 0 || record->fields[i].kind != FIELD_TARGET)
            return json_read_fail(
                &r, key, "\"%.64s\" is not a target of the record", key);
    }
    double sum = 0;
    for (int i = 0; i < record->n_fields; i++)
        if (record->fields[i].kind == FIELD_TARGET)
            sum += t->losses[i] =
                json_read_real(&r, record->fields[i].name, 0, 1e6, 1);
    if (r.r == 0 && sum == 0)
        json_read_fail(&r, "", "all losses weigh 0: nothing to learn");
    return r.r;
}

static int read_shuffle(const json_t *in, struct training_spec *t,
                        struct err *err)
{
    struct json_read r;
    json_read_open(&r, in, "/training/shuffle", err, "mode", "size", NULL);
    int mode = json_read_word(&r, "mode", shuffle_modes, SHUFFLE_BUFFER);
    t->shuffle.size = (int)json_read_int(&r, "size", 1, 10000000, 10000);
    t->shuffle.mode = (enum shuffle_mode)mode;
    return r.r;
}

static int read_validation(const json_t *in, struct training_spec *t,
                           struct err *err)
{
    t->validation.records = VALIDATION_RECORDS;
    if (!in)
        return 0;
    struct json_read r;
    json_read_open(&r, in, "/training/validation", err, "fraction", "dataset",
                   "records", "every", NULL);
    bool has_fraction = json_read_get(&r, "fraction");
    const char *dataset = json_read_string(&r, "dataset", 128, NULL);
    t->validation.fraction = json_read_real(&r, "fraction", 0, 1, 0);
    t->validation.records =
        json_read_int(&r, "records", 1, JSON_INT_MAX, VALIDATION_RECORDS);
    t->validation.every = json_read_int(&r, "every", 0, JSON_INT_MAX, 0);
    if (r.r < 0)
        return r.r;
    if (has_fraction == (dataset != NULL))
        return json_read_fail(&r, "",
                              "validation has either a fraction of the records "
                              "or a dataset of its own");
    if (has_fraction &&
        (t->validation.fraction <= 0 || t->validation.fraction >= 1))
        return json_read_fail(&r, "fraction",
                              "fraction is %g, must be above 0 and below 1",
                              t->validation.fraction);
    if (!dataset)
        return 0;
    if (!is_data_name(dataset))
        return json_read_fail(&r, "dataset", DATA_NAME_RULE);
    t->validation.dataset = strdup(dataset);
    return t->validation.dataset ? 0 : no_memory(err);
}

int training_spec_parse(const json_t *in, const struct record_desc *record,
                        struct training_spec *t, struct err *err)
{
    struct json_read r;
    json_read_open(&r, in, "/training", err, "epochs", "effective_batch",
                   "seed", "optimizer", "schedule", "clip_norm", "losses",
                   "shuffle", "precision", "validation", "ema", NULL);
    not_yet(&r, "ema");
    int precision = json_read_word(&r, "precision", precisions, 0);
    if (precision != 0)
        json_read_fail(&r, "precision", "precision %s is not supported yet",
                       precisions[precision]);
    t->epochs = (int)json_read_int(&r, "epochs", 1, 1000000, 1);
    t->effective_batch =
        (int)json_read_int(&r, "effective_batch", 1, 1 << 20, 64);
    t->seed = json_read_int(&r, "seed", 0, JSON_INT_MAX, 0);
    t->clip_norm = json_read_real(&r, "clip_norm", 0, 1e9, 1);
    if (r.r < 0)
        return r.r;

    int q = read_optimizer(json_read_get(&r, "optimizer"), t, err);
    if (q == 0)
        q = read_schedule(json_read_get(&r, "schedule"), t, err);
    if (q == 0)
        q = read_losses(json_read_get(&r, "losses"), record, t, err);
    if (q == 0)
        q = read_shuffle(json_read_get(&r, "shuffle"), t, err);
    if (q == 0)
        q = read_validation(json_read_get(&r, "validation"), t, err);
    return q;
}

/* What a later version brought stands here only
 * where it changes something: the signatures of older specs stay as they are. */
json_t *training_spec_semantics(const struct training_spec *t,
                                const struct record_desc *record)
{
    json_t *losses = json_object();
    for (int i = 0; i < record->n_fields; i++)
        if (record->fields[i].kind == FIELD_TARGET)
            json_object_set_new(losses, record->fields[i].name,
                                json_real(t->losses[i]));
    /* A size that shuffles nothing must not change the signature. */
    json_t *shuffle =
        json_pack("{s:s}", "mode", shuffle_modes[t->shuffle.mode]);
    if (t->shuffle.mode == SHUFFLE_BUFFER)
        json_object_set_new(shuffle, "size", json_integer(t->shuffle.size));
    json_t *optimizer = json_pack(
        "{s:s, s:f, s:f, s:[f, f], s:f}", "type", optimizer_types[0], "lr",
        t->optimizer.lr, "weight_decay", t->optimizer.weight_decay, "betas",
        t->optimizer.beta1, t->optimizer.beta2, "eps", t->optimizer.eps);
    if (t->optimizer.restart)
        json_object_set_new(optimizer, "cycles",
                            json_string(between_cycles[t->optimizer.restart]));
    json_t *schedule = json_pack(
        "{s:s, s:i, s:f}", "type", schedules[t->schedule.type], "warmup_steps",
        t->schedule.warmup_steps, "final_fraction", t->schedule.final_fraction);
    if (t->schedule.steps)
        json_object_set_new(schedule, "steps", json_integer(t->schedule.steps));
    json_t *out = json_pack(
        "{s:i, s:i, s:I, s:o, s:o, s:f, s:o, s:o, s:s}", "epochs", t->epochs,
        "effective_batch", t->effective_batch, "seed", (json_int_t)t->seed,
        "optimizer", optimizer, "schedule", schedule, "clip_norm", t->clip_norm,
        "losses", losses, "shuffle", shuffle, "precision", precisions[0]);
    if (t->validation.fraction > 0 || t->validation.dataset) {
        json_t *validation = json_pack(
            "{s:I, s:I}", "records", (json_int_t)t->validation.records, "every",
            (json_int_t)t->validation.every);
        if (t->validation.dataset)
            json_object_set_new(validation, "dataset",
                                json_string(t->validation.dataset));
        else
            json_object_set_new(validation, "fraction",
                                json_real(t->validation.fraction));
        json_object_set_new(out, "validation", validation);
    }
    return out;
}

/* With what is left out of the signature. */
json_t *training_spec_json(const struct training_spec *t,
                           const struct record_desc *record)
{
    json_t *out = training_spec_semantics(t, record);
    json_t *optimizer = json_object_get(out, "optimizer");
    json_t *schedule = json_object_get(out, "schedule");
    json_object_set_new(optimizer, "cycles",
                        json_string(between_cycles[t->optimizer.restart]));
    if (!t->schedule.steps)
        json_object_set_new(schedule, "steps", json_null());
    if (!json_object_get(out, "validation"))
        json_object_set_new(out, "validation", json_null());
    return out;
}

void training_spec_release(struct training_spec *t)
{
    free(t->losses);
    free(t->validation.dataset);
    *t = (struct training_spec){0};
}
