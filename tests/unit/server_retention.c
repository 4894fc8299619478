/* Which checkpoints stay, and that letting go of the others is cheap. */
#include <time.h>
#include "server_fixture.h"

/* Ids of a job's checkpoints by step, 0 for those that are gone. */
static int64_t at_step(struct world *w, int64_t job, int64_t step)
{
    AUTO_JSON json_t *page = NULL;
    must(checkpoint_list(w->st, job, 0, 1000, &page, &w->err));
    size_t i;
    json_t *c;
    json_array_foreach(json_object_get(page, "items"), i, c)
    {
        if (int_of(c, "step") == step)
            return int_of(c, "id");
    }
    return 0;
}

/* Steps and why they stay, "1:best 4:latest 5:latest,lease". */
static char *kept(struct world *w, int64_t job)
{
    AUTO_JSON json_t *page = NULL;
    CLEANUP(buf_release) struct buf out = {0};
    must(checkpoint_list(w->st, job, 0, 1000, &page, &w->err));
    size_t i, k;
    json_t *c, *word;
    json_array_foreach(json_object_get(page, "items"), i, c)
    {
        buf_addf(&out, "%s%d:", i ? " " : "", (int)int_of(c, "step"));
        json_array_foreach(json_object_get(c, "kept"), k, word)
        {
            buf_addf(&out, "%s%s", k ? "," : "", json_string_value(word));
        }
    }
    buf_add(&out, "", 1);
    char *s = out.data;
    out = (struct buf){0};
    return s;
}

#define expect_kept(job, want)                                                 \
    do {                                                                       \
        AUTO_FREE char *is_ = kept(w, job);                                    \
        assert_string_equal(is_, want);                                        \
    } while (0)

static void patches(struct world *w, int64_t job, const char *runtime)
{
    AUTO_JSON json_t *patch = json_fmt("{\"runtime\": %s}", runtime);
    must(job_patch(w->st, job, patch, w->now, &w->err));
}

/* Saves at steps 1 … n and reports the losses before or after. */
static void saves_all(struct world *w, struct worker *a, const double *loss,
                      int from, int to)
{
    for (int i = from; i <= to; i++) {
        a->step = i;
        char metrics[80];
        snprintf(metrics, sizeof(metrics),
                 "\"metrics\": [[%d, {\"loss\": %g}]]", i, loss[i]);
        must(beats(w, a, metrics, NULL));
        must(saves(w, a, i, NULL, NULL));
    }
}

static const double losses[] = {0, 0.5, 0.1, 0.4, 0.3, 0.2, 0.6};

static void the_newest_k_stay_at_least_two(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL);
    patches(w, id, "{\"keep\": 4}");
    assert_int_equal(claims(w, &a), 1);
    saves_all(w, &a, losses, 1, 6);
    assert_int_equal(prunes(w), 2);
    expect_kept(id, "3:latest 4:latest 5:latest 6:latest");
    assert_int_equal(events(w, id, "pruned", "steps 1 and 2"), 1);
    assert_int_equal(events(w, id, "pruned", "the newest 4"), 1);
    patches(w, id, "{\"keep\": null}");
    assert_int_equal(prunes(w), 2);
    expect_kept(id, "5:latest 6:latest");
    AUTO_JSON json_t *one = json_of("{\"runtime\": {\"keep\": 1}}");
    assert_int_equal(job_patch(w->st, id, one, w->now, &w->err), ERR_INVALID);
    assert_string_equal(w->err.pointer, "/runtime/keep");
}

