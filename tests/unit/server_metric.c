/* Time series by step, memory by time. */
#include "server_fixture.h"

static void train(struct world *w, struct worker *a, int steps)
{
    CLEANUP(buf_release) struct buf b = {0};
    buf_adds(&b, "\"metrics\": [");
    for (int i = 1; i <= steps; i++)
        buf_addf(&b, "%s[%d, {\"loss\": %.17g, \"lr\": 0.001}]",
                 i > 1 ? ", " : "", i, i == 3 ? 99.5 : 10.0 / i);
    buf_adds(&b, "]");
    a->step = steps;
    must(beats(w, a, b.data, NULL));
}

static void the_csv_has_nine_significant_digits(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    CLEANUP(buf_release) struct buf csv = {0};
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    a.step = 2;
    must(beats(w, &a,
               "\"metrics\": [[1, {\"loss\": 0.333333343267440796,"
               " \"loss/value\": 1e-10}], [2, {\"loss\": null}]]",
               NULL));
    must(metric_csv(w->st, id, 0, NULL, &(struct csv_at){0}, &csv, &w->err));
    assert_string_equal(csv.data, "cycle,step,series,value\n"
                                  "1,1,loss,0.333333343\n"
                                  "1,1,loss/value,1e-10\n"
                                  "1,2,loss,\n");
    buf_clear(&csv);
    must(metric_csv(w->st, id, 1, "lr,loss/value", &(struct csv_at){0}, &csv,
                    &w->err));
    assert_string_equal(csv.data,
                        "cycle,step,series,value\n1,1,loss/value,1e-10\n");
}

static void a_long_csv_comes_in_pieces(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    CLEANUP(buf_release) struct buf csv = {0};
    CLEANUP(buf_release) struct buf rows = {0};
    put_records(w);
    int64_t id = submit(w, "{\"training\": {\"effective_batch\": 2,"
                           " \"epochs\": 20000}}");
    assert_int_equal(claims(w, &a), 1);
    enum { ROWS = 6000 };
    int64_t step = 0; /* some stand far from each other */
    for (int i = 1; i <= ROWS; i++) {
        if (!rows.len)
            buf_adds(&rows, "\"metrics\": [");
        step += i % 1000 ? 1 : 700;
        buf_addf(&rows, "[%d, {\"loss\": 0.125, \"lr\": 0.001}]%s", (int)step,
                 i % 25 ? ", " : "]");
        if (i % 25)
            continue;
        a.step = step;
        must(beats(w, &a, rows.data, NULL));
        buf_clear(&rows);
    }
    struct csv_at at = {0};
    int r = 1, pieces = 0;
    int64_t lines = 0, before = 0;
    for (; r > 0; pieces++) {
        buf_clear(&csv);
        r = metric_csv(w->st, id, 0, "loss", &at, &csv, &w->err);
        assert_in_range(r, 0, 1);
        assert_in_range(csv.len, 1, 100 << 10);
        for (const char *p = csv.data; *p; p = strchr(p, '\n') + 1) {
            long long n;
            if (sscanf(p, "1,%lld,loss,0.125", &n) == 1) {
                assert_true(n > before);
                before = n;
                lines++;
            }
        }
    }
    assert_int_equal(lines, ROWS);
    assert_int_equal(before, step);
    assert_true(pieces > 1);
}

static void thinning_keeps_spikes_and_the_last_point(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, "{\"training\": {\"effective_batch\": 4,"
                           " \"epochs\": 5}}");
    assert_int_equal(claims(w, &a), 1);
    train(w, &a, 30);
    AUTO_JSON json_t *all = NULL, *few = NULL;
    must(metric_series(w->st, id, 0, "loss", 1000, &all, &w->err));
    const json_t *item = json_array_get(json_object_get(all, "items"), 0);
    assert_int_equal(json_array_size(json_object_get(item, "points")), 30);
    must(metric_series(w->st, id, 0, "loss", 8, &few, &w->err));
    item = json_array_get(json_object_get(few, "items"), 0);
    const json_t *points = json_object_get(item, "points");
    assert_int_equal(int_of(item, "count"), 30);
    assert_in_range(json_array_size(points), 4, 8);
    bool spike = false;
    int64_t before = 0, step = 0;
    size_t i;
    json_t *p;
    json_array_foreach((json_t *)points, i, p)
    {
        step = json_integer_value(json_array_get(p, 0));
        assert_true(step > before);
        before = step;
        spike |= json_number_value(json_array_get(p, 1)) == 99.5;
    }
    assert_true(spike);
    assert_int_equal(step, 30);
}

static void rows_of_no_use_are_refused_before_any_is_kept(void **state)
{
    struct world *w = *state;
    static const char *const bad[] = {
        "{\"token\": 1, \"metrics\": [[1, {\"loss\": \"x\"}]]}",
        "{\"token\": 1, \"metrics\": [[1]]}",
        "{\"token\": 1, \"metrics\": [[-1, {}]]}",
        "{\"token\": 1, \"metrics\": [[1, {\"a,b\": 1}]]}",
        "{\"token\": 1, \"memory\": [{\"step\": 1}]}",
        "{\"token\": 1, \"logs\": [{\"text\": 5}]}",
        "{\"token\": 1, \"position\": {\"step\": -1}}",
        "{\"token\": 1, \"stage\": \"sleep\"}",
        "{\"token\": 1, \"extra\": 1}",
        "{}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct report in;
        int64_t token;
        AUTO_JSON json_t *body = json_of(bad[i]);
        assert_int_equal(report_parse(body, &token, &in, &w->err), ERR_INVALID);
        if (!w->err.pointer[0])
            fail_msg("no pointer: %s", bad[i]);
    }
}

static void memory_samples_make_peaks_and_a_series(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    static const char more[] =
        "\"memory\": [{\"step\": 1, \"at_ms\": 1000, \"rss_bytes\": 70,"
        " \"device_bytes\": -1}, {\"step\": 2, \"at_ms\": 2000,"
        " \"rss_bytes\": 50, \"shapes\": 4}]";
    must(beats(w, &a, more, NULL));
    must(beats(w, &a, more, NULL));
    AUTO_JSON json_t *list = NULL, *leases = NULL;
    must(memory_series(w->st, id, 100, &list, &w->err));
    assert_int_equal(json_array_size(json_object_get(list, "items")), 2);
    must(lease_list(w->st, id, 0, 10, &leases, &w->err));
    const json_t *peak = json_object_get(
        json_array_get(json_object_get(leases, "items"), 0), "peak");
    assert_int_equal(int_of(peak, "rss_bytes"), 70);
    assert_true(json_is_null(json_object_get(peak, "device_bytes")));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(the_csv_has_nine_significant_digits),
        TEST(a_long_csv_comes_in_pieces),
        TEST(thinning_keeps_spikes_and_the_last_point),
        TEST(rows_of_no_use_are_refused_before_any_is_kept),
        TEST(memory_samples_make_peaks_and_a_series),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
