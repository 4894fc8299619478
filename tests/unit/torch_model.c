/* The model: its gradients, and what must not change them. */
#include "tests/unit/torch_batch.h"
#define WEIGHTS_OF_SEED_11                                                     \
    "8c7711ac0583e6815995ff834bc5ab3a6e2fcd830f6ba92db0f100b7af2a34b7"

/* Gradients of one micro-batch, read off the first moment: (1 - beta1) g. */
static struct saved_state gradients(const struct spec *spec,
                                    const json_t *records, int count, int micro,
                                    int minimum, bool padded,
                                    struct losses *ret)
{
    trainer_use_padded(padded);
    struct trainer *t = trainer_of(spec, 1);
    trainer_use_padded(false);
    *ret = train_step(t, &spec->record, records, count, micro, minimum, 3, 0);
    struct saved_state s = state_of(t);
    trainer_free(t);
    return s;
}

/* The largest difference over all gradients, relative to their largest. */
static double difference(struct saved_state *a, struct saved_state *b)
{
    double worst = 0, top = 0;
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++) {
        if (strncmp(a->all[i].name, "optimizer.exp_avg.", 18))
            continue;
        const float *x = a->all[i].data, *y = b->all[i].data;
        for (size_t k = 0; k < a->all[i].bytes / 4; k++) {
            assert_true(isfinite(x[k]) && isfinite(y[k]));
            worst = fmax(worst, fabs((double)x[k] - y[k]));
            top = fmax(top, fabs((double)x[k]));
        }
    }
    assert_true(top > 0);
    return worst / top;
}

static void compare(const struct spec *spec, const json_t *records, int count,
                    int micro_a, int min_a, bool padded_a, int micro_b,
                    int min_b, bool padded_b, double tolerance)
{
    struct losses a, b;
    struct saved_state x =
        gradients(spec, records, count, micro_a, min_a, padded_a, &a);
    struct saved_state y =
        gradients(spec, records, count, micro_b, min_b, padded_b, &b);
    assert_int_equal(a.records, count);
    assert_true(fabs(a.total - b.total) / count <= tolerance);
    assert_true(fabs(a.policy - b.policy) / count <= tolerance);
    assert_true(fabs(a.value - b.value) / count <= tolerance);
    double d = difference(&x, &y);
    if (!(d <= tolerance))
        fail_msg("gradients differ by %g", d);
    saved_release(&x);
    saved_release(&y);
}

static void padding_changes_no_bit_where_records_are_packed(void **state)
{
    (void)state;
    if (strcmp(test_device(), "cpu"))
        skip();
    struct spec spec;
    chess_spec(&spec, "/model/dropout", 0.5);
    AUTO_JSON json_t *records = chess_records(0, 16);
    compare(&spec, records, 16, 16, 50, false, 16, 64, false, 0);
    compare(&spec, records, 16, 16, 0, false, 16, 200, false, 0);
    spec_release(&spec);
}

static void padding_does_not_change_what_is_dropped(void **state)
{
    (void)state;
    struct spec spec;
    chess_spec(&spec, "/model/dropout", 0.5);
    AUTO_JSON json_t *records = chess_records(40, 16);
    compare(&spec, records, 16, 16, 50, true, 16, 64, true, 1e-5);
    spec_release(&spec);
}

static void micro_batches_do_not_change_what_is_dropped(void **state)
{
    (void)state;
    struct spec spec;
    chess_spec(&spec, "/model/dropout", 0.5);
    AUTO_JSON json_t *records = chess_records(80, 18);
    compare(&spec, records, 18, 18, 0, false, 4, 0, false, 1e-5);
    compare(&spec, records, 18, 18, 0, false, 1, 0, false, 1e-5);
    compare(&spec, records, 18, 18, 0, true, 4, 64, true, 1e-5);
    spec_release(&spec);
}