static void the_best_by_a_series_stay(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL);
    patches(w, id, "{\"keep_best\": {\"series\": \"loss\", \"count\": 2}}");
    assert_int_equal(claims(w, &a), 1);
    saves_all(w, &a, losses, 1, 6);
    assert_int_equal(prunes(w), 3);
    expect_kept(id, "2:best 5:latest,best 6:latest");
    assert_int_equal(events(w, id, "pruned", "the least 2 by loss"), 1);
    /* the other end of the same series, and what is gone is gone */
    patches(w, id,
            "{\"keep_best\": {\"series\": \"loss\", \"order\": \"max\","
            " \"count\": 1}}");
    assert_int_equal(prunes(w), 1);
    expect_kept(id, "5:latest 6:latest,best");
    /* a series that nobody reports keeps nothing */
    patches(w, id, "{\"keep_best\": {\"series\": \"accuracy\"}}");
    expect_kept(id, "5:latest 6:latest");
}

/* A value that is reported every few steps counts until the next one. */
static void
the_last_value_before_a_step_counts_and_of_equals_the_newer(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL);
    patches(w, id, "{\"keep_best\": {\"series\": \"loss\", \"count\": 1}}");
    assert_int_equal(claims(w, &a), 1);
    static const char *const reported[] = {
        NULL,
        "\"metrics\": [[1, {\"loss\": 3}]]",
        "\"metrics\": [[2, {\"loss\": 1}]]",
        NULL,
        "\"metrics\": [[4, {\"loss\": 2}]]",
        "\"metrics\": [[5, {\"loss\": null}]]",
        NULL};
    for (int i = 1; i <= 6; i++) {
        a.step = i;
        must(beats(w, &a, reported[i], NULL));
        must(saves(w, &a, i, NULL, NULL));
    }
    must(prunes(w));
    expect_kept(id, "3:best 5:latest 6:latest");
}

static void what_is_not_judged_yet_stays_until_it_is(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL);
    patches(w, id, "{\"keep_best\": {\"series\": \"loss\", \"count\": 1}}");
    assert_int_equal(claims(w, &a), 1);
    for (int i = 1; i <= 5; i++) /* before it reports on any step */
        must(saves(w, &a, i, NULL, NULL));
    assert_int_equal(prunes(w), 0);
    expect_kept(id, "1:unjudged 2:unjudged 3:unjudged 4:latest,unjudged"
                    " 5:latest,unjudged");
    must(beats(w, &a,
               "\"metrics\": [[1, {\"loss\": 5}], [2, {\"loss\": 1}], [3,"
               " {\"loss\": 2}], [4, {\"loss\": 3}], [5, {\"loss\": 4}]]",
               NULL));
    assert_int_equal(prunes(w), 2);
    expect_kept(id, "2:best 4:latest 5:latest");
}

static void a_pinned_one_stays_until_it_is_unpinned(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    saves_all(w, &a, losses, 1, 1);
    int64_t first = at_step(w, id, 1);
    must(retention_pin(w->st, first, true, w->now, &w->err));
    must(retention_pin(w->st, first, true, w->now, &w->err));
    assert_int_equal(events(w, id, "pinned", "step 1"), 1);
    saves_all(w, &a, losses, 2, 6);
    must(prunes(w));
    expect_kept(id, "1:pinned 5:latest 6:latest");
    assert_int_equal(retention_delete(w->st, first, w->now, &w->err),
                     ERR_CONFLICT);
    assert_non_null(strstr(w->err.text, "pinned"));
    must(retention_pin(w->st, first, false, w->now, &w->err));
    assert_int_equal(events(w, id, "unpinned", "step 1"), 1);
    assert_int_equal(prunes(w), 1);
    expect_kept(id, "5:latest 6:latest");
    assert_int_equal(retention_pin(w->st, first, true, w->now, &w->err),
                     ERR_NOT_FOUND);
}

