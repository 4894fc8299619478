/* Lengths, and the sizes that waste least. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "schema/cleanup.h"
#include "schema/ladder.h"

static uint64_t rng = 88172645463325252u;

static int random_below(int n)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (int)(rng % (uint64_t)n);
}

static void of(struct lengths *l, const int *v, int n)
{
    for (int i = 0; i < n; i++)
        assert_int_equal(lengths_add(l, v[i], 1), 0);
}

static void lengths_keep_counts_sum_and_maximum(void **state)
{
    CLEANUP(lengths_release) struct lengths l = {0}, m = {0};
    of(&l, (int[]){3, 0, 7, 3, 200}, 5);
    assert_int_equal(l.records, 5);
    assert_int_equal(l.sum, 213);
    assert_int_equal(l.max, 200);
    assert_int_equal(l.count[3], 2);
    assert_int_equal(lengths_add(&m, 9, 4), 0);
    assert_int_equal(lengths_merge(&m, &l), 0);
    assert_int_equal(m.records, 9);
    assert_int_equal(m.sum, 249);
    assert_int_equal(m.max, 200);
    assert_int_equal(m.count[3], 2);
    assert_int_equal(m.count[9], 4);
}

static void a_percentile_is_a_length_that_so_many_do_not_exceed(void **state)
{
    CLEANUP(lengths_release) struct lengths l = {0};
    assert_int_equal(lengths_percentile(&l, 0.99), 0);
    for (int i = 1; i <= 100; i++)
        assert_int_equal(lengths_add(&l, i, 1), 0);
    assert_int_equal(lengths_percentile(&l, 0), 1);
    assert_int_equal(lengths_percentile(&l, 0.5), 50);
    assert_int_equal(lengths_percentile(&l, 0.99), 99);
    assert_int_equal(lengths_percentile(&l, 0.991), 100);
    assert_int_equal(lengths_percentile(&l, 1), 100);
}

static void
long_lengths_share_bins_that_reach_no_further_than_the_maximum(void **state)
{
    const int v[] = {65536, 65537, 150528, 1 << 20, (1 << 20) + 1, INT32_MAX};
    for (size_t i = 0; i < sizeof(v) / sizeof(v[0]); i++) {
        CLEANUP(lengths_release) struct lengths l = {0};
        assert_int_equal(lengths_add(&l, v[i], 1), 0);
        assert_int_equal(lengths_percentile(&l, 0.5), v[i]);
        assert_true(l.n < 200000);
        /* something longer beside it: at most one part in 256 is added */
        if (v[i] == INT32_MAX)
            continue;
        assert_int_equal(lengths_add(&l, INT32_MAX, 1), 0);
        int p = lengths_percentile(&l, 0.5);
        assert_true(p >= v[i] && p <= v[i] + v[i] / 256);
    }
    CLEANUP(lengths_release) struct lengths l = {0};
    int last = 0;
    for (int length = 60000; length < 10000000; length += 37) {
        assert_int_equal(lengths_add(&l, length, 1), 0);
        assert_int_equal(lengths_percentile(&l, 1), length);
        last = length;
    }
    assert_int_equal(l.max, last);
    int before = 0; /* bins ascend */
    for (int i = 0; i < l.n; i++) {
        assert_true(lengths_of_bin(&l, i) >= before);
        before = lengths_of_bin(&l, i);
    }
}

/* ---- sizes ---- */

static void a_batch_is_padded_to_the_first_size_that_holds_it(void **state)
{
    const int sizes[] = {8, 16};
    assert_int_equal(ladder_size(sizes, 2, 0), 8);
    assert_int_equal(ladder_size(sizes, 2, 8), 8);
    assert_int_equal(ladder_size(sizes, 2, 9), 16);
    assert_int_equal(ladder_size(sizes, 2, 17), 17); /* never cut */
    assert_int_equal(ladder_size(NULL, 0, 0), 1);
}

/* Every way to draw `batch` of the records, counted out. */
static double counted(const int *v, int n, int batch, const int *sizes, int k)
{
    int64_t ways = 1;
    double sum = 0;
    for (int i = 0; i < batch; i++)
        ways *= n;
    for (int64_t w = 0; w < ways; w++) {
        int longest = 0;
        int64_t rest = w;
        for (int i = 0; i < batch; i++, rest /= n)
            if (v[rest % n] > longest)
                longest = v[rest % n];
        sum += ladder_size(sizes, k, longest);
    }
    return sum / (double)ways;
}

