/* Who may train which cycle, until when. */
#include "server_fixture.h"

static void a_claim_gets_all_that_a_worker_needs(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.job, id);
    assert_int_equal(a.token, 1);
    assert_int_equal(int_of(a.claim, "steps"), 6);
    assert_int_equal(int_of(a.claim, "records"), 24);
    assert_string_equal(str_of(a.claim, "device"), "cpu");
    const json_t *f = json_object_get(a.claim, "fingerprint");
    assert_string_equal(str_of(f, "libtorch"), "1");
    assert_int_equal(int_of(f, "threads"), 1);
    assert_int_equal(int_of(f, "micro_batch"), 2);
    const json_t *shard = json_array_get(
        json_object_get(json_object_get(a.claim, "data"), "shards"), 0);
    assert_int_equal(access(str_of(shard, "path"), R_OK), 0);
    expect_job(w, id, "running", NULL);
}

static void a_repeated_claim_gets_the_same_lease(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    submit(w, NULL);
    submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    AUTO_JSON json_t *first = json_incref(a.claim);
    assert_int_equal(worker_claims(w, &a), 1);
    assert_true(json_equal(first, a.claim));
    assert_int_equal(releases(w, &a, YIELD_STEPS), 0);
    assert_int_equal(worker_claims(w, &a), ERR_STALE);
}

static void priority_then_who_yielded_then_age_is_claimed(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"}, b = {.name = "b"};
    CLEANUP(worker_drop) struct worker c = {.name = "c"};
    put_records(w);
    int64_t old = submit(w, NULL), young = submit(w, NULL);
    int64_t urgent = submit(w, "{\"priority\": 5}");
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.job, urgent);
    assert_int_equal(claims(w, &b), 1);
    assert_int_equal(b.job, old);
    assert_int_equal(claims(w, &c), 1);
    assert_int_equal(c.job, young);
    must(saves(w, &c, 1, YIELD_STEPS, NULL)); /* the youngest yields */
    must(releases(w, &b, FAILED("torch", "false")));
    must(releases(w, &a, FAILED("data", "true")));
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.job, young);
    assert_int_equal(claims(w, &b), 1);
    assert_int_equal(b.job, old);
    assert_int_equal(claims(w, &c), 0);
}

static void a_changed_priority_counts_at_the_next_claim(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    AUTO_JSON json_t *urgent = json_of("{\"priority\": 3}");
    put_records(w);
    for (int i = 0; i < 9; i++)
        submit(w, NULL);
    int64_t last = submit(w, NULL);
    must(job_patch(w->st, last, urgent, w->now, &w->err));
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.job, last);
}

static void one_that_fits_is_found_behind_many_that_do_not(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    AUTO_JSON json_t *runtime =
        json_of("{\"runtime\": {\"device\": \"cuda\"}}");
    for (int i = 0; i < 9; i++) {
        int64_t id = submit(w, NULL);
        must(job_patch(w->st, id, runtime, w->now, &w->err));
    }
    int64_t fits = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.job, fits);
    assert_int_equal(releases(w, &a, FAILED("data", "true")), 0);
    assert_int_equal(claims(w, &a), 0);
}

static void a_yield_goes_on_where_it_saved_and_a_finish_completes(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    must(saves(w, &a, 2, YIELD_STEPS, NULL));
    expect_job(w, id, "queued", "yielded at step 2 (steps)");
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.step, 2);
    assert_int_equal(a.token, 2);
    must(saves(w, &a, 6, FINISHED, NULL));
    AUTO_JSON json_t *j = job(w, id);
    assert_string_equal(str_of(j, "state"), "completed");
    assert_int_equal(strlen(str_of(j, "model_sha256")), 64);
    assert_string_equal(str_of(json_object_get(j, "exact"), "tier"), "bit");
    assert_false(json_is_null(json_object_get(j, "ended_at")));
}

static void finishing_needs_the_last_step_and_the_right_model(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(releases(w, &a, FINISHED), ERR_CONFLICT);
    assert_int_equal(saves(w, &a, 5, FINISHED, NULL), ERR_CONFLICT);
    a.step = 6;
    AUTO_JSON json_t *m = manifest_at(w, &a, 6);
    json_object_set_new(m, "model_sha256",
                        json_string("ba7816bf8f01cfea414140de5dae2223b00361a396"
                                    "177a9cb410ff61f20015ad"));
    assert_int_equal(posts(w, &a, m, FINISHED, NULL), ERR_INVALID);
    assert_string_equal(w->err.pointer, "/manifest/model_sha256");
    expect_job(w, id, "running", NULL);
}

