/* One submission that makes several jobs. */
#include "server/dry_run.h"
#include "server/sweep.h"
#include "server_fixture.h"

static int try_sweep(struct world *w, const char *axes, int64_t *ret)
{
    AUTO_JSON json_t *body = spec_json(NULL);
    json_object_set_new(body, "sweep", json_of(axes));
    assert_true(sweep_is(body));
    CLEANUP(sweep_release) struct sweep s = {0};
    int r = sweep_parse(body, &s, &w->err);
    return r < 0 ? r : sweep_submit(w->st, &s, w->now, ret, &w->err);
}

static json_t *swept(struct world *w, int64_t id, bool *ret_ended)
{
    json_t *s = NULL;
    bool ended;
    must(sweep_get(w->st, id, &s, ret_ended ? ret_ended : &ended, &w->err));
    return s;
}

static int in_state(struct world *w, int64_t id, const char *state)
{
    AUTO_JSON json_t *s = swept(w, id, NULL);
    return (int)int_of(json_object_get(s, "states"), state);
}

static void every_combination_is_a_job_the_last_axis_turns_fastest(void **state)
{
    struct world *w = *state;
    int64_t id = 0;
    put_records(w);
    must(try_sweep(w,
                   "{\"/training/seed\": [5, 6], \"/training/epochs\": [1, 2, "
                   "3], \"/labels/team\": [\"a\"]}",
                   &id));
    static const int want[6][2] = {{5, 1}, {5, 2}, {5, 3},
                                   {6, 1}, {6, 2}, {6, 3}};
    AUTO_JSON json_t *jobs = NULL;
    must(sweep_jobs(w->st, id, &jobs, &w->err));
    assert_int_equal(json_array_size(jobs), 6);
    for (int i = 0; i < 6; i++) {
        const json_t *one = json_array_get(jobs, (size_t)i);
        const json_t *of = json_object_get(one, "sweep");
        const json_t *values = json_object_get(of, "values");
        assert_int_equal(int_of(of, "id"), id);
        assert_int_equal(int_of(values, "/training/seed"), want[i][0]);
        assert_int_equal(int_of(values, "/training/epochs"), want[i][1]);
        /* and that is what it trains by */
        AUTO_JSON json_t *j = job(w, int_of(one, "id"));
        const json_t *t =
            json_object_get(json_object_get(j, "spec"), "training");
        assert_int_equal(int_of(t, "seed"), want[i][0]);
        assert_int_equal(int_of(t, "epochs"), want[i][1]);
        assert_int_equal(int_of(json_object_get(j, "progress"), "steps"),
                         6 * want[i][1]);
        assert_string_equal(str_of(json_object_get(j, "labels"), "team"), "a");
        assert_null(json_object_get(json_object_get(j, "spec"), "sweep"));
        assert_int_equal(events(w, int_of(one, "id"), "submitted", "of sweep"),
                         1);
    }
    bool ended = true;
    AUTO_JSON json_t *s = swept(w, id, &ended);
    assert_false(ended);
    assert_int_equal(int_of(s, "jobs"), 6);
    assert_int_equal(int_of(json_object_get(s, "states"), "queued"), 6);
    assert_string_equal(str_of(s, "name"), "tiny");

    /* a job of its own does not count among them, nor does the list show it */
    submit(w, NULL);
    struct job_filter f = {.limit = 10, .sweep = id};
    AUTO_JSON json_t *page = NULL;
    must(job_list(w->st, &f, &page, &w->err));
    assert_int_equal(json_array_size(json_object_get(page, "items")), 6);
    struct job_filter two = {.limit = 4, .sweep = id, .state = "queued"};
    AUTO_JSON json_t *part = NULL;
    must(job_list(w->st, &two, &part, &w->err));
    assert_int_equal(json_array_size(json_object_get(part, "items")), 4);
    assert_string_equal(str_of(part, "next"), "3");
}