static void what_batches_are_padded_to_is_what_counting_gives(void **state)
{
    const int v[] = {0, 4, 4, 9, 17, 30};
    CLEANUP(lengths_release) struct lengths l = {0};
    of(&l, v, 6);
    const int sizes[] = {5, 20};
    for (int batch = 1; batch <= 5; batch++)
        for (int k = 0; k <= 2; k++)
            assert_true(fabs(ladder_padded(&l, batch, sizes, k) -
                             counted(v, 6, batch, sizes, k)) < 1e-9);
}

/* The best of all choices of at most k sizes. */
static double best_of_all(const struct lengths *l, int batch, int k)
{
    int length[16], n = 0;
    for (int i = 0; i < l->n; i++)
        if (l->count[i])
            length[n++] = lengths_of_bin(l, i);
    double best = INFINITY;
    for (unsigned set = 0; set < 1u << (n - 1); set++) {
        int sizes[16], m = 0;
        for (int i = 0; i < n; i++)
            if (i == n - 1 || set >> i & 1)
                sizes[m++] = length[i];
        if (m > k)
            continue;
        double padded = ladder_padded(l, batch, sizes, m);
        if (padded < best)
            best = padded;
    }
    return best;
}

static void no_other_sizes_waste_less(void **state)
{
    for (int round = 0; round < 400; round++) {
        CLEANUP(lengths_release) struct lengths l = {0};
        int n = 1 + random_below(12);
        for (int i = 0; i < n; i++)
            assert_int_equal(
                lengths_add(&l, random_below(200), 1 + random_below(1000)), 0);
        int batch = 1 + random_below(20), k = 1 + random_below(6), sizes[6];
        struct err err;
        int got = ladder_choose(&l, batch, k, sizes, &err);
        assert_true(got >= 1 && got <= k);
        assert_int_equal(sizes[got - 1], l.max > 1 ? l.max : 1);
        for (int i = 1; i < got; i++)
            assert_true(sizes[i - 1] < sizes[i]);
        double padded = ladder_padded(&l, batch, sizes, got);
        assert_true(padded <= best_of_all(&l, batch, k) + 1e-9);
    }
}

static void
more_sizes_waste_less_and_all_lengths_waste_what_dynamic_does(void **state)
{
    CLEANUP(lengths_release) struct lengths l = {0};
    for (int i = 0; i < 20000; i++)
        assert_int_equal(
            lengths_add(&l, 20 + random_below(40) + random_below(40), 1), 0);
    struct err err;
    int sizes[LADDER_SIZES_MAX];
    double before = INFINITY;
    for (int k = 1; k <= LADDER_SIZES_MAX; k *= 2) {
        int n = ladder_choose(&l, 4, k, sizes, &err);
        assert_int_equal(n, k);
        double padded = ladder_padded(&l, 4, sizes, n);
        assert_true(padded < before);
        before = padded;
    }
    double dynamic = ladder_padded(&l, 4, NULL, 0);
    assert_true(before >= dynamic && before < dynamic * 1.02);
}

static void there_may_be_no_records_or_one_length_or_none_that_fit(void **state)
{
    CLEANUP(lengths_release) struct lengths l = {0};
    int sizes[4] = {-1, -1, -1, -1};
    struct err err;
    assert_int_equal(ladder_choose(&l, 16, 4, sizes, &err), 0);
    assert_int_equal(lengths_add(&l, 0, 5), 0);
    assert_int_equal(ladder_choose(&l, 16, 4, sizes, &err), 1);
    assert_int_equal(sizes[0], 1);
    assert_int_equal(lengths_add(&l, 150528, 5), 0); /* no size can be that */
    assert_int_equal(ladder_choose(&l, 16, 4, sizes, &err), 1);
    assert_int_equal(sizes[0], 1);
    assert_true(ladder_padded(&l, 1, sizes, 1) == (1 + 150528) / 2.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths_keep_counts_sum_and_maximum),
        cmocka_unit_test(a_percentile_is_a_length_that_so_many_do_not_exceed),
        cmocka_unit_test(
            long_lengths_share_bins_that_reach_no_further_than_the_maximum),
        cmocka_unit_test(a_batch_is_padded_to_the_first_size_that_holds_it),
        cmocka_unit_test(what_batches_are_padded_to_is_what_counting_gives),
        cmocka_unit_test(no_other_sizes_waste_less),
        cmocka_unit_test(
            more_sizes_waste_less_and_all_lengths_waste_what_dynamic_does),
        cmocka_unit_test(
            there_may_be_no_records_or_one_length_or_none_that_fit),
    };
    return cmocka_run_group_tests_name("schema_ladder", tests, NULL, NULL);
}