static void packed_and_padded_records_train_alike(void **state)
{
    (void)state;
    struct spec spec;
    chess_spec(&spec, NULL, 0);
    AUTO_JSON json_t *chess = chess_records(120, 16);
    compare(&spec, chess, 16, 16, 0, false, 16, 70, true, 1e-5);
    spec_release(&spec);

    AUTO_JSON json_t *j = quoted(SPEC_ALL_KINDS);
    spec_of(&spec, j, NULL, 0);
    AUTO_JSON json_t *records = random_records(&spec.record, 8, 5);
    compare(&spec, records, 8, 8, 0, false, 3, 12, true, 1e-5);
    spec_release(&spec);
}

static void dropout_differs_from_step_to_step(void **state)
{
    (void)state;
    struct spec spec;
    chess_spec(&spec, NULL, 0);
    AUTO_JSON json_t *records = chess_records(0, 8);
    struct trainer *t = trainer_of(&spec, 1);
    struct err err;
    struct batch b = batch_of(&spec.record, records, 0, 8, 0, 0);
    double total[3];
    const int64_t steps[3] = {0, 1, 0};
    for (int i = 0; i < 3; i++) {
        struct losses sum = {0};
        ASSERT_OK(trainer_micro(t, &b, steps[i], 8, &sum, &err), err);
        trainer_discard(t);
        total[i] = sum.total;
    }
    assert_true(total[0] != total[1]);
    assert_true(total[0] == total[2]);
    batch_release(&b);
    trainer_free(t);
    spec_release(&spec);
}

/* Entries that are padding could hold anything. */
static void what_lies_in_padding_changes_nothing(void **state)
{
    (void)state;
    struct spec spec;
    AUTO_JSON json_t *j = quoted(SPEC_ALL_KINDS);
    spec_of(&spec, j, NULL, 0);
    AUTO_JSON json_t *records = random_records(&spec.record, 6, 9);
    for (int padded = 0; padded < 2; padded++) {
        struct saved_state s[2];
        double total[2];
        for (int junk = 0; junk < 2; junk++) {
            trainer_use_padded(padded);
            struct trainer *t = trainer_of(&spec, 1);
            trainer_use_padded(false);
            struct err err;
            struct losses sum = {0};
            struct batch b =
                batch_of(&spec.record, records, 0, 6, 14, junk * 2);
            ASSERT_OK(trainer_micro(t, &b, 0, 6, &sum, &err), err);
            double norm;
            ASSERT_OK(trainer_step(t, 0, &norm, &err), err);
            total[junk] = sum.total;
            s[junk] = state_of(t);
            batch_release(&b);
            trainer_free(t);
        }
        assert_true(total[0] == total[1]);
        assert_true(difference(&s[0], &s[1]) == 0);
        saved_release(&s[0]);
        saved_release(&s[1]);
    }
    spec_release(&spec);
}

static void a_policy_is_spread_over_real_candidates_alone(void **state)
{
    (void)state;
    struct spec spec;
    chess_spec(&spec, NULL, 0);
    AUTO_JSON json_t *records = chess_records(0, 12);
    int over = spec.record.fields[spec.record.policy].dim;
    for (int padded = 0; padded < 2; padded++) {
        trainer_use_padded(padded);
        struct trainer *t = trainer_of(&spec, 1);
        trainer_use_padded(false);
        struct batch b = batch_of(&spec.record, records, 0, 12, 90, 0);
        float policy[12 * 90], value[12];
        struct err err;
        ASSERT_OK(trainer_predict(t, &b, policy, value, &err), err);
        for (int r = 0; r < 12; r++) {
            double sum = 0;
            for (int i = 0; i < 90; i++) {
                float p = policy[r * 90 + i];
                if (i < b.lengths[over][r])
                    assert_true(p > 0 && p < 1);
                else
                    assert_true(p == 0);
                sum += p;
            }
            assert_true(fabs(sum - 1) < 1e-5);
            assert_true(value[r] > -1 && value[r] < 1);
        }
        batch_release(&b);
        trainer_free(t);
    }
    spec_release(&spec);
}