static void
a_mistake_in_one_value_is_said_there_and_nothing_is_made(void **state)
{
    struct world *w = *state;
    static const struct {
        const char *axes, *pointer;
    } table[] = {
        {"{}", "/sweep"},
        {"[]", "/sweep"},
        {"{\"training/seed\": [1]}", "/sweep/training~1seed"},
        {"{\"/a~2\": [1]}", "/sweep/~1a~02"},
        {"{\"\": [1]}", "/sweep/"},
        {"{\"/training/seed\": 1}", "/sweep/~1training~1seed"},
        {"{\"/training/seed\": []}", "/sweep/~1training~1seed"},
        {"{\"/training/seed\": [1, 2, -1]}", "/sweep/~1training~1seed/2"},
        {"{\"/training/seed\": [1, 2, 1]}", "/sweep/~1training~1seed/2"},
        {"{\"/training/epochs\": [1], \"/training/sede\": [1, 2]}",
         "/sweep/~1training~1sede/0"},
        {"{\"/name/x\": [1]}", "/sweep/~1name~1x"},
        {"{\"/training/optimizer/betas/2\": [0.5]}",
         "/sweep/~1training~1optimizer~1betas~12/0"},
        {"{\"/sweep\": [1]}", "/sweep/~1sweep"},
        {"{\"/training\": [{\"seed\": 1}], \"/training/seed\": [1]}",
         "/sweep/~1training~1seed"},
        {"{\"/data/dataset\": [\"set\", \"none\"]}",
         "/sweep/~1data~1dataset/1"},
        {"{\"/after\": [[], [9]]}", "/sweep/~1after/1"},
        {"{\"/data/shards\": [\"a*\", \"z*\"]}", "/sweep/~1data~1shards/1"},
        /* heads that do not divide it: the two together */
        {"{\"/model/d_model\": [8, 9]}", "/sweep"},
    };
    put_records(w);
    AUTO_FREE char *before = dump(w);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        int64_t id;
        assert_int_equal(try_sweep(w, table[i].axes, &id), ERR_INVALID);
        if (strcmp(w->err.pointer, table[i].pointer))
            fail_msg("%s: at %s, not %s: %s", table[i].axes, w->err.pointer,
                     table[i].pointer, w->err.text);
    }
    AUTO_FREE char *after = dump(w);
    assert_string_equal(before, after);
}

static void a_mistake_of_the_spec_is_said_at_its_field(void **state)
{
    struct world *w = *state;
    put_records(w);
    AUTO_JSON json_t *body = spec_json("{\"cycles\": -1}");
    json_object_set_new(body, "sweep", json_of("{\"/training/seed\": [1]}"));
    CLEANUP(sweep_release) struct sweep s = {0};
    assert_int_equal(sweep_parse(body, &s, &w->err), ERR_INVALID);
    assert_string_equal(w->err.pointer, "/cycles");

    /* a field that each value brings need not stand in the spec itself */
    AUTO_JSON json_t *bare = spec_json(NULL);
    json_object_del(bare, "data");
    json_object_set_new(bare, "sweep",
                        json_of("{\"/data/dataset\": [\"set\"]}"));
    must(sweep_parse(bare, &s, &w->err));
    assert_int_equal(s.jobs, 1);
}

static void a_sweep_makes_at_most_a_thousand_jobs(void **state)
{
    struct world *w = *state;
    AUTO_JSON json_t *body = spec_json(NULL);
    AUTO_JSON json_t *many = json_array(), *axes = json_object();
    put_records(w);
    for (int i = 0; i < SWEEP_MAX; i++)
        json_array_append_new(many, json_integer(i));
    json_object_set(axes, "/training/seed", many);
    json_object_set(body, "sweep", axes);
    CLEANUP(sweep_release) struct sweep s = {0};
    int64_t id;
    must(sweep_parse(body, &s, &w->err));
    must(sweep_submit(w->st, &s, w->now, &id, &w->err));
    assert_int_equal(in_state(w, id, "queued"), SWEEP_MAX);

    json_object_set_new(axes, "/training/epochs", json_of("[1, 2]"));
    CLEANUP(sweep_release) struct sweep over = {0};
    assert_int_equal(sweep_parse(body, &over, &w->err), ERR_INVALID);
    assert_string_equal(w->err.pointer, "/sweep");
    assert_non_null(strstr(w->err.text, "2000"));
}

