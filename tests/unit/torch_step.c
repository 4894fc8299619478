/* One optimizer step: clipping, AdamW, and what ends a step early. */
#include "tests/unit/torch_batch.h"
#include <sys/resource.h>
#include <sys/wait.h>

/* AdamW in double precision over the gradients of one step. */
static void a_step_is_adamw_of_the_clipped_gradient(void **state)
{
    (void)state;
    struct err err;
    const double clips[3] = {0.0, 1e9, 0.05};
    for (int c = 0; c < 3; c++) {
        struct spec spec;
        chess_spec(&spec, "/training/clip_norm", clips[c]);
        AUTO_JSON json_t *records = chess_records(0, 16);
        struct trainer *t = trainer_of(&spec, 1);
        struct batch b = batch_of(&spec.record, records, 0, 16, 0, 0);
        const double lr = 0.01, wd = spec.training.optimizer.weight_decay;
        const double b1 = spec.training.optimizer.beta1;
        const double b2 = spec.training.optimizer.beta2;
        const double eps = spec.training.optimizer.eps;
        for (int step = 1; step <= 3; step++) {
            struct saved_state before = state_of(t);
            struct losses sum = {0};
            double norm, squares = 0;
            ASSERT_OK(trainer_micro(t, &b, step, 16, &sum, &err), err);
            ASSERT_OK(trainer_step(t, lr, &norm, &err), err);
            struct saved_state after = state_of(t);
            double c1 = 1 - pow(b1, step), c2 = 1 - pow(b2, step);
            for (int i = 0; i < after.n; i++) {
                if (strncmp(after.all[i].name, "optimizer.exp_avg.", 18))
                    continue;
                char name[200] = "model.", sq[200] = "optimizer.exp_avg_sq.";
                strcat(name, after.all[i].name + 18);
                strcat(sq, after.all[i].name + 18);
                const float *m0 = state_find(&before, after.all[i].name)->data;
                const float *m1 = after.all[i].data;
                const float *v0 = state_find(&before, sq)->data;
                const float *v1 = state_find(&after, sq)->data;
                const float *p0 = state_find(&before, name)->data;
                const float *p1 = state_find(&after, name)->data;
                for (size_t k = 0; k < after.all[i].bytes / 4; k++) {
                    double g = (m1[k] - b1 * m0[k]) / (1 - b1);
                    squares += g * g;
                    double v = b2 * v0[k] + (1 - b2) * g * g;
                    assert_true(fabs(v - v1[k]) <= 1e-4 * v + 1e-12);
                    double p = p0[k] * (1 - lr * wd) -
                               lr * (m1[k] / c1) / (sqrt(v1[k] / c2) + eps);
                    assert_true(fabs(p - p1[k]) <= 1e-6);
                }
            }
            double want = clips[c] > 0 && norm > clips[c] ? clips[c] : norm;
            assert_true(fabs(sqrt(squares) - want) < 1e-4 * want);
            saved_release(&before);
            saved_release(&after);
        }
        batch_release(&b);
        trainer_free(t);
        spec_release(&spec);
    }
}

static void a_gradient_that_is_not_finite_changes_nothing(void **state)
{
    (void)state;
    struct spec spec;
    chess_spec(&spec, NULL, 0);
    AUTO_JSON json_t *records = chess_records(0, 8);
    for (int padded = 0; padded < 2; padded++) {
        trainer_use_padded(padded);
        struct trainer *t = trainer_of(&spec, 1), *u = trainer_of(&spec, 1);
        trainer_use_padded(false);
        struct err err;
        struct losses sum = {0};
        double norm;
        char before[DIGEST_HEX], after[DIGEST_HEX];
        state_digest(t, before);
        struct batch b = batch_of(&spec.record, records, 0, 8, 0, 0);
        float good = b.nums[spec.record.value][3];
        b.nums[spec.record.value][3] = NAN;
        ASSERT_OK(trainer_micro(t, &b, 0, 8, &sum, &err), err);
        assert_false(isfinite(sum.total));
        assert_int_equal(trainer_step(t, 0.1, &norm, &err), ERR_NOT_FINITE);
        assert_false(isfinite(norm));
        state_digest(t, after);
        assert_string_equal(before, after);
        /* And the bad gradient is gone. */
        b.nums[spec.record.value][3] = good;
        struct trainer *both[2] = {t, u};
        for (int i = 0; i < 2; i++) {
            ASSERT_OK(trainer_micro(both[i], &b, 0, 8, &sum, &err), err);
            ASSERT_OK(trainer_step(both[i], 0.1, &norm, &err), err);
        }
        state_digest(t, after);
        state_digest(u, before);
        assert_string_equal(before, after);
        batch_release(&b);
        trainer_free(t);
        trainer_free(u);
    }
    spec_release(&spec);
}