static void the_policy_of_a_finished_job_can_change(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL);
    patches(w, id, "{\"keep\": 5}");
    assert_int_equal(claims(w, &a), 1);
    saves_all(w, &a, losses, 1, 5);
    must(saves(w, &a, 6, FINISHED, NULL));
    expect_job(w, id, "completed", NULL);
    assert_int_equal(prunes(w), 1);
    expect_kept(id, "2:latest 3:latest 4:latest 5:latest 6:latest,model");
    patches(w, id, "{\"keep\": 2, \"keep_best\": {\"series\": \"loss\"}}");
    assert_int_equal(prunes(w), 2);
    expect_kept(id, "2:best 5:latest 6:latest,model");
    patches(w, id, "{\"keep_best\": null}");
    assert_int_equal(prunes(w), 1);
    int64_t model = at_step(w, id, 6);
    assert_int_equal(retention_delete(w->st, model, w->now, &w->err),
                     ERR_CONFLICT);
    assert_non_null(strstr(w->err.text, "model of cycle 1"));
    must(retention_delete(w->st, at_step(w, id, 5), w->now, &w->err));
    expect_kept(id, "6:latest,model");
}

static void the_last_state_to_go_on_from_cannot_be_removed(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    saves_all(w, &a, losses, 1, 1);
    must(saves(w, &a, 2, YIELD_STEPS, NULL));
    int64_t one = at_step(w, id, 1), two = at_step(w, id, 2);
    /* being loaded: not now; trained on from: the other one would do */
    a.claims++;
    assert_int_equal(worker_claims(w, &a), 1);
    assert_int_equal(retention_delete(w->st, two, w->now, &w->err),
                     ERR_CONFLICT);
    assert_non_null(strstr(w->err.text, "is loading"));
    a.step = 2;
    must(beats(w, &a, NULL, NULL));
    must(retention_delete(w->st, two, w->now, &w->err));
    assert_int_equal(events(w, id, "deleted", "step 2"), 1);
    assert_int_equal(retention_delete(w->st, one, w->now, &w->err),
                     ERR_CONFLICT);
    assert_non_null(strstr(w->err.text, "the only one"));
    /* a failed job may be retried */
    must(releases(w, &a, FAILED("data", "true")));
    expect_job(w, id, "failed", NULL);
    assert_int_equal(retention_delete(w->st, one, w->now, &w->err),
                     ERR_CONFLICT);
    expect_kept(id, "1:latest");
    assert_int_equal(retention_delete(w->st, 99, w->now, &w->err),
                     ERR_NOT_FOUND);
}

static void each_model_of_a_job_of_many_cycles_stays(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, "{\"cycles\": 3}");
    for (int cycle = 1; cycle <= 3; cycle++) {
        assert_int_equal(claims(w, &a), 1);
        for (int i = 1; i <= 5; i++)
            must(saves(w, &a, i, NULL, NULL));
        must(saves(w, &a, 6, FINISHED, NULL));
        must(prunes(w));
    }
    expect_kept(id, "6:model 6:model 5:latest 6:latest,model");
}

static void
one_that_is_set_aside_stays_as_evidence_and_two_good_ones_besides(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    saves_all(w, &a, losses, 1, 4);
    assert_int_equal(checkpoint_set_aside(w->st, at_step(w, id, 4), "server",
                                          "chunk 1 of 1 is damaged", w->now,
                                          &w->err),
                     1);
    assert_int_equal(checkpoint_set_aside(w->st, at_step(w, id, 4), "server",
                                          "again", w->now, &w->err),
                     0);
    assert_int_equal(events(w, id, "quarantined", "chunk 1 of 1"), 1);
    must(prunes(w));
    expect_kept(id, "2:latest 3:latest 4:evidence");
}

/* ---- what it costs ---- */

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int marked(struct world *w)
{
    char cmd[160];
    snprintf(cmd, sizeof(cmd),
             "sqlite3 %s/pawl.db 'SELECT count(*) FROM prunable'", w->dir);
    FILE *f = popen(cmd, "r");
    int n = -1;
    assert_int_equal(fscanf(f, "%d", &n), 1);
    pclose(f);
    return n;
}

/* 20,000 jobs with two checkpoints each: as long as none of them changes,
 * nothing is read. */