static void a_foreign_state_is_refused(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    a.step = 1;
    AUTO_JSON json_t *m = manifest_at(w, &a, 1);
    AUTO_JSON json_t *other = json_deep_copy(m);
    json_object_set(other, "signature", json_object_get(m, "model_sha256"));
    assert_int_equal(posts(w, &a, other, NULL, NULL), ERR_CONFLICT);
    assert_string_equal(w->err.pointer, "/manifest/signature");
    json_object_set(m, "previous", json_object_get(m, "signature"));
    assert_int_equal(posts(w, &a, m, NULL, NULL), ERR_CONFLICT);
    assert_string_equal(w->err.pointer, "/manifest/previous");
    json_object_set_new(m, "previous", json_null());
    json_array_set(json_object_get(m, "chunks"), 0,
                   json_object_get(m, "signature"));
    assert_int_equal(posts(w, &a, m, NULL, NULL), ERR_CONFLICT);
    assert_string_equal(w->err.pointer, "/manifest/chunks/0");
}

static void a_late_worker_is_refused_and_changes_nothing(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"}, b = {.name = "b"};
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    must(saves(w, &a, 1, NULL, NULL));
    a.step = 3;
    AUTO_JSON json_t *late = manifest_at(w, &a, 3);
    w->now += 31000;
    w->mono += 31000;
    assert_int_equal(claims(w, &b), 1); /* a's silence ends its lease */
    assert_int_equal(b.job, id);
    assert_int_equal(b.step, 1);
    must(saves(w, &b, 2, NULL, NULL));

    AUTO_FREE char *before = dump(w);
    assert_int_equal(beats(w, &a, NULL, NULL), ERR_STALE);
    assert_int_equal(posts(w, &a, late, NULL, NULL), ERR_STALE);
    assert_int_equal(posts(w, &a, late, YIELD_STEPS, NULL), ERR_STALE);
    assert_int_equal(releases(w, &a, YIELD_STEPS), ERR_STALE);
    assert_int_equal(releases(w, &a, FAILED("data", "true")), ERR_STALE);
    a.token = b.token; /* nor by guessing */
    assert_int_equal(beats(w, &a, NULL, NULL), ERR_STALE);
    b.token--;
    assert_int_equal(beats(w, &b, NULL, NULL), ERR_STALE);
    AUTO_FREE char *after = dump(w);
    assert_string_equal(before, after);
    assert_int_equal(job_step(w, id), 1);
}

static void what_is_sent_twice_gets_the_first_answer(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL), first = 0, second = 0;
    assert_int_equal(claims(w, &a), 1);
    a.step = 2;
    AUTO_JSON json_t *m = manifest_at(w, &a, 2);
    must(posts(w, &a, m, NULL, &first));
    must(posts(w, &a, m, NULL, &second));
    assert_int_equal(first, second);
    /* the same state, now with the release: no second checkpoint */
    must(posts(w, &a, m, YIELD_STEPS, &second));
    assert_int_equal(first, second);
    AUTO_FREE char *before = dump(w);
    must(posts(w, &a, m, YIELD_STEPS, &second));
    assert_int_equal(first, second);
    must(releases(w, &a, YIELD_STEPS));
    AUTO_FREE char *after = dump(w);
    assert_string_equal(before, after);
    assert_int_equal(releases(w, &a, FAILED("torch", "false")), ERR_STALE);
    assert_int_equal(events(w, id, "yielded", NULL), 1);
}

static void a_heartbeat_sent_twice_counts_once(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    a.step = 1;
    static const char more[] =
        "\"metrics\": [[1, {\"loss\": 0.5}]], \"logs\": [{\"at_ms\": 5,"
        " \"level\": \"info\", \"text\": \"hi\"}]";
    must(beats(w, &a, more, NULL));
    a.seq--;
    must(beats(w, &a, more, NULL)); /* the same one */
    must(beats(w, &a, more, NULL)); /* its answer was lost: sent anew */
    AUTO_JSON json_t *logs = NULL;
    must(log_list(w->st, id, 0, 10, &logs, &w->err));
    assert_int_equal(json_array_size(json_object_get(logs, "items")), 1);
    CLEANUP(buf_release) struct buf csv = {0};
    must(metric_csv(w->st, id, 0, NULL, &(struct csv_at){0}, &csv, &w->err));
    assert_string_equal(csv.data, "cycle,step,series,value\n1,1,loss,0.5\n");
}

