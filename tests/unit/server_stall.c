/* Steps, or none. */
#include "server/stall.h"
#include "server_fixture.h"

static void long_steps_are_no_stall(void **state)
{
    struct stall s = {.moved_mono_ms = 1000};
    int64_t now = 1000;
    /* a first step of a minute, then steps of a minute, each with thirty
     * heartbeats */
    for (int step = 0; step < 5; step++)
        for (int beat = 1; beat <= 30; beat++) {
            now += 2000;
            assert_int_equal(
                stall_look(&s, step ? "train" : "first_step", beat == 30, now),
                STALL_NONE);
        }
    assert_true(s.step_ms > 59000 && s.step_ms < 61000);
}

static void ten_usual_steps_without_one_are_a_stall(void **state)
{
    struct stall s = {.moved_mono_ms = 0};
    int64_t now = 0;
    for (int i = 0; i < 30; i++)
        stall_look(&s, "train", 1, now += 5000);
    for (int i = 0; i < 25; i++)
        assert_int_equal(stall_look(&s, "train", 0, now += 2000), STALL_NONE);
    assert_int_equal(stall_look(&s, "train", 0, now += 2000), STALL_BEGINS);
    char text[128];
    stall_text(&s, now, text, sizeof(text));
    assert_string_equal(text, "no step for 52 s (one usually takes 5.0 s)");
    assert_int_equal(stall_look(&s, "train", 0, now += 2000), STALL_GOES_ON);
    assert_int_equal(stall_look(&s, "train", 1, now += 2000), STALL_ENDS);
    assert_int_equal(stall_look(&s, "train", 0, now += 2000), STALL_NONE);
}

static void fast_steps_are_given_half_a_minute(void **state)
{
    struct stall s = {.moved_mono_ms = 0};
    int64_t now = 0;
    for (int i = 0; i < 30; i++)
        stall_look(&s, "train", 100, now += 2000);
    assert_int_equal(stall_look(&s, "train", 0, now + 30000), STALL_NONE);
    assert_int_equal(stall_look(&s, "train", 0, now + 30001), STALL_BEGINS);
    char text[128];
    stall_text(&s, now + 30001, text, sizeof(text));
    assert_string_equal(text, "no step for 30 s (one usually takes 0.02 s)");
}

static void loads_and_saves_take_what_they_take(void **state)
{
    struct stall s = {.moved_mono_ms = 0};
    int64_t now = 0;
    for (int i = 0; i < 300; i++)
        assert_int_equal(stall_look(&s, "load", 0, now += 2000), STALL_NONE);
    for (int i = 0; i < 300; i++)
        assert_int_equal(stall_look(&s, "first_step", 0, now += 2000),
                         STALL_NONE);
    for (int i = 0; i < 30; i++)
        stall_look(&s, "train", 1, now += 2000);
    for (int i = 0; i < 300; i++)
        assert_int_equal(stall_look(&s, "save", 0, now += 2000), STALL_NONE);
    for (int i = 0; i < 300; i++)
        assert_int_equal(stall_look(&s, "validate", 0, now += 2000),
                         STALL_NONE);
    assert_int_equal(stall_look(&s, "train", 0, now += 20000), STALL_NONE);
    /* a save is a sign of life, too */
    assert_int_equal(stall_look(&s, "train", 0, now += 60000), STALL_BEGINS);
    assert_int_equal(stall_look(&s, "save", 0, now += 2000), STALL_ENDS);
}

/* ---- a lease ---- */

static void step_by_step(struct world *w, struct worker *k, int64_t to)
{
    for (; k->step < to; k->step++) {
        w->now += 2000;
        w->mono += 2000;
        must(beats(w, k, NULL, NULL));
    }
    must(beats(w, k, NULL, NULL));
}

static void quiet(struct world *w, struct worker *k, int64_t ms)
{
    for (; ms > 0; ms -= 2000) {
        w->now += 2000;
        w->mono += 2000;
        must(beats(w, k, NULL, NULL));
    }
}

static void a_stall_is_told_with_its_time_and_so_is_its_end(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    step_by_step(w, &a, 4);
    quiet(w, &a, 30000);
    expect_job(w, id, "running", NULL);
    AUTO_JSON json_t *calm = job(w, id);
    assert_true(json_is_null(json_object_get(calm, "reason")));
    assert_true(json_is_null(json_object_get(calm, "stalled_since")));
    quiet(w, &a, 66000);
    expect_job(w, id, "running",
               "stalled: no step for 96 s (one usually takes 2.");
    AUTO_JSON json_t *j = job(w, id);
    assert_string_not_equal(str_of(j, "stalled_since"), "");
    assert_int_equal(events(w, id, "stalled", "is at step 4: no step"), 1);
    assert_int_equal(events(w, id, "moving", NULL), 0);
    step_by_step(w, &a, 5);
    AUTO_JSON json_t *again = job(w, id);
    assert_true(json_is_null(json_object_get(again, "reason")));
    assert_true(json_is_null(json_object_get(again, "stalled_since")));
    assert_int_equal(events(w, id, "moving", "goes on, after no step"), 1);
    /* told, not killed */
    must(saves(w, &a, 6, FINISHED, NULL));
    expect_job(w, id, "completed", NULL);
    assert_int_equal(events(w, id, "stalled", NULL), 1);
}

static void time_without_a_server_is_no_stall(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    step_by_step(w, &a, 3);
    world_close(w); /* an hour, and another clock */
    world_open(w);
    w->now += 3600000;
    w->mono = 1000;
    must(lease_listening(w->st, w->mono, &w->err));
    quiet(w, &a, 28000);
    assert_int_equal(events(w, id, "stalled", NULL), 0);
    quiet(w, &a, 4000);
    assert_int_equal(events(w, id, "stalled", NULL), 1);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_steps_are_no_stall),
        cmocka_unit_test(ten_usual_steps_without_one_are_a_stall),
        cmocka_unit_test(fast_steps_are_given_half_a_minute),
        cmocka_unit_test(loads_and_saves_take_what_they_take),
        TEST(a_stall_is_told_with_its_time_and_so_is_its_end),
        TEST(time_without_a_server_is_no_stall),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