static double total_loss(struct trainer *t, const struct batch *b)
{
    struct losses sum = {0};
    struct err err;
    ASSERT_OK(trainer_micro(t, b, 3, b->records, &sum, &err), err);
    trainer_discard(t);
    return sum.total / b->records;
}

/* Along each tensor's own gradient the loss must rise by its square norm. */
static void gradients_match_finite_differences(void **state)
{
    (void)state;
    struct spec spec;
    AUTO_JSON json_t *j = quoted(SPEC_ALL_KINDS);
    spec_of(&spec, j, NULL, 0);
    AUTO_JSON json_t *records = random_records(&spec.record, 8, 21);
    for (int padded = 0; padded < 2; padded++) {
        struct losses sum;
        struct saved_state s = gradients(&spec, records, 8, 8, 0, padded, &sum);
        trainer_use_padded(padded);
        struct trainer *t = trainer_of(&spec, 1);
        trainer_use_padded(false);
        struct batch b = batch_of(&spec.record, records, 0, 8, 0, 0);
        double scale = 1 - spec.training.optimizer.beta1;
        int checked = 0;
        for (int i = 0; i < s.n; i++) {
            if (strncmp(s.all[i].name, "optimizer.exp_avg.", 18))
                continue;
            char name[160] = "model.";
            strcat(name, s.all[i].name + 18);
            struct saved *p = state_find(&s, name);
            size_t n = p->bytes / 4;
            const float *m = s.all[i].data;
            double norm = 0;
            for (size_t k = 0; k < n; k++)
                norm += (m[k] / scale) * (m[k] / scale);
            norm = sqrt(norm);
            assert_true(norm > 1e-4);
            /* Differences: third-order error of the step, and rounding. */
            double loss[2], h = 1e-3;
            float *moved = malloc(p->bytes);
            for (int side = 0; side < 2; side++) {
                for (size_t k = 0; k < n; k++)
                    moved[k] = (float)(((float *)p->data)[k] +
                                       (side ? -h : h) * m[k] / scale / norm);
                struct saved copy = *p;
                copy.data = moved;
                struct err err;
                ASSERT_OK(state_put_back(t, &copy, &err), err);
                loss[side] = total_loss(t, &b);
            }
            free(moved);
            struct err err;
            ASSERT_OK(state_put_back(t, p, &err), err);
            double slope = (loss[0] - loss[1]) / (2 * h);
            if (fabs(slope - norm) > 0.01 * norm + 2e-4)
                fail_msg("%s: slope %g, gradient %g", name, slope, norm);
            checked++;
        }
        assert_true(checked > 40);
        batch_release(&b);
        trainer_free(t);
        saved_release(&s);
    }
    spec_release(&spec);
}

/* Under Adam a parameter without a true gradient drifts by rounding alone: its
 * gradients are there, but as small as rounding. */
static void every_parameter_has_a_gradient(void **state)
{
    (void)state;
    for (int kinds = 0; kinds < 2; kinds++) {
        struct spec spec;
        AUTO_JSON json_t *records = NULL;
        if (kinds) {
            AUTO_JSON json_t *j = quoted(SPEC_ALL_KINDS);
            spec_of(&spec, j, "/model/dropout", 0.0);
            records = random_records(&spec.record, 64, 3);
        } else {
            chess_spec(&spec, "/model/dropout", 0.0);
            records = chess_records(0, 64);
        }
        struct trainer *t = trainer_of(&spec, 1);
        for (int step = 0; step < 4; step++)
            train_step(t, &spec.record, records, 64, 16, 0, step, 1e-3);
        struct saved_state s = state_of(t);
        for (int i = 0; i < s.n; i++) {
            if (strncmp(s.all[i].name, "optimizer.exp_avg.", 18))
                continue;
            const float *m = s.all[i].data;
            size_t n = s.all[i].bytes / 4;
            double norm = 0, none = 0;
            for (size_t k = 0; k < n; k++) {
                norm += (double)m[k] * m[k];
                none += m[k] == 0;
            }
            if (!(sqrt(norm) > 1e-5))
                fail_msg("%s: %g", s.all[i].name, sqrt(norm));
            /* Only rows of embeddings may never have been looked up. */
            if (none && !strstr(s.all[i].name, "embed."))
                fail_msg("%s: %g zeros", s.all[i].name, none);
        }
        saved_release(&s);
        trainer_free(t);
        spec_release(&spec);
    }
}