static void only_silence_of_this_run_counts(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    world_close(w); /* the server is away for an hour, the machine restarts */
    world_open(w);
    w->now += 3600000;
    w->mono = 1000;
    must(lease_listening(w->st, w->mono, &w->err));
    assert_int_equal(lease_tick(w->st, w->now, w->mono, &w->err), 0);
    w->mono += 29000;
    assert_int_equal(lease_tick(w->st, w->now, w->mono, &w->err), 0);
    must(beats(w, &a, NULL, NULL));
    w->now += 7200000; /* the wall clock jumps: nobody is lost for that */
    w->mono += 29000;
    assert_int_equal(lease_tick(w->st, w->now, w->mono, &w->err), 0);
    w->mono += 2000;
    assert_int_equal(lease_tick(w->st, w->now, w->mono, &w->err), 1);
    expect_job(w, id, "queued", "worker lost: worker a was not heard of");
}

static void a_worker_that_comes_back_first_keeps_its_cycle(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    a.step = 2;
    must(beats(w, &a, NULL, NULL));
    w->mono += 31000;
    assert_int_equal(lease_tick(w->st, w->now, w->mono, &w->err), 1);
    expect_job(w, id, "queued", "worker lost");
    a.step = 4;
    must(beats(w, &a, NULL, NULL));
    expect_job(w, id, "running", NULL);
    AUTO_JSON json_t *j = job(w, id);
    assert_int_equal(int_of(json_object_get(j, "budgets"), "lost"), 0);
    must(saves(w, &a, 6, FINISHED, NULL));
    expect_job(w, id, "completed", NULL);
}

static void a_dead_worker_is_lost_at_once_and_says_how(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a", .pid = 77};
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    must(saves(w, &a, 2, NULL, NULL));
    a.step = 4;
    must(beats(w, &a, NULL, NULL));
    assert_int_equal(
        lease_worker_died(w->st, 78, 1, "b", "left", NULL, w->now, &w->err), 0);
    assert_int_equal(lease_worker_died(w->st, 77, 1, "b",
                                       "was killed by signal 9, cause unknown",
                                       NULL, w->now, &w->err),
                     1);
    expect_job(w, id, "queued",
               "was killed by signal 9, cause unknown at "
               "step 4; waits for a worker to go on at "
               "step 2");
    assert_int_equal(job_step(w, id), 2);
    assert_int_equal(beats(w, &a, NULL, NULL), ERR_STALE); /* no ghost */
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.step, 2);
}

static void die(struct world *w, struct worker *k)
{
    assert_int_equal(lease_worker_died(w->st, 100, k->claims, "b", "died",
                                       "kernel: out of memory", w->now,
                                       &w->err),
                     1);
}

static void a_job_that_kills_its_workers_fails(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, "{\"limits\": {\"lost\": 3}}");
    int64_t other = submit(w, NULL);
    for (int i = 0; i < 3; i++) {
        w->now += 120000; /* back-off is over */
        must(lease_tick(w->st, w->now, w->mono, &w->err));
        assert_int_equal(claims(w, &a), 1);
        assert_int_equal(a.job, id);
        a.step = 3;
        must(beats(w, &a, NULL, NULL));
        die(w, &a);
    }
    expect_job(w, id, "failed", "kills its workers");
    AUTO_JSON json_t *j = job(w, id);
    const json_t *left =
        json_object_get(json_object_get(j, "error"), "evidence");
    assert_int_equal(json_array_size(left), 3);
    const json_t *last = json_array_get(left, 0);
    assert_string_equal(str_of(json_object_get(last, "death"), "kernel"),
                        "kernel: out of memory");
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.job, other);
}

static void fifty_yields_with_progress_cost_nothing(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, "{\"training\": {\"effective_batch\": 4,"
                           " \"epochs\": 9}}");
    for (int i = 1; i <= 50; i++) {
        assert_int_equal(claims(w, &a), 1);
        must(saves(w, &a, i, YIELD_STEPS, NULL));
    }
    expect_job(w, id, "queued", "yielded at step 50");
}