static void its_jobs_are_asked_together(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"}, b = {.name = "b"};
    int64_t id = 0;
    bool ended;
    put_records(w);
    must(try_sweep(w, "{\"/training/seed\": [1, 2, 3, 4]}", &id));
    assert_int_equal(claims(w, &a), 1); /* job 1 */
    must(saves(w, &a, 6, FINISHED, NULL));
    assert_int_equal(claims(w, &a), 1); /* job 2 */
    must(releases(w, &a, FAILED("data", "true")));
    assert_int_equal(claims(w, &a), 1); /* job 3 */

    must(sweep_pause(w->st, id, w->now, &w->err));
    expect_job(w, 3, "running", "pausing");
    expect_job(w, 4, "paused", NULL);
    assert_int_equal(claims(w, &b), 0);
    must(sweep_resume(w->st, id, w->now, &w->err));
    expect_job(w, 4, "queued", "waits for a worker");

    must(sweep_cancel(w->st, id, w->now, &w->err));
    expect_job(w, 1, "completed", NULL);
    expect_job(w, 2, "failed", NULL);
    expect_job(w, 3, "running", "canceling: the worker saves first");
    expect_job(w, 4, "canceled", NULL);
    AUTO_JSON json_t *answer = NULL;
    must(sweep_cancel(w->st, id, w->now, &w->err));
    must(beats(w, &a, NULL, &answer));
    assert_string_equal(str_of(answer, "do"), "stop");
    must(saves(w, &a, 2, YIELD_STEPS, NULL));
    AUTO_JSON json_t *over = swept(w, id, &ended);
    assert_true(ended);

    must(sweep_retry(w->st, id, w->now, &w->err));
    assert_int_equal(in_state(w, id, "queued"), 3);
    assert_int_equal(in_state(w, id, "completed"), 1);
    must(sweep_cancel(w->st, id, w->now, &w->err));

    for (int64_t j = 1; j <= 4; j++) {
        AUTO_JSON json_t *s = swept(w, id, NULL);
        must(job_delete(w->st, j, &w->err));
    }
    AUTO_JSON json_t *gone = NULL;
    assert_int_equal(sweep_get(w->st, id, &gone, &ended, &w->err),
                     ERR_NOT_FOUND); /* with the last of its jobs */
    assert_int_equal(sweep_cancel(w->st, id, w->now, &w->err), ERR_NOT_FOUND);
}

static void a_dry_run_of_a_sweep_explains_and_stores_nothing(void **state)
{
    struct world *w = *state;
    put_records(w);
    AUTO_FREE char *before = dump(w);
    AUTO_JSON json_t *body = spec_json(NULL), *out = NULL;
    json_object_set_new(
        body, "sweep",
        json_of("{\"/training/seed\": [1, 2], \"/model/layers\": [1, 2]}"));
    CLEANUP(sweep_release) struct sweep s = {0};
    must(sweep_parse(body, &s, &w->err));
    must(sweep_dry_run(w->st, &s, w->now, &out, &w->err));
    assert_int_equal(int_of(json_object_get(out, "sweep"), "jobs"), 4);
    const json_t *items = json_object_get(out, "items");
    assert_int_equal(json_array_size(items), 4);
    const json_t *one = json_array_get(items, 0),
                 *two = json_array_get(items, 1);
    assert_string_equal(str_of(one, "signature"), str_of(out, "signature"));
    assert_string_not_equal(str_of(one, "signature"), str_of(two, "signature"));
    assert_true(int_of(two, "parameters") > int_of(one, "parameters"));
    AUTO_FREE char *after = dump(w);
    assert_string_equal(before, after);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(every_combination_is_a_job_the_last_axis_turns_fastest),
        TEST(a_mistake_in_one_value_is_said_there_and_nothing_is_made),
        TEST(a_mistake_of_the_spec_is_said_at_its_field),
        TEST(a_sweep_makes_at_most_a_thousand_jobs),
        TEST(its_jobs_are_asked_together),
        TEST(a_dry_run_of_a_sweep_explains_and_stores_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