static void a_discarded_gradient_leaves_no_trace(void **state)
{
    (void)state;
    struct spec spec;
    chess_spec(&spec, NULL, 0);
    AUTO_JSON json_t *records = chess_records(0, 32);
    struct trainer *t = trainer_of(&spec, 1), *u = trainer_of(&spec, 1);
    struct err err;
    struct losses sum = {0};
    struct batch b = batch_of(&spec.record, records, 20, 12, 0, 0);
    ASSERT_OK(trainer_micro(t, &b, 0, 12, &sum, &err), err);
    trainer_discard(t);
    batch_release(&b);
    char hex[2][DIGEST_HEX];
    train_step(t, &spec.record, records, 16, 8, 0, 0, 0.01);
    train_step(u, &spec.record, records, 16, 8, 0, 0, 0.01);
    state_digest(t, hex[0]);
    state_digest(u, hex[1]);
    assert_string_equal(hex[0], hex[1]);
    trainer_free(t);
    trainer_free(u);
    spec_release(&spec);
}

static void losses_are_sums_weighted_in_the_total(void **state)
{
    (void)state;
    struct spec spec;
    AUTO_JSON json_t *j = quoted(SPEC_ALL_KINDS);
    spec_of(&spec, j, NULL, 0);
    AUTO_JSON json_t *records = random_records(&spec.record, 8, 2);
    struct trainer *t = trainer_of(&spec, 1);
    struct losses sum = train_step(t, &spec.record, records, 8, 3, 0, 0, 0.01);
    assert_int_equal(sum.records, 8);
    assert_true(sum.policy > 0 && sum.value > 0);
    assert_true(fabs(sum.policy + 0.5 * sum.value - sum.total) < 1e-9);
    trainer_free(t);
    spec_release(&spec);
}

/* What fails to train would pass every other test. */
static void the_loss_goes_down(void **state)
{
    (void)state;
    struct spec spec;
    chess_spec(&spec, NULL, 0);
    AUTO_JSON json_t *records = chess_records(0, 64);
    struct trainer *t = trainer_of(&spec, 1);
    double first = 0, last = 0;
    for (int i = 0; i < 60; i++) {
        struct losses sum =
            train_step(t, &spec.record, records, 64, 16, 0, i, 3e-3);
        if (!i)
            first = sum.total / 64;
        last = sum.total / 64;
    }
    assert_true(last < 0.9 * first);
    trainer_free(t);
    spec_release(&spec);
}

static void a_record_beyond_max_length_is_refused(void **state)
{
    (void)state;
    struct spec spec;
    chess_spec(&spec, "/model/max_length", 72);
    AUTO_JSON json_t *records = chess_records(0, 1);
    json_t *list = json_object_get(json_array_get(records, 0), "state");
    while (json_array_size(list) < 73)
        json_array_append_new(list, json_integer(1));
    struct err err;
    struct losses sum = {0};
    struct trainer *t = trainer_of(&spec, 1);
    struct batch b = batch_of(&spec.record, records, 0, 1, 0, 0);
    assert_int_equal(trainer_micro(t, &b, 0, 1, &sum, &err), ERR_DATA);
    assert_non_null(strstr(err.text, "state"));
    batch_release(&b);
    /* Padding may reach further than records. */
    json_array_remove(list, 72);
    for (int padded = 0; padded < 2; padded++) {
        trainer_use_padded(padded);
        struct trainer *u = trainer_of(&spec, 1);
        trainer_use_padded(false);
        b = batch_of(&spec.record, records, 0, 1, 90, 0);
        ASSERT_OK(trainer_micro(u, &b, 0, 1, &sum, &err), err);
        batch_release(&b);
        trainer_free(u);
    }
    trainer_free(t);
    spec_release(&spec);
}