static void yields_without_progress_end_the_job(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, "{\"limits\": {\"no_progress\": 3}}");
    for (int i = 0; i < 3; i++) {
        expect_job(w, id, "queued", NULL);
        assert_int_equal(claims(w, &a), 1);
        must(releases(w, &a, YIELD_STEPS));
    }
    expect_job(w, id, "failed", "3 leases in a row got no further than step 0");
}

static void failures_back_off_and_progress_forgives_them(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    must(releases(w, &a, FAILED("torch", "false")));
    expect_job(w, id, "queued", "failed at step 0: it broke; tries again");
    assert_int_equal(claims(w, &a), 1); /* the first retry is immediate */
    must(releases(w, &a, FAILED("torch", "false")));
    expect_job(w, id, "queued", "after a pause");
    assert_int_equal(claims(w, &a), 0);
    w->now += 999;
    assert_int_equal(claims(w, &a), 0);
    w->now += 252; /* 1 s, and up to a quarter more */
    assert_int_equal(claims(w, &a), 1);
    must(saves(w, &a, 1, NULL, NULL)); /* progress */
    must(releases(w, &a, FAILED("torch", "false")));
    assert_int_equal(claims(w, &a), 1);
    must(releases(w, &a, FAILED("torch", "false")));
    w->now += 2000;
    assert_int_equal(claims(w, &a), 1);
    must(releases(w, &a, FAILED("torch", "false")));
    expect_job(w, id, "failed", "failed 3 times without progress");
}

static void errors_of_data_are_final_and_name_the_place(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    must(releases(w, &a,
                  "{\"outcome\": \"failed\", \"error\": {\"code\": \"data\","
                  " \"detail\": \"index 9 is beyond vocab 8\", \"final\": true,"
                  " \"shard\": \"a.jsonl\", \"line\": 3, \"offset\": 40,"
                  " \"field\": \"x\"}}"));
    expect_job(w, id, "failed",
               "shard a.jsonl, line 3, offset 40, field x: "
               "index 9 is beyond vocab 8");
    AUTO_JSON json_t *j = job(w, id);
    assert_int_equal(int_of(json_object_get(j, "error"), "line"), 3);
}

static void a_damaged_checkpoint_is_set_aside_for_the_one_before(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    int64_t first, second;
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    must(saves(w, &a, 2, NULL, &first));
    must(saves(w, &a, 4, YIELD_STEPS, &second));
    for (int64_t bad = second; bad >= first; bad--) {
        char text[256];
        assert_int_equal(claims(w, &a), 1);
        assert_int_equal(int_of(json_object_get(a.claim, "checkpoint"), "id"),
                         bad);
        snprintf(text, sizeof(text),
                 "{\"outcome\": \"failed\", \"error\": {\"code\": \"corrupt\","
                 " \"detail\": \"chunk 0 is damaged\", \"stage\": \"load\","
                 " \"checkpoint\": %d}}",
                 (int)bad);
        must(releases(w, &a, text));
        expect_job(w, id, "queued", "2 steps are repeated");
    }
    assert_int_equal(claims(w, &a), 1);
    assert_null(json_object_get(a.claim, "checkpoint"));
    assert_int_equal(a.step, 0);
    AUTO_JSON json_t *j = job(w, id);
    assert_int_equal(int_of(json_object_get(j, "budgets"), "failures"), 0);
    AUTO_JSON json_t *kept = NULL;
    must(checkpoint_get(w->st, second, &kept, &w->err));
    assert_string_equal(str_of(kept, "state"), "quarantined");
    assert_string_equal(str_of(kept, "reason"), "chunk 0 is damaged");
}

static void a_checkpoint_that_kills_its_loader_twice_is_set_aside(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    must(saves(w, &a, 2, NULL, NULL));
    must(saves(w, &a, 4, YIELD_STEPS, NULL));
    assert_int_equal(claims(w, &a), 1);
    die(w, &a);
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.step, 4);
    must(beats(w, &a, NULL, NULL)); /* it loaded this time */
    die(w, &a);
    for (int i = 0; i < 2; i++) {
        w->now += 120000;
        assert_int_equal(claims(w, &a), 1);
        assert_int_equal(a.step, 4);
        die(w, &a);
    }
    w->now += 120000;
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.step, 2);
    assert_int_equal(events(w, id, "quarantined", "died loading it"), 1);
}

