/* The data of a job spec: what is read, which of it, how often. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "schema/cleanup.h"
#include "schema/json_read.h"
#include "schema/spec.h"
#include "schema/spec_data.h"

static json_t *json_of(const char *text)
{
    json_t *v = NULL;
    struct err err;
    if (json_parse_strict(text, strlen(text), &v, &err) < 0)
        fail_msg("%s: %s", text, err.text);
    return v;
}

static void data_of(const char *text, struct data_spec *ret)
{
    AUTO_JSON json_t *in = json_of(text);
    struct err err;
    if (data_spec_parse(in, ret, &err) < 0)
        fail_msg("%s: %s: %s", text, err.pointer, err.text);
}

static void a_root_has_a_pattern_and_a_window(void **state)
{
    CLEANUP(data_spec_release) struct data_spec d = {0};
    data_of("{\"root\": \"games\", \"match\": \"2024/*.zst\", \"shards\":"
            " {\"last\": 3}, \"groups\": [{\"match\": \"2024/0*\","
            " \"weight\": 2.5}, {\"match\": \"*\", \"weight\": 0}],"
            " \"max_uses\": 4}",
            &d);
    assert_null(d.dataset);
    assert_string_equal(d.root, "games");
    assert_string_equal(d.match, "2024/*.zst");
    assert_int_equal(d.shards_last, 3);
    assert_int_equal(d.n_groups, 2);
    assert_string_equal(d.groups[0].match, "2024/0*");
    assert_true(d.groups[0].weight == 2.5 && d.groups[1].weight == 0);
    assert_true(d.max_uses == 4);
}

static void what_is_resolved_reads_back_as_it_was(void **state)
{
    static const char *const specs[] = {
        "{\"dataset\": \"a\"}",
        "{\"dataset\": \"a\", \"shards\": \"b*\", \"max_uses\": 0.5}",
        "{\"root\": \"r\", \"match\": \"x\", \"shards\": 7,"
        " \"groups\": [{\"match\": \"y\", \"weight\": 3}]}",
    };
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        CLEANUP(data_spec_release) struct data_spec d = {0}, e = {0};
        struct err err;
        data_of(specs[i], &d);
        AUTO_JSON json_t *once = data_spec_json(&d);
        assert_int_equal(data_spec_parse(once, &e, &err), 0);
        AUTO_JSON json_t *twice = data_spec_json(&e);
        assert_true(json_equal(once, twice));
    }
    /* one of the first version has no more in it than it had */
    CLEANUP(data_spec_release) struct data_spec d = {0};
    data_of(specs[0], &d);
    AUTO_JSON json_t *old = data_spec_json(&d);
    assert_int_equal(json_object_size(old), 3);
}

static void each_mistake_has_its_place(void **state)
{
    static const char *const bad[][2] = {
        {"{}", "/data/dataset"},
        {"{\"dataset\": \"../a\"}", "/data/dataset"},
        {"{\"dataset\": \"a\", \"root\": \"r\"}", "/data/root"},
        {"{\"dataset\": \"a\", \"match\": \"b\"}", "/data/match"},
        {"{\"root\": \"r\", \"match\": \"/etc/*\"}", "/data/match"},
        {"{\"root\": \"r\", \"match\": \"../*\"}", "/data/match"},
        {"{\"root\": \"r\", \"match\": \"a/../../b\"}", "/data/match"},
        {"{\"root\": \"r\", \"shards\": \"b\"}", "/data/shards"},
        {"{\"dataset\": \"a\", \"shards\": {\"last\": 0}}",
         "/data/shards/last"},
        {"{\"dataset\": \"a\", \"groups\": [3]}", "/data/groups/0"},
        {"{\"dataset\": \"a\", \"groups\": [{\"match\": \"b\"}]}",
         "/data/groups/0/weight"},
        {"{\"dataset\": \"a\", \"groups\": [{\"match\": \"b\","
         " \"weight\": -1}]}",
         "/data/groups/0/weight"},
        {"{\"dataset\": \"a\", \"groups\": [{\"match\": \"b\","
         " \"weight\": 1, \"per\": 2}]}",
         "/data/groups/0/per"},
        {"{\"dataset\": \"a\", \"max_uses\": -1}", "/data/max_uses"},
        {"{\"dataset\": \"a\", \"window\": 3}", "/data/window"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CLEANUP(data_spec_release) struct data_spec d = {0};
        AUTO_JSON json_t *in = json_of(bad[i][0]);
        struct err err;
        if (data_spec_parse(in, &d, &err) != ERR_INVALID)
            fail_msg("%s was taken", bad[i][0]);
        assert_string_equal(err.pointer, bad[i][1]);
    }
}

static void weights_need_the_order_of_all_records(void **state)
{
    CLEANUP(data_spec_release) struct data_spec d = {0};
    struct training_spec t = {.shuffle = {.mode = SHUFFLE_BUFFER}};
    struct err err;
    data_of("{\"dataset\": \"a\", \"groups\": [{\"match\": \"b\", \"weight\":"
            " 2}]}",
            &d);
    assert_int_equal(data_spec_fits(&d, &t, &err), ERR_INVALID);
    assert_string_equal(err.pointer, "/data/groups");
    t.shuffle.mode = SHUFFLE_GLOBAL;
    assert_int_equal(data_spec_fits(&d, &t, &err), 0);
}

static void what_chooses_records_is_not_in_the_jobs_signature(void **state)
{
    CLEANUP(data_spec_release) struct data_spec a = {0}, b = {0}, c = {0};
    data_of("{\"dataset\": \"a\"}", &a);
    data_of("{\"root\": \"r\", \"shards\": 2, \"max_uses\": 3}", &b);
    data_of("{\"dataset\": \"a\", \"bad_records\": \"skip\"}", &c);
    AUTO_JSON json_t *of_a = data_spec_semantics(&a);
    AUTO_JSON json_t *of_b = data_spec_semantics(&b);
    AUTO_JSON json_t *of_c = data_spec_semantics(&c);
    assert_true(json_equal(of_a, of_b));
    assert_false(json_equal(of_a, of_c));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_root_has_a_pattern_and_a_window),
        cmocka_unit_test(what_is_resolved_reads_back_as_it_was),
        cmocka_unit_test(each_mistake_has_its_place),
        cmocka_unit_test(weights_need_the_order_of_all_records),
        cmocka_unit_test(what_chooses_records_is_not_in_the_jobs_signature),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
