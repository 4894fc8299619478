/* The train state: out, in again, and on as if nothing had stopped. */
#include "tests/unit/torch_batch.h"

enum { RECORDS = 48, MICRO = 16, STEPS = 12 };

static struct spec spec;
static json_t *records;

static int setup(void **state)
{
    (void)state;
    chess_spec(&spec, NULL, 0);
    records = chess_records(0, RECORDS);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    json_decref(records);
    spec_release(&spec);
    return 0;
}

static double rate(int step)
{
    return 1e-3 / (1 + step);
}

static struct losses one_step(struct trainer *t, int step)
{
    return train_step(t, &spec.record, records, RECORDS, MICRO, 0, step,
                      rate(step));
}

static void load(struct trainer *t, struct saved_state *s)
{
    struct err err;
    for (int i = s->n - 1; i >= 0; i--) /* any order will do */
        ASSERT_OK(state_put_back(t, &s->all[i], &err), err);
    ASSERT_OK(trainer_load_end(t, &err), err);
}

static void resumes_in_any_chain_give_the_uninterrupted_bits(void **state)
{
    (void)state;
    char whole[DIGEST_HEX], hex[DIGEST_HEX];
    double losses[STEPS];
    struct trainer *t = trainer_of(&spec, 1);
    for (int i = 0; i < STEPS; i++)
        losses[i] = one_step(t, i).total;
    state_digest(t, whole);
    trainer_free(t);

    for (int every = 1; every <= STEPS; every += every == 1 ? 2 : 4) {
        struct saved_state s = {0};
        t = trainer_of(&spec, 1);
        for (int i = 0; i < STEPS; i++) {
            if (i && i % every == 0) {
                s = state_of(t);
                trainer_free(t);
                t = trainer_of(&spec, 1);
                load(t, &s);
                saved_release(&s);
            }
            assert_true(one_step(t, i).total == losses[i]);
        }
        state_digest(t, hex);
        assert_string_equal(hex, whole);
        trainer_free(t);
    }
}

static void weights_alone_do_not_resume(void **state)
{
    (void)state;
    struct err err;
    struct trainer *t = trainer_of(&spec, 1), *cold = trainer_of(&spec, 1);
    for (int i = 0; i < 5; i++)
        one_step(t, i);
    struct saved_state s = state_of(t);
    for (int i = 0; i < s.n; i++)
        if (!strncmp(s.all[i].name, "model.", 6))
            ASSERT_OK(state_put_back(cold, &s.all[i], &err), err);
    ASSERT_OK(trainer_load_model_end(cold, &err), err);
    char a[DIGEST_HEX], b[DIGEST_HEX];
    one_step(t, 5);
    one_step(cold, 5);
    state_digest(t, a);
    state_digest(cold, b);
    assert_string_not_equal(a, b);
    saved_release(&s);
    trainer_free(t);
    trainer_free(cold);
}

static void a_state_without_a_tensor_is_refused_by_name(void **state)
{
    (void)state;
    struct err err;
    struct trainer *t = trainer_of(&spec, 1);
    one_step(t, 0);
    struct saved_state s = state_of(t);
    const char *names[] = {"model.class", "optimizer.exp_avg.policy.q.weight",
                           "optimizer.exp_avg_sq.embed.history.tokens",
                           "optimizer.step"};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        state_find(&s, names[k]);
        struct trainer *other = trainer_of(&spec, 1);
        for (int i = 0; i < s.n; i++)
            if (strcmp(s.all[i].name, names[k]))
                ASSERT_OK(state_put_back(other, &s.all[i], &err), err);
        assert_int_equal(trainer_load_end(other, &err), ERR_CORRUPT);
        assert_non_null(strstr(err.text, names[k]));
        trainer_free(other);
    }
    saved_release(&s);
    trainer_free(t);
}