static void
a_loader_that_was_only_silent_leaves_its_checkpoint_good(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    AUTO_JSON json_t *aside = NULL, *good = NULL;
    int64_t four = 0;
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    must(saves(w, &a, 2, NULL, NULL));
    must(saves(w, &a, 4, YIELD_STEPS, &four));
    assert_int_equal(claims(w, &a), 1);
    die(w, &a); /* one death while loading */
    assert_int_equal(claims(w, &a), 1);
    w->mono += 31000; /* and one more, as it seems */
    assert_int_equal(lease_tick(w->st, w->now, w->mono, &w->err), 1);
    must(checkpoint_get(w->st, four, &aside, &w->err));
    assert_string_equal(str_of(aside, "state"), "quarantined");
    expect_job(w, id, "queued", "at step 2");
    must(beats(w, &a, NULL, NULL)); /* but the machine only slept */
    must(checkpoint_get(w->st, four, &good, &w->err));
    assert_string_equal(str_of(good, "state"), "good");
    assert_true(json_is_null(json_object_get(good, "reason")));
    assert_int_equal(int_of(good, "load_deaths"), 0);
    must(releases(w, &a, YIELD_STEPS));
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.step, 4);
}

static void
who_was_lost_does_not_come_back_to_a_job_that_is_tried_again(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, "{\"limits\": {\"lost\": 1}}");
    assert_int_equal(claims(w, &a), 1);
    w->mono += 31000;
    assert_int_equal(lease_tick(w->st, w->now, w->mono, &w->err), 1);
    expect_job(w, id, "failed", "kills its workers");
    must(job_retry(w->st, id, w->now, &w->err));
    expect_job(w, id, "queued", NULL);
    /* its chunks are swept by now */
    assert_int_equal(beats(w, &a, NULL, NULL), ERR_STALE);
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.token, 3);
    must(saves(w, &a, 6, FINISHED, NULL));
}

static void a_checkpoint_removed_under_way_does_not_stop_the_next(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    int64_t four = 0;
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    must(saves(w, &a, 2, NULL, NULL));
    a.step = 4;
    AUTO_JSON json_t *late = manifest_at(w, &a, 4);
    must(posts(w, &a, late, NULL, &four));
    must(beats(w, &a, NULL, NULL));
    must(retention_delete(w->st, four, w->now, &w->err));
    a.step = 4;
    assert_int_equal(posts(w, &a, late, NULL, NULL), ERR_CONFLICT);
    must(saves(w, &a, 6, FINISHED, NULL));
    expect_job(w, id, "completed", NULL);
}

static void a_canceled_job_is_not_failed_on_the_way(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    int64_t end = 0;
    char text[256];
    put_records(w);
    int64_t id = submit(w, "{\"cycles\": 2}");
    assert_int_equal(claims(w, &a), 1);
    must(saves(w, &a, 6, FINISHED, &end));
    assert_int_equal(claims(w, &a), 1);
    must(job_cancel(w->st, id, w->now, &w->err));
    snprintf(text, sizeof(text),
             "{\"outcome\": \"failed\", \"error\": {\"code\": \"corrupt\","
             " \"detail\": \"chunk 0 is damaged\", \"checkpoint\": %d}}",
             (int)end);
    must(releases(w, &a, text));
    expect_job(w, id, "canceled", "canceled by request");
    assert_int_equal(events(w, id, "failed", NULL), 0);
    assert_int_equal(events(w, id, "canceled", NULL), 1);
}

static void a_changed_fingerprint_ends_the_bit_exact_tier(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    CLEANUP(worker_drop)
    struct worker b = {.name = "b", .library = "{\"libtorch\": \"2\"}"};
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &b), 1); /* leaves nothing behind */
    must(releases(w, &b, FAILED("torch", "false")));
    assert_int_equal(claims(w, &a), 1);
    must(saves(w, &a, 2, YIELD_STEPS, NULL));
    AUTO_JSON json_t *j = job(w, id);
    assert_string_equal(str_of(json_object_get(j, "exact"), "tier"), "bit");
    assert_int_equal(claims(w, &b), 1);
    AUTO_JSON json_t *k = job(w, id);
    const json_t *exact = json_object_get(k, "exact");
    assert_string_equal(str_of(exact, "tier"), "order");
    assert_int_equal(int_of(exact, "since_step"), 2);
    assert_non_null(strstr(str_of(exact, "reason"), "libtorch: 1 → 2"));
    assert_int_equal(events(w, id, "order", "libtorch: 1 → 2"), 1);
    /* what it saves is order-exact for good, whoever goes on */
    must(saves(w, &b, 4, YIELD_STEPS, NULL));
    assert_int_equal(claims(w, &a), 1);
    AUTO_JSON json_t *l = job(w, id);
    assert_int_equal(int_of(json_object_get(l, "exact"), "since_step"), 2);
}