static void memory_that_is_not_there_is_named(void **state)
{
    (void)state;
    struct spec spec;
    AUTO_JSON json_t *j = quoted(SPEC_ALL_KINDS);
    spec_of(&spec, j, NULL, 0);
    spec.model.ff = 1 << 30; /* 100 GB */
    pid_t pid = fork();
    if (!pid) {
        struct rlimit limit = {(rlim_t)8 << 30, (rlim_t)8 << 30};
        setrlimit(RLIMIT_AS, &limit);
        struct trainer *t;
        struct err err;
        int r = trainer_new(&spec, "cpu", 1, &t, &err);
        _exit(r == ERR_OOM && strstr(err.text, "memory") ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    spec_release(&spec);
}

static void a_device_that_is_not_there_is_refused(void **state)
{
    (void)state;
    struct spec spec;
    struct trainer *t;
    struct err err;
    chess_spec(&spec, NULL, 0);
    assert_int_equal(trainer_new(&spec, "abacus", 1, &t, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "abacus"));
    assert_int_equal(trainer_new(&spec, "cpu", 0, &t, &err), ERR_INVALID);
    if (!strcmp(torch_best_device(), "cpu"))
        assert_int_equal(trainer_new(&spec, "cuda", 1, &t, &err), ERR_TORCH);
    spec_release(&spec);
}

static void the_library_describes_itself(void **state)
{
    (void)state;
    AUTO_JSON json_t *a = torch_describe();
    AUTO_JSON json_t *b = torch_describe();
    assert_true(json_equal(a, b));
    const char *keys[] = {"libtorch", "cpu_capability", "kernels"};
    for (int i = 0; i < 3; i++) {
        const char *text = json_string_value(json_object_get(a, keys[i]));
        assert_non_null(text);
        assert_true(strlen(text) > 0);
    }
    assert_non_null(json_object_get(a, "blas"));
    assert_non_null(json_object_get(a, "blas_core"));
    AUTO_JSON json_t *devices = torch_devices();
    size_t n = json_array_size(devices);
    assert_true(n >= 1);
    const json_t *last = json_array_get(devices, n - 1);
    const json_t *first = json_array_get(devices, 0);
    assert_string_equal(json_string_value(json_object_get(last, "kind")),
                        "cpu");
    assert_string_equal(json_string_value(json_object_get(first, "kind")),
                        torch_best_device());
}

static void memory_of_the_cpu_is_not_the_frameworks(void **state)
{
    (void)state;
    struct spec spec;
    chess_spec(&spec, NULL, 0);
    struct err err;
    struct trainer *t = NULL;
    ASSERT_OK(trainer_new(&spec, "cpu", 1, &t, &err), err);
    int64_t a = 0, b = 0, c = 0;
    trainer_memory(t, &a, &b, &c);
    assert_int_equal(a, -1);
    assert_int_equal(b, -1);
    assert_int_equal(c, -1);
    trainer_empty_cache(t);
    trainer_free(t);
    spec_release(&spec);
}

static void memory_of_a_device_is_known(void **state)
{
    (void)state;
    if (!strcmp(test_device(), "cpu"))
        skip();
    struct spec spec;
    chess_spec(&spec, NULL, 0);
    AUTO_JSON json_t *records = chess_records(0, 16);
    struct trainer *t = trainer_of(&spec, 1);
    train_step(t, &spec.record, records, 16, 16, 0, 0, 1e-3);
    int64_t allocated = 0, driver = 0, recommended = 0, after = 0;
    trainer_memory(t, &allocated, &driver, &recommended);
    assert_true(allocated > 196673 * 4 * 3);
    assert_true(driver >= allocated && recommended > driver);
    trainer_empty_cache(t);
    trainer_memory(t, &allocated, &after, &recommended);
    assert_true(after <= driver);
    trainer_free(t);
    spec_release(&spec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_adamw_of_the_clipped_gradient),
        cmocka_unit_test(a_gradient_that_is_not_finite_changes_nothing),
        cmocka_unit_test(a_discarded_gradient_leaves_no_trace),
        cmocka_unit_test(losses_are_sums_weighted_in_the_total),
        cmocka_unit_test(the_loss_goes_down),
        cmocka_unit_test(a_record_beyond_max_length_is_refused),
        cmocka_unit_test(memory_that_is_not_there_is_named),
        cmocka_unit_test(a_device_that_is_not_there_is_refused),
        cmocka_unit_test(the_library_describes_itself),
        cmocka_unit_test(memory_of_the_cpu_is_not_the_frameworks),
        cmocka_unit_test(memory_of_a_device_is_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
