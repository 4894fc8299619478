/* The records that are held out: which ones, in which order, as micro-batches. */
#include "tests/unit/worker_text.h"
#include "worker/holdout.h"

#define RECORDS 500

static struct spec spec_of(double fraction, int64_t records, int micro,
                           bool skip)
{
    struct spec spec;
    make_spec(&(struct spec_in){.epochs = 1,
                                .effective = micro,
                                .micro = micro,
                                .shuffle = 10,
                                .skip = skip},
              &spec);
    spec.training.validation.fraction = fraction;
    spec.training.validation.records = records;
    return spec;
}

/* Ids by their first token, until the end. */
static int ids_of(struct holdout *h, int micro, int *ret, struct err *err)
{
    const struct batch *b;
    int n = 0, r;
    while ((r = holdout_next(h, &b, err)) > 0) {
        int f = record_desc_field(b->desc, "x");
        int dim = b->desc->fields[f].dim;
        assert_true(b->records > 0 && b->records <= micro);
        for (int i = 0; i < b->records; i++) {
            ret[n++] = b->ints[f][(size_t)i * (size_t)b->padded[dim]];
            assert_int_equal(b->lengths[dim][i], 1 + ret[n - 1] % 17);
        }
    }
    return r < 0 ? r : n;
}

/* RECORDS records over two shards, with a blank line and CRLF among them. */
static json_t *two_shards(const struct folder *f, const struct made *how,
                          int *held, double fraction, int *ret_held)
{
    json_t *shards = json_array();
    *ret_held = 0;
    for (int s = 0; s < 2; s++) {
        CLEANUP(buf_release) struct buf text = {0}, line = {0};
        for (int i = s * RECORDS / 2; i < (s + 1) * RECORDS / 2; i++) {
            buf_clear(&line);
            add_record(&line, i);
            if (i % 50 == 7)
                buf_adds(&text, " \n");
            buf_add(&text, line.data, line.len - 1);
            size_t len = line.len - 1;
            if (i % 40 == 3) {
                buf_adds(&text, "\r");
                buf_adds(&line, "");
                line.data[len++] = '\r';
            }
            buf_adds(&text, "\n");
            if (line_is_held_out(line_hash(line.data, len), fraction))
                held[(*ret_held)++] = i;
        }
        json_array_append_new(
            shards, freeze_text(f, s ? "b.jsonl" : "a.jsonl", &text, how));
    }
    return shards;
}

static void a_fraction_is_found_by_the_index_in_the_files_order(void **state)
{
    (void)state;
    for (int zstd = 0; zstd < 2; zstd++) {
        CLEANUP(folder_release) struct folder f;
        folder_init(&f);
        int held[RECORDS], n, got[RECORDS];
        AUTO_JSON json_t *data = json_pack(
            "{s:o, s:{s:f}}", "shards",
            two_shards(&f, &(struct made){.zstd = zstd, .index = true}, held,
                       0.3, &n),
            "validation", "fraction", 0.3);
        assert_true(n > RECORDS / 5 && n < RECORDS / 2);
        static const int64_t most[] = {10000, 37, 1};
        static const int micro[] = {1, 7, 64};
        for (int k = 0; k < 9; k++) {
            CLEANUP(spec_release)
            struct spec spec = spec_of(0.3, most[k % 3], micro[k / 3], false);
            struct err err = {0};
            struct holdout *h = NULL;
            assert_int_equal(
                holdout_open(&spec, &spec.runtime, data, NULL, &h, &err), 1);
            int want = most[k % 3] < n ? (int)most[k % 3] : n;
            for (int round = 0; round < 3; round++) {
                holdout_rewind(h);
                assert_int_equal(ids_of(h, micro[k / 3], got, &err), want);
                assert_memory_equal(got, held, sizeof(int) * (size_t)want);
            }
            /* rewound in the middle */
            const struct batch *b;
            holdout_rewind(h);
            assert_int_equal(holdout_next(h, &b, &err), 1);
            holdout_rewind(h);
            assert_int_equal(ids_of(h, micro[k / 3], got, &err), want);
            holdout_close(h);
        }
    }
}

static void another_dataset_is_read_from_its_first_line(void **state)
{
    (void)state;
    CLEANUP(folder_release) struct folder f;
    folder_init(&f);
    int none[RECORDS], n, got[RECORDS];
    AUTO_JSON json_t *data =
        json_pack("{s:[], s:{s:o}}", "shards", "validation", "shards",
                  two_shards(&f, &(struct made){.zstd = true}, none, 0, &n));
    CLEANUP(spec_release) struct spec spec = spec_of(0, 300, 32, false);
    struct err err = {0};
    struct holdout *h = NULL;
    assert_int_equal(holdout_open(&spec, &spec.runtime, data, NULL, &h, &err),
                     1);
    assert_int_equal(ids_of(h, 32, got, &err), 300);
    for (int i = 0; i < 300; i++)
        assert_int_equal(got[i], i);
    holdout_close(h);
}