static void exact_require_refuses_another_fingerprint(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    CLEANUP(worker_drop)
    struct worker b = {.name = "b", .library = "{\"libtorch\": \"2\"}"};
    put_records(w);
    int64_t id = submit(w, "{\"runtime\": {\"exact\": \"require\","
                           " \"micro_batch\": 2, \"threads\": 1}}");
    assert_int_equal(claims(w, &a), 1);
    must(saves(w, &a, 2, YIELD_STEPS, NULL));
    w->now += 16000; /* nobody like a shows up */
    assert_int_equal(claims(w, &b), 0);
    expect_job(w, id, "queued", "libtorch: 1 → 2");
    AUTO_JSON json_t *patch = json_of("{\"runtime\": {\"micro_batch\": 4}}");
    assert_int_equal(job_patch(w->st, id, patch, w->now, &w->err),
                     ERR_CONFLICT);
    assert_string_equal(w->err.pointer, "/runtime/micro_batch");
    AUTO_JSON json_t *fine =
        json_of("{\"runtime\": {\"checkpoint_every\": 9}}");
    must(job_patch(w->st, id, fine, w->now, &w->err));
    assert_int_equal(claims(w, &a), 1);
}

static void a_worker_without_the_device_is_told_apart(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, "{\"runtime\": {\"device\": \"cuda\"}}");
    assert_int_equal(claims(w, &a), 0);
    expect_job(w, id, "queued", "waits for a worker with a cuda device");
}

static void steps_trained_again_must_report_the_same(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"}, b = {.name = "b"};
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    must(saves(w, &a, 1, NULL, NULL));
    a.step = 3;
    must(beats(w, &a,
               "\"metrics\": [[1, {\"loss\": 5}], [2, {\"loss\": 4.25,"
               " \"records_per_s\": 10}], [3, {\"loss\": 4}]]",
               NULL));
    die(w, &a);
    CLEANUP(buf_release) struct buf csv = {0};
    assert_int_equal(claims(w, &b), 1);
    must(metric_csv(w->st, id, 0, NULL, &(struct csv_at){0}, &csv, &w->err));
    assert_string_equal(csv.data, "cycle,step,series,value\n1,1,loss,5\n");
    b.step = 2;
    must(beats(w, &b,
               "\"metrics\": [[2, {\"loss\": 4.25, \"records_per_s\": 11}]]",
               NULL));
    assert_int_equal(events(w, id, "inexact", NULL), 0);
    b.step = 3;
    must(beats(w, &b, "\"metrics\": [[3, {\"loss\": 4.000001}]]", NULL));
    assert_int_equal(events(w, id, "inexact", "step 3 was trained again"), 1);
    AUTO_JSON json_t *j = job(w, id);
    assert_int_equal(int_of(json_object_get(j, "exact"), "inexact_steps"), 1);
}

static void pause_cancel_and_drain_reach_the_worker(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    must(job_pause(w->st, id, w->now, &w->err));
    AUTO_JSON json_t *pause = NULL, *cancel = NULL, *stop = NULL;
    a.step = 1;
    must(beats(w, &a, NULL, &pause));
    assert_string_equal(str_of(pause, "do"), "yield");
    assert_string_equal(str_of(pause, "reason"), "pause");
    must(saves(w, &a, 1, "{\"outcome\": \"yielded\", \"reason\": \"pause\"}",
               NULL));
    expect_job(w, id, "paused", "paused by request at step 1");
    assert_int_equal(claims(w, &a), 0);
    must(job_resume(w->st, id, w->now, &w->err));
    assert_int_equal(claims(w, &a), 1);
    must(job_cancel(w->st, id, w->now, &w->err));
    must(beats(w, &a, NULL, &cancel));
    assert_string_equal(str_of(cancel, "do"), "yield");
    assert_string_equal(str_of(cancel, "reason"), "cancel");
    must(job_cancel(w->st, id, w->now, &w->err));
    must(beats(w, &a, NULL, &stop));
    assert_string_equal(str_of(stop, "do"), "stop");
    /* it finishes nonetheless: too late */
    must(saves(w, &a, 6, FINISHED, NULL));
    expect_job(w, id, "canceled", NULL);
}