static void jobs_without_news_cost_nothing(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    saves_all(w, &a, losses, 1, 2);
    char cmd[2400];
    snprintf(
        cmd, sizeof(cmd),
        "sqlite3 %s/pawl.db \"WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL"
        " SELECT i + 1 FROM n WHERE i < 20001) INSERT INTO jobs(id, name, kind,"
        " state, spec, signature, dataset, cycles, parameters, priority,"
        " labels, runtime, created_ms) SELECT i, name, kind, 'queued', spec,"
        " signature, dataset, cycles, parameters, priority, labels, runtime,"
        " created_ms FROM jobs, n WHERE id = 1;"
        " WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE"
        " i < 20001) INSERT INTO cycles(id, job_id, number, state, priority,"
        " created_ms) SELECT i, i, 1, 'waiting', 0, 0 FROM n;"
        " INSERT INTO checkpoints(job_id, cycle_id, lease_id, state, step,"
        " epoch, digest, manifest, bytes, model_bytes, model_sha256,"
        " fingerprint, created_ms) SELECT j.id, j.id, 1, 'good', k.step,"
        " k.epoch, k.digest, k.manifest, k.bytes, k.model_bytes,"
        " k.model_sha256, k.fingerprint, 0 FROM jobs j, checkpoints k"
        " WHERE j.id > 1 AND k.job_id = 1\"",
        w->dir);
    assert_int_equal(system(cmd), 0);
    assert_int_equal(marked(w), 20001);
    int64_t after = 0;
    int calls = 0;
    do { /* all of them once, a few at a time */
        assert_int_equal(retention_prune(w->st, &after, w->now, &w->err), 0);
        calls++;
    } while (after);
    assert_true(calls > 100);
    assert_int_equal(marked(w), 0);

    double t = seconds();
    for (int i = 0; i < 1000; i++)
        assert_int_equal(prunes(w), 0);
    double each = (seconds() - t) / 1000;
    print_message("# %.1f µs without news\n", each * 1e6);
    assert_true(each < 0.001);

    saves_all(w, &a, losses, 3, 3);
    assert_int_equal(marked(w), 1);
    assert_int_equal(prunes(w), 1);
    assert_int_equal(marked(w), 0);
    expect_kept(id, "2:latest 3:latest");
}

static void many_at_once_go_a_few_at_a_time(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id =
        submit(w, "{\"training\": {\"epochs\": 50, \"effective_batch\":"
                  " 4, \"optimizer\": {\"type\": \"adamw\", \"lr\":"
                  " 0.001}}}");
    patches(w, id, "{\"keep\": 10000}");
    assert_int_equal(claims(w, &a), 1);
    for (int i = 1; i <= 150; i++)
        must(saves(w, &a, i, NULL, NULL));
    assert_int_equal(prunes(w), 0);
    patches(w, id, "{\"keep\": 2}");
    int total = 0, n;
    for (int calls = 0; (n = prunes(w)) > 0; calls++) {
        assert_true(n <= 64 && calls < 3);
        total += n;
    }
    assert_int_equal(total, 148);
    expect_kept(id, "149:latest 150:latest");
    assert_int_equal(events(w, id, "pruned", "and 57 more"), 2);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(the_newest_k_stay_at_least_two),
        TEST(the_best_by_a_series_stay),
        TEST(the_last_value_before_a_step_counts_and_of_equals_the_newer),
        TEST(what_is_not_judged_yet_stays_until_it_is),
        TEST(a_pinned_one_stays_until_it_is_unpinned),
        TEST(the_policy_of_a_finished_job_can_change),
        TEST(the_last_state_to_go_on_from_cannot_be_removed),
        TEST(each_model_of_a_job_of_many_cycles_stays),
        TEST(one_that_is_set_aside_stays_as_evidence_and_two_good_ones_besides),
        TEST(jobs_without_news_cost_nothing),
        TEST(many_at_once_go_a_few_at_a_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