static void without_a_validation_nothing_is_held_out(void **state)
{
    (void)state;
    CLEANUP(folder_release) struct folder f;
    folder_init(&f);
    int none[RECORDS], n;
    AUTO_JSON json_t *data =
        json_pack("{s:o}", "shards",
                  two_shards(&f, &(struct made){.index = true}, none, 0, &n));
    CLEANUP(spec_release) struct spec spec = spec_of(0, 10000, 32, false);
    struct err err = {0};
    struct holdout *h = NULL;
    assert_int_equal(holdout_open(&spec, &spec.runtime, data, NULL, &h, &err),
                     0);
    assert_null(h);
}

static void batches_are_padded_as_the_policy_of_the_moment_says(void **state)
{
    (void)state;
    CLEANUP(folder_release) struct folder f;
    folder_init(&f);
    int none[RECORDS], n;
    AUTO_JSON json_t *data =
        json_pack("{s:[], s:{s:o}}", "shards", "validation", "shards",
                  two_shards(&f, &(struct made){0}, none, 0, &n));
    CLEANUP(spec_release) struct spec spec = spec_of(0, 10000, 4, false);
    struct err err = {0};
    struct holdout *h = NULL;
    const struct batch *b;
    int dim = record_desc_dim(&spec.record, "S");
    assert_int_equal(holdout_open(&spec, &spec.runtime, data, NULL, &h, &err),
                     1);
    assert_int_equal(holdout_next(h, &b, &err), 1);
    assert_int_equal(b->records, 4);
    assert_int_equal(b->padded[dim], 4); /* ids 0 to 3 */
    AUTO_JSON json_t *policy =
        json_pack("{s:i, s:{s:{s:[i, i]}}}", "micro_batch", 2, "padding",
                  "sizes", "S", 3, 16);
    CLEANUP(runtime_release) struct runtime_policy p = {0};
    assert_int_equal(runtime_parse(policy, &spec.record, 4, &p, &err), 0);
    assert_int_equal(holdout_set_runtime(h, &p, &err), 0);
    assert_int_equal(holdout_next(h, &b, &err), 1);
    assert_int_equal(b->records, 2);
    assert_int_equal(b->padded[dim], 16); /* 4 and 5: six entries at most */
    assert_int_equal(b->ints[record_desc_field(&spec.record, "x")][0], 4);
    holdout_close(h);
}

static void a_bad_record_is_named_or_left_out(void **state)
{
    (void)state;
    CLEANUP(folder_release) struct folder f;
    folder_init(&f);
    CLEANUP(buf_release) struct buf text = {0};
    for (int i = 0; i < 9; i++)
        add_record(&text, i);
    buf_adds(&text, "\n{\"x\":[1],\"moves\":[[99]],\"pi\":[1],\"z\":0}\n");
    for (int i = 9; i < 12; i++)
        add_record(&text, i);
    for (int skip = 0; skip < 2; skip++) {
        AUTO_JSON json_t *data =
            json_pack("{s:[], s:{s:[o]}}", "shards", "validation", "shards",
                      freeze_text(&f, "v.jsonl", &text, &(struct made){0}));
        CLEANUP(spec_release) struct spec spec = spec_of(0, 10000, 4, skip);
        struct err err = {0};
        struct holdout *h = NULL;
        int got[RECORDS];
        assert_int_equal(
            holdout_open(&spec, &spec.runtime, data, NULL, &h, &err), 1);
        int n = ids_of(h, 4, got, &err);
        if (skip) {
            assert_int_equal(n, 12);
            for (int i = 0; i < 12; i++)
                assert_int_equal(got[i], i);
        } else {
            assert_int_equal(n, ERR_DATA);
            assert_string_equal(err.shard, "v.jsonl");
            assert_int_equal(err.line, 11);
            assert_string_equal(err.field, "moves");
            assert_non_null(strstr(err.text, "validation shard 'v.jsonl'"));
        }
        holdout_close(h);
    }
}

static void a_line_that_changed_is_not_used(void **state)
{
    (void)state;
    CLEANUP(folder_release) struct folder f;
    folder_init(&f);
    CLEANUP(buf_release) struct buf text = {0};
    for (int i = 0; i < 20; i++)
        add_record(&text, i);
    AUTO_JSON json_t *data =
        json_pack("{s:[], s:{s:[o]}}", "shards", "validation", "shards",
                  freeze_text(&f, "v.jsonl", &text, &(struct made){0}));
    CLEANUP(spec_release) struct spec spec = spec_of(0, 10000, 4, false);
    struct err err = {0};
    struct holdout *h = NULL;
    int got[RECORDS];
    assert_int_equal(holdout_open(&spec, &spec.runtime, data, NULL, &h, &err),
                     1);
    *strstr(text.data, "\"z\":1") = ' '; /* of the same length */
    put_file(&f, "v.jsonl", text.data, text.len);
    assert_int_equal(ids_of(h, 4, got, &err), ERR_DATA);
    assert_string_equal(err.shard, "v.jsonl");
    holdout_close(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fraction_is_found_by_the_index_in_the_files_order),
        cmocka_unit_test(another_dataset_is_read_from_its_first_line),
        cmocka_unit_test(without_a_validation_nothing_is_held_out),
        cmocka_unit_test(batches_are_padded_as_the_policy_of_the_moment_says),
        cmocka_unit_test(a_bad_record_is_named_or_left_out),
        cmocka_unit_test(a_line_that_changed_is_not_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
