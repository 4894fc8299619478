/* What becomes of a cycle whose lease ends badly: pauses, budgets, evidence. */
#include "server_fixture.h"

static int64_t budget(struct world *w, int64_t id, const char *name)
{
    AUTO_JSON json_t *j = job(w, id);
    return int_of(json_object_get(j, "budgets"), name);
}

static void die_of(struct world *w, struct worker *k, const struct death *how)
{
    struct death d = *how;
    d.pid = 100;
    d.start_ticks = k->claims;
    death_judge(&d);
    assert_int_equal(lease_died(w->st, &d, "b", w->now, &w->err), 1);
}

static const struct death killed = {
    .kind = DEATH_SIGNAL, .signal = 9, .code = -1};

/* How long from now until the job can be claimed, in ms; claims it. */
static int64_t pause_before(struct world *w, struct worker *k)
{
    int64_t from = w->now;
    while (claims(w, k) == 0) {
        w->now += 50;
        assert_true(w->now - from < 100000);
    }
    return w->now - from;
}

static void pauses_double_to_a_minute_and_progress_ends_them(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, "{\"limits\": {\"lost\": 99, \"no_progress\": 99,"
                           " \"failures\": 99}}");
    int64_t expected[] = {0,     1000,  2000,  4000, 8000,
                          16000, 32000, 60000, 60000};
    for (int what = 0; what < 2; what++) { /* deaths, then failures */
        assert_int_equal(claims(w, &a), 1);
        for (size_t i = 0; i < sizeof(expected) / sizeof(*expected); i++) {
            if (what)
                must(releases(w, &a, FAILED("torch", "false")));
            else
                die_of(w, &a, &killed);
            int64_t pause = pause_before(w, &a);
            assert_in_range(pause, expected[i], expected[i] * 5 / 4 + 50);
        }
        assert_int_equal(budget(w, id, what ? "failures" : "lost"), 9);
        /* a step that is saved ends it */
        must(saves(w, &a, 2 * what + 1, NULL, NULL));
        assert_int_equal(budget(w, id, what ? "failures" : "lost"), 0);
        die_of(w, &a, &killed);
        assert_int_equal(pause_before(w, &a), 0);
        must(saves(w, &a, 2 * what + 2, YIELD_STEPS, NULL));
    }
}

static void jobs_that_fall_together_do_not_rise_together(void **state)
{
    struct world *w = *state;
    enum { N = 12 };
    struct worker k[N] = {0};
    char names[N][8];
    int64_t first = 0, last = 0;
    put_records(w);
    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof(names[i]), "w%d", i);
        k[i].name = names[i];
        submit(w, NULL);
    }
    for (int fall = 0; fall < 5; fall++) {
        w->now += 100000;
        for (int i = 0; i < N; i++)
            assert_int_equal(claims(w, &k[i]), 1);
        for (int i = 0; i < N; i++) /* at the same moment */
            if (fall < 4)
                must(
                    releases(w, &k[i],
                             "{\"outcome\": \"failed\", \"error\":"
                             " {\"code\": \"corrupt\", \"detail\": \"net\"}}"));
        if (fall == 1)
            break;
    }
    int64_t from = w->now;
    for (int risen = 0; risen < N;) {
        CLEANUP(worker_drop) struct worker x = {.name = "x"};
        x.claims = risen;
        if (claims(w, &x) == 1) {
            first = risen ? first : w->now - from;
            last = w->now - from;
            risen++;
        } else {
            w->now++;
        }
    }
    assert_in_range(first, 1000, 1250);
    assert_in_range(last, first + 50, 1250); /* spread over the quarter */
    for (int i = 0; i < N; i++)
        worker_drop(&k[i]);
}

static void the_budgets_are_three(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, "{\"limits\": {\"lost\": 3, \"failures\": 3,"
                           " \"no_progress\": 9}}");
    for (int i = 1; i <= 2; i++) {
        w->now += 100000;
        assert_int_equal(claims(w, &a), 1);
        a.step = 1;
        must(beats(w, &a, NULL, NULL));
        die_of(w, &a, &killed);
        w->now += 100000;
        assert_int_equal(claims(w, &a), 1);
        must(releases(w, &a, FAILED("torch", "false")));
        assert_int_equal(budget(w, id, "lost"), i);
        assert_int_equal(budget(w, id, "failures"), i);
    }
    /* the first got to step 1, three did not get beyond it */
    assert_int_equal(budget(w, id, "no_progress"), 3);
    w->now += 100000;
    assert_int_equal(claims(w, &a), 1);
    must(releases(w, &a, YIELD_STEPS)); /* free, but for progress */
    assert_int_equal(budget(w, id, "lost"), 2);
    assert_int_equal(budget(w, id, "failures"), 2);
    assert_int_equal(budget(w, id, "no_progress"), 4);
    assert_int_equal(claims(w, &a), 1);
    must(saves(w, &a, 1, NULL, NULL)); /* durable progress fills all three */
    assert_int_equal(budget(w, id, "lost"), 0);
    assert_int_equal(budget(w, id, "failures"), 0);
    assert_int_equal(budget(w, id, "no_progress"), 0);
    expect_job(w, id, "running", NULL);
}

/* The attempt is counted by its lease's row, made with the claim: whatever dies
 * after that, in whatever order. */