static void a_canceled_job_stays_canceled_when_its_worker_dies(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    must(job_cancel(w->st, id, w->now, &w->err));
    die(w, &a);
    expect_job(w, id, "canceled", NULL);
}

static void a_newer_policy_comes_with_the_heartbeat(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    AUTO_JSON json_t *plain = NULL, *newer = NULL, *moves = NULL;
    must(beats(w, &a, NULL, &plain));
    assert_null(json_object_get(plain, "runtime"));
    AUTO_JSON json_t *p = json_of("{\"runtime\": {\"checkpoint_every\": 3}}");
    must(job_patch(w->st, id, p, w->now, &w->err));
    must(beats(w, &a, NULL, &newer));
    assert_string_equal(str_of(newer, "do"), "continue");
    assert_int_equal(
        int_of(json_object_get(newer, "runtime"), "checkpoint_every"), 3);
    assert_int_equal(int_of(newer, "runtime_version"), 2);
    /* one lease has one fingerprint: it goes on in the next */
    AUTO_JSON json_t *q = json_of("{\"runtime\": {\"micro_batch\": 4}}");
    must(job_patch(w->st, id, q, w->now, &w->err));
    must(beats(w, &a, NULL, &moves));
    assert_string_equal(str_of(moves, "do"), "yield");
    assert_null(json_object_get(moves, "runtime"));
}

static void auto_threads_are_the_first_workers_for_good(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    submit(w, "{\"runtime\": {\"threads\": 0, \"micro_batch\": 2}}");
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(int_of(a.claim, "threads"), 3);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_claim_gets_all_that_a_worker_needs),
        TEST(a_repeated_claim_gets_the_same_lease),
        TEST(priority_then_who_yielded_then_age_is_claimed),
        TEST(a_changed_priority_counts_at_the_next_claim),
        TEST(one_that_fits_is_found_behind_many_that_do_not),
        TEST(a_yield_goes_on_where_it_saved_and_a_finish_completes),
        TEST(finishing_needs_the_last_step_and_the_right_model),
        TEST(a_foreign_state_is_refused),
        TEST(a_late_worker_is_refused_and_changes_nothing),
        TEST(what_is_sent_twice_gets_the_first_answer),
        TEST(a_heartbeat_sent_twice_counts_once),
        TEST(only_silence_of_this_run_counts),
        TEST(a_worker_that_comes_back_first_keeps_its_cycle),
        TEST(a_dead_worker_is_lost_at_once_and_says_how),
        TEST(a_job_that_kills_its_workers_fails),
        TEST(fifty_yields_with_progress_cost_nothing),
        TEST(yields_without_progress_end_the_job),
        TEST(failures_back_off_and_progress_forgives_them),
        TEST(errors_of_data_are_final_and_name_the_place),
        TEST(a_damaged_checkpoint_is_set_aside_for_the_one_before),
        TEST(a_checkpoint_that_kills_its_loader_twice_is_set_aside),
        TEST(a_loader_that_was_only_silent_leaves_its_checkpoint_good),
        TEST(who_was_lost_does_not_come_back_to_a_job_that_is_tried_again),
        TEST(a_checkpoint_removed_under_way_does_not_stop_the_next),
        TEST(a_canceled_job_is_not_failed_on_the_way),
        TEST(a_changed_fingerprint_ends_the_bit_exact_tier),
        TEST(exact_require_refuses_another_fingerprint),
        TEST(a_worker_without_the_device_is_told_apart),
        TEST(steps_trained_again_must_report_the_same),
        TEST(pause_cancel_and_drain_reach_the_worker),
        TEST(a_canceled_job_stays_canceled_when_its_worker_dies),
        TEST(a_newer_policy_comes_with_the_heartbeat),
        TEST(auto_threads_are_the_first_workers_for_good),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