static void parameters_are_counted_as_the_spec_counts_them(void **state)
{
    (void)state;
    struct spec spec;
    AUTO_JSON json_t *j = quoted(SPEC_ALL_KINDS);
    for (int kinds = 0; kinds < 2; kinds++) {
        if (kinds)
            spec_of(&spec, j, NULL, 0);
        else
            chess_spec(&spec, NULL, 0);
        struct trainer *t = trainer_of(&spec, 1);
        int64_t count;
        assert_true(trainer_parameters(t, &count) > 0);
        assert_int_equal(count, spec_parameters(&spec));
        trainer_free(t);
        spec_release(&spec);
    }
}

/* Known for good: weights do not depend on the library or the machine. */
static void weights_come_from_the_seed_and_the_name(void **state)
{
    (void)state;
    struct spec spec;
    AUTO_JSON json_t *j = quoted(SPEC_ALL_KINDS);
    char hex[3][DIGEST_HEX];
    const double seeds[3] = {11, 12, 11};
    for (int i = 0; i < 3; i++) {
        spec_of(&spec, j, "/training/seed", seeds[i]);
        struct trainer *t = trainer_of(&spec, 1);
        state_digest(t, hex[i]);
        trainer_free(t);
        spec_release(&spec);
    }
    assert_string_not_equal(hex[0], hex[1]);
    assert_string_equal(hex[0], hex[2]);
    assert_string_equal(hex[0], WEIGHTS_OF_SEED_11);
}

static void train_and_print(int threads)
{
    struct spec spec;
    chess_spec(&spec, NULL, 0);
    AUTO_JSON json_t *records = chess_records(0, 64);
    struct trainer *t = trainer_of(&spec, threads);
    for (int step = 0; step < 3; step++)
        train_step(t, &spec.record, records, 64, 16, 0, step, 1e-3);
    char hex[DIGEST_HEX];
    state_digest(t, hex);
    trainer_free(t);
    spec_release(&spec);
    puts(hex);
}

static void new_processes_give_the_same_bits(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 2; threads++) {
        char hex[3][DIGEST_HEX];
        for (int i = 0; i < 3; i++) {
            char command[128];
            /* Another environment, another layout of stack and heap. */
            snprintf(command, sizeof command, "X=%0*d /proc/%d/exe digest %d",
                     1 + 30 * i, 0, (int)getpid(), threads);
            FILE *f = popen(command, "r");
            assert_non_null(f);
            assert_non_null(fgets(hex[i], DIGEST_HEX, f));
            pclose(f);
        }
        assert_int_equal(strlen(hex[0]), DIGEST_HEX - 1);
        assert_string_equal(hex[0], hex[1]);
        assert_string_equal(hex[0], hex[2]);
    }
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "digest")) {
        train_and_print(atoi(argv[2]));
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(padding_changes_no_bit_where_records_are_packed),
        cmocka_unit_test(padding_does_not_change_what_is_dropped),
        cmocka_unit_test(micro_batches_do_not_change_what_is_dropped),
        cmocka_unit_test(packed_and_padded_records_train_alike),
        cmocka_unit_test(dropout_differs_from_step_to_step),
        cmocka_unit_test(what_lies_in_padding_changes_nothing),
        cmocka_unit_test(a_policy_is_spread_over_real_candidates_alone),
        cmocka_unit_test(gradients_match_finite_differences),
        cmocka_unit_test(every_parameter_has_a_gradient),
        cmocka_unit_test(parameters_are_counted_as_the_spec_counts_them),
        cmocka_unit_test(weights_come_from_the_seed_and_the_name),
        cmocka_unit_test(new_processes_give_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
