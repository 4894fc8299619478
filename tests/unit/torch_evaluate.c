/* Losses of records that are not trained on; and an optimizer that begins anew. */
#include "tests/unit/torch_batch.h"

static struct losses judge(struct trainer *t, const struct record_desc *d,
                           const json_t *records, int count, int micro)
{
    struct err err;
    struct losses sum = {0};
    for (int from = 0; from < count; from += micro) {
        int n = count - from < micro ? count - from : micro;
        struct batch b = batch_of(d, records, from, n, 0, 0);
        ASSERT_OK(trainer_evaluate(t, &b, &sum, &err), err);
        batch_release(&b);
    }
    return sum;
}

/* Dropout is on: a number drawn or a gradient left over would show. */
static void it_leaves_no_trace_in_training(void **state)
{
    (void)state;
    for (int padded = 0; padded < 2; padded++) {
        struct spec spec;
        chess_spec(&spec, "/model/dropout", 0.3);
        AUTO_JSON json_t *records = chess_records(0, 24);
        AUTO_JSON json_t *others = chess_records(100, 20);
        trainer_use_padded(padded);
        struct trainer *t = trainer_of(&spec, 1), *u = trainer_of(&spec, 1);
        trainer_use_padded(false);
        struct err err;
        double norm;
        char hex[2][DIGEST_HEX];
        for (int step = 0; step < 4; step++) {
            struct losses a = {0}, b = {0};
            for (int from = 0; from < 24; from += 8) {
                struct batch m = batch_of(&spec.record, records, from, 8, 0, 0);
                ASSERT_OK(trainer_micro(t, &m, step, 24, &a, &err), err);
                judge(t, &spec.record, others, 20, 7);
                ASSERT_OK(trainer_micro(u, &m, step, 24, &b, &err), err);
                batch_release(&m);
            }
            assert_true(a.total == b.total && a.records == b.records);
            ASSERT_OK(trainer_step(t, 0.01, &norm, &err), err);
            ASSERT_OK(trainer_step(u, 0.01, &norm, &err), err);
            judge(t, &spec.record, others, 20, 20);
        }
        state_digest(t, hex[0]);
        state_digest(u, hex[1]);
        assert_string_equal(hex[0], hex[1]);
        trainer_free(t);
        trainer_free(u);
        spec_release(&spec);
    }
}

static void it_judges_what_a_prediction_answers(void **state)
{
    (void)state;
    for (int padded = 0; padded < 2; padded++) {
        struct spec spec;
        chess_spec(&spec, "/training/losses/value", 0.5);
        AUTO_JSON json_t *records = chess_records(0, 16);
        trainer_use_padded(padded);
        struct trainer *t = trainer_of(&spec, 1);
        trainer_use_padded(false);
        struct err err;
        train_step(t, &spec.record, records, 16, 8, 0, 0, 0.01);
        struct batch b = batch_of(&spec.record, records, 0, 16, 0, 0);
        const struct record_desc *d = &spec.record;
        int dim = d->fields[d->policy].dim;
        size_t width = (size_t)b.padded[dim];
        AUTO_FREE float *policy = calloc(16 * width, sizeof *policy);
        float value[16];
        ASSERT_OK(trainer_predict(t, &b, policy, value, &err), err);
        double cross = 0, square = 0;
        for (int r = 0; r < 16; r++) {
            for (int k = 0; k < b.lengths[dim][r]; k++) {
                size_t at = (size_t)r * width + (size_t)k;
                double want = b.nums[d->policy][at];
                cross -= want > 0 ? want * log(policy[at]) : 0;
            }
            double off = value[r] - b.nums[d->value][r];
            square += off * off;
        }
        struct losses got = {0};
        ASSERT_OK(trainer_evaluate(t, &b, &got, &err), err);
        assert_int_equal(got.records, 16);
        assert_true(fabs(got.policy - cross) < 1e-4 * cross);
        assert_true(fabs(got.value - square) < 1e-4 * square + 1e-6);
        assert_true(fabs(got.total - (got.policy + 0.5 * got.value)) < 1e-9);
        /* in any split, but for rounding */
        struct losses parts = judge(t, d, records, 16, 5);
        assert_true(fabs(parts.total - got.total) < 1e-5 * got.total);
        batch_release(&b);
        trainer_free(t);
        spec_release(&spec);
    }
}

static void what_does_not_fit_the_model_is_refused(void **state)
{
    (void)state;
    struct spec spec;
    chess_spec(&spec, "/model/max_length", 72);
    AUTO_JSON json_t *records = chess_records(0, 4);
    struct trainer *t = trainer_of(&spec, 1);
    struct err err;
    struct losses sum = {0};
    struct batch b = batch_of(&spec.record, records, 0, 4, 0, 0);
    int dim = spec.record.fields[record_desc_field(&spec.record, "state")].dim;
    b.lengths[dim][2] = 73;
    assert_int_equal(trainer_evaluate(t, &b, &sum, &err), ERR_DATA);
    assert_int_equal(sum.records, 0);
    batch_release(&b);
    trainer_free(t);
    spec_release(&spec);
}

/* As a new one that was given the weights alone. */
static void an_optimizer_that_restarts_is_as_new(void **state)
{
    (void)state;
    struct spec spec;
    chess_spec(&spec, NULL, 0);
    AUTO_JSON json_t *records = chess_records(0, 16);
    struct trainer *t = trainer_of(&spec, 1), *u = trainer_of(&spec, 1);
    struct err err;
    for (int step = 0; step < 3; step++)
        train_step(t, &spec.record, records, 16, 8, 0, step, 0.01);
    struct saved_state s = state_of(t);
    for (int i = 0; i < s.n; i++)
        if (!strncmp(s.all[i].name, "model.", 6))
            ASSERT_OK(state_put_back(u, &s.all[i], &err), err);
    ASSERT_OK(trainer_load_model_end(u, &err), err);
    saved_release(&s);
    ASSERT_OK(trainer_restart_optimizer(t, &err), err);
    char hex[2][DIGEST_HEX];
    for (int step = 0; step < 3; step++) {
        state_digest(t, hex[0]);
        state_digest(u, hex[1]);
        assert_string_equal(hex[0], hex[1]);
        train_step(t, &spec.record, records, 16, 8, 0, step, 0.01);
        train_step(u, &spec.record, records, 16, 8, 0, step, 0.01);
    }
    trainer_free(t);
    trainer_free(u);
    spec_release(&spec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_leaves_no_trace_in_training),
        cmocka_unit_test(it_judges_what_a_prediction_answers),
        cmocka_unit_test(what_does_not_fit_the_model_is_refused),
        cmocka_unit_test(an_optimizer_that_restarts_is_as_new),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