static void a_crash_at_any_point_counts(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, "{\"limits\": {\"lost\": 4}}");
    for (int i = 0; i < 4; i++) {
        expect_job(w, id, "queued", NULL);
        assert_int_equal(budget(w, id, "lost"), i);
        w->now += 100000;
        assert_int_equal(claims(w, &a), 1);
        if (i > 1)
            must(beats(w, &a, NULL, NULL));
        if (i % 2) { /* the server dies first */
            world_close(w);
            world_open(w);
            w->mono = 1000 * i;
            must(lease_listening(w->st, w->mono, &w->err));
            if (i == 1) { /* its worker died as well, unseen */
                w->mono += 31000;
                must(lease_tick(w->st, w->now, w->mono, &w->err));
                continue;
            }
        }
        die_of(w, &a, &killed);
    }
    expect_job(w, id, "failed", "4 workers were lost without a new checkpoint");
}

static void what_the_dead_left_is_in_the_error(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, "{\"limits\": {\"lost\": 7, \"no_progress\": 99}}");
    struct death oom = {.kind = DEATH_SIGNAL,
                        .signal = 9,
                        .code = -1,
                        .oom_confirmed = true,
                        .evidence = "Killed process 100 (pawl-worker)"};
    struct death crash = {.kind = DEATH_SIGNAL,
                          .signal = 11,
                          .code = -1,
                          .last_lines = "one\nterminate called"};
    for (int i = 0; i < 7; i++) {
        char more[400];
        w->now += 100000;
        assert_int_equal(claims(w, &a), 1);
        a.step = 3;
        snprintf(more, sizeof(more),
                 "\"logs\": [{\"at_ms\": %d, \"level\": \"info\", \"text\":"
                 " \"before %d\"}, {\"at_ms\": %d, \"level\": \"error\","
                 " \"text\": \"oh %d\"}], \"memory\": [{\"step\": 3,"
                 " \"at_ms\": 1700000000001, \"rss_bytes\": %d}]",
                 1000 + i, i, 2000 + i, i, 1000000 * (i + 1));
        must(beats(w, &a, more, NULL));
        die_of(w, &a, i % 2 ? &crash : &oom);
    }
    expect_job(w, id, "failed", "it kills its workers");
    AUTO_JSON json_t *j = job(w, id);
    const json_t *error = json_object_get(j, "error");
    assert_string_equal(str_of(error, "code"), "lost");
    const json_t *all = json_object_get(error, "evidence");
    assert_int_equal(json_array_size(all), 5); /* the last ones */
    const json_t *last = json_array_get(all, 0);
    const json_t *before = json_array_get(all, 1);
    assert_string_equal(str_of(last, "worker"), "a");
    assert_int_equal(int_of(last, "step"), 3);
    const json_t *death = json_object_get(last, "death");
    assert_int_equal(int_of(death, "signal"), 9);
    assert_true(json_is_true(json_object_get(death, "out_of_memory")));
    assert_string_equal(str_of(death, "kernel"),
                        "Killed process 100 (pawl-worker)");
    death = json_object_get(before, "death");
    assert_int_equal(int_of(death, "signal"), 11);
    assert_null(json_object_get(death, "out_of_memory"));
    assert_string_equal(json_string_value(json_array_get(
                            json_object_get(death, "last_lines"), 1)),
                        "terminate called");
    const json_t *log = json_object_get(last, "log");
    assert_int_equal(json_array_size(log), 2);
    assert_string_equal(str_of(json_array_get(log, 1), "text"), "oh 6");
    const json_t *memory = json_object_get(last, "memory");
    assert_int_equal(json_array_size(memory), 1);
    assert_int_equal(int_of(json_array_get(memory, 0), "rss_bytes"), 7000000);
}

static void a_paused_jobs_worker_comes_back_to_save(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    AUTO_JSON json_t *answer = NULL;
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    w->mono += 31000;
    assert_int_equal(lease_tick(w->st, w->now, w->mono, &w->err), 1);
    must(job_pause(w->st, id, w->now, &w->err));
    expect_job(w, id, "paused", NULL);
    a.step = 2;
    must(beats(w, &a, NULL, &answer));
    assert_string_equal(str_of(answer, "do"), "yield");
    assert_string_equal(str_of(answer, "reason"), "pause");
    must(saves(w, &a, 2, "{\"outcome\": \"yielded\", \"reason\": \"pause\"}",
               NULL));
    expect_job(w, id, "paused", "at step 2");
    assert_int_equal(claims(w, &a), 0);
}

static void a_canceled_jobs_worker_does_not(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    w->mono += 31000;
    assert_int_equal(lease_tick(w->st, w->now, w->mono, &w->err), 1);
    must(job_cancel(w->st, id, w->now, &w->err));
    assert_int_equal(beats(w, &a, NULL, NULL), ERR_STALE);
    expect_job(w, id, "canceled", NULL);
}

static void the_dead_claim_nothing(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    assert_int_equal(claims(w, &a), 0); /* it waits, and is killed */
    struct death d = killed;
    d.pid = 100;
    d.start_ticks = a.claims;
    death_judge(&d);
    assert_int_equal(lease_died(w->st, &d, "b", w->now, &w->err), 0);
    int64_t id = submit(w, NULL);
    assert_int_equal(worker_claims(w, &a), ERR_STALE);
    expect_job(w, id, "queued", "waits for a worker");
    assert_int_equal(claims(w, &a), 1);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(pauses_double_to_a_minute_and_progress_ends_them),
        TEST(jobs_that_fall_together_do_not_rise_together),
        TEST(the_budgets_are_three),
        TEST(a_crash_at_any_point_counts),
        TEST(what_the_dead_left_is_in_the_error),
        TEST(a_paused_jobs_worker_comes_back_to_save),
        TEST(a_canceled_jobs_worker_does_not),
        TEST(the_dead_claim_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