static void a_tensor_of_another_kind_is_refused_by_name(void **state)
{
    (void)state;
    struct err err;
    struct trainer *t = trainer_of(&spec, 1);
    char before[DIGEST_HEX], after[DIGEST_HEX];
    state_digest(t, before);
    float x[64] = {0};
    int64_t shape[2] = {8, 8}, n = 64;
    const char *name = "model.class";
    assert_int_equal(trainer_load(t, name, "F32", shape, 2, x, sizeof x, &err),
                     ERR_CORRUPT);
    assert_non_null(strstr(err.text, name));
    assert_int_equal(trainer_load(t, name, "F32", &n, 1, x, sizeof x, &err),
                     ERR_CORRUPT);
    n = 32;
    assert_int_equal(trainer_load(t, name, "F16", &n, 1, x, 64, &err),
                     ERR_CORRUPT);
    assert_int_equal(trainer_load(t, name, "F32", &n, 1, x, 64, &err),
                     ERR_CORRUPT);
    assert_int_equal(
        trainer_load(t, "model.foreign", "F32", &n, 1, x, 128, &err),
        ERR_CORRUPT);
    assert_non_null(strstr(err.text, "model.foreign"));
    assert_int_equal(
        trainer_load(t, "optimizer.step", "F32", &n, 1, x, 8, &err),
        ERR_CORRUPT);
    state_digest(t, after);
    assert_string_equal(before, after);
    trainer_free(t);
}

static void tensors_come_in_the_order_of_the_format(void **state)
{
    (void)state;
    struct trainer *t = trainer_of(&spec, 1);
    struct saved_state s = state_of(t);
    int64_t values = 0, count;
    int models = 0;
    for (int i = 0; i < s.n; i++) {
        bool model = !strncmp(s.all[i].name, "model.", 6);
        assert_true(model || !strncmp(s.all[i].name, "optimizer.", 10));
        if (i)
            assert_true(strcmp(s.all[i - 1].name, s.all[i].name) < 0);
        int64_t n = 1;
        for (int k = 0; k < s.all[i].dims; k++)
            n *= s.all[i].shape[k];
        assert_int_equal(s.all[i].bytes,
                         n * (strcmp(s.all[i].dtype, "I64") ? 4 : 8));
        if (model) {
            models++;
            values += n;
        }
    }
    assert_int_equal(trainer_parameters(t, &count), models);
    assert_int_equal(count, values);
    assert_int_equal(s.n, 3 * models + 1);
    saved_release(&s);
    trainer_free(t);
}

static int refuse_third(void *ctx, const char *name, const char *dtype,
                        const int64_t *shape, int dims, const void *data,
                        size_t bytes, struct err *err)
{
    int *n = ctx;
    return ++*n == 3 ? err_set(err, ERR_NOSPACE, "full at %s", name) : 0;
}

static void a_failed_put_ends_the_save(void **state)
{
    (void)state;
    struct err err;
    struct trainer *t = trainer_of(&spec, 1);
    int n = 0;
    assert_int_equal(trainer_save(t, refuse_third, &n, &err), ERR_NOSPACE);
    assert_int_equal(n, 3);
    trainer_free(t);
}

static void a_loaded_model_predicts_the_same_bits(void **state)
{
    (void)state;
    struct err err;
    struct trainer *t = trainer_of(&spec, 1), *other = trainer_of(&spec, 1);
    one_step(t, 0);
    struct saved_state s = state_of(t);
    for (int i = 0; i < s.n; i++)
        if (!strncmp(s.all[i].name, "model.", 6))
            ASSERT_OK(state_put_back(other, &s.all[i], &err), err);
    ASSERT_OK(trainer_load_model_end(other, &err), err);
    struct batch b = batch_of(&spec.record, records, 0, 8, 100, 0);
    float p[2][800], v[2][8];
    ASSERT_OK(trainer_predict(t, &b, p[0], v[0], &err), err);
    ASSERT_OK(trainer_predict(other, &b, p[1], v[1], &err), err);
    assert_memory_equal(p[0], p[1], sizeof p[0]);
    assert_memory_equal(v[0], v[1], sizeof v[0]);
    batch_release(&b);
    saved_release(&s);
    trainer_free(t);
    trainer_free(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resumes_in_any_chain_give_the_uninterrupted_bits),
        cmocka_unit_test(weights_alone_do_not_resume),
        cmocka_unit_test(a_state_without_a_tensor_is_refused_by_name),
        cmocka_unit_test(a_tensor_of_another_kind_is_refused_by_name),
        cmocka_unit_test(tensors_come_in_the_order_of_the_format),
        cmocka_unit_test(a_failed_put_ends_the_save),
        cmocka_unit_test(a_loaded_model_predicts_the_same_bits),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
