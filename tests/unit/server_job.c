/* A submitted spec on its way to a model. */
#include "server/dry_run.h"
#include "server_fixture.h"

static void a_submission_waits_for_a_worker_with_its_data_frozen(void **state)
{
    struct world *w = *state;
    put_records(w);
    int64_t id = submit(w, "{\"labels\": {\"team\": \"a\"}}");
    AUTO_JSON json_t *j = job(w, id);
    static const char *const fields[] = {
        "id",       "name",       "kind",     "state",      "reason",
        "version",  "signature",  "priority", "labels",     "created_at",
        "progress", "started_at", "exact",    "runtime",    "ended_at",
        "budgets",  "spec",       "lease",    "parameters", NULL};
    for (int i = 0; fields[i]; i++)
        if (!json_object_get(j, fields[i]))
            fail_msg("no %s", fields[i]);
    assert_null(json_object_get(j, "model_sha256"));
    expect_job(w, id, "queued", "waits for a worker");
    assert_string_equal(str_of(j, "created_at"), "2023-11-14T22:13:20.000Z");
    const json_t *p = json_object_get(j, "progress");
    assert_int_equal(int_of(p, "steps"), 6);
    assert_int_equal(int_of(p, "records_total"), 24);

    /* what comes later belongs to no snapshot that was taken */
    must(try_shard(w, "set", "b.jsonl", "{\"x\":[1],\"v\":0}\n"));
    AUTO_JSON json_t *k = job(w, id);
    assert_int_equal(int_of(json_object_get(k, "progress"), "steps"), 6);
}

static void unknown_data_and_ids_are_refused_with_their_place(void **state)
{
    struct world *w = *state;
    int64_t id;
    assert_int_equal(try_submit(w, NULL, &id), ERR_INVALID);
    assert_string_equal(w->err.pointer, "/data/dataset");
    put_records(w);
    assert_int_equal(try_submit(w, "{\"after\": [5]}", &id), ERR_INVALID);
    assert_string_equal(w->err.pointer, "/after/0");
    assert_int_equal(
        try_submit(w, "{\"data\": {\"dataset\": \"set\", \"shards\": \"z*\"}}",
                   &id),
        ERR_INVALID);
    assert_string_equal(w->err.pointer, "/data/shards");
    AUTO_JSON json_t *page = NULL;
    struct job_filter f = {.limit = 10};
    must(job_list(w->st, &f, &page, &w->err));
    assert_int_equal(json_array_size(json_object_get(page, "items")), 0);
}

static void an_empty_shard_fails_the_job_by_name(void **state)
{
    struct world *w = *state;
    put_records(w);
    must(try_shard(w, "set", "b.jsonl", "\n \n"));
    int64_t id = submit(w, NULL);
    expect_job(w, id, "failed", "shard b.jsonl is empty");
    AUTO_JSON json_t *j = job(w, id);
    assert_string_equal(str_of(json_object_get(j, "error"), "shard"),
                        "b.jsonl");
}

static void a_job_comes_after_those_that_completed(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t first = submit(w, NULL);
    int64_t then = submit(w, "{\"after\": [1], \"priority\": 9}");
    expect_job(w, then, "queued", "waits for job 1 to complete");
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.job, first);
    must(releases(w, &a, FAILED("data", "true")));
    expect_job(w, then, "queued",
               "waits for job 1, which failed: retry it, or "
               "cancel this one");
    assert_int_equal(claims(w, &a), 0);
    assert_int_equal(job_delete(w->st, first, &w->err), ERR_CONFLICT);
    must(job_retry(w->st, first, w->now, &w->err));
    assert_int_equal(claims(w, &a), 1);
    must(saves(w, &a, 6, FINISHED, NULL));
    expect_job(w, then, "queued", "waits for a worker");
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.job, then);
}

static void any_end_will_do_where_that_is_asked_for(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    for (int i = 0; i < 3; i++)
        submit(w, NULL);
    int64_t all = submit(w, "{\"after\": [{\"job\": 1, \"when\": \"ended\"},"
                            " {\"job\": 2, \"when\": \"ended\"}, 3]}");
    expect_job(w, all, "queued", "waits for the end of job 1, and for 2 more");
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.job, 1);
    must(releases(w, &a, FAILED("data", "true")));
    expect_job(w, all, "queued", "waits for the end of job 2, and for 1 more");
    must(job_cancel(w->st, 2, w->now, &w->err));
    expect_job(w, all, "queued", "waits for job 3 to complete");
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.job, 3);
    must(saves(w, &a, 6, FINISHED, NULL));
    expect_job(w, all, "queued", "waits for a worker");
}

static void a_cancel_takes_those_along_that_wait_for_completion(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    submit(w, NULL);
    int64_t second = submit(w, "{\"after\": [1]}");
    int64_t third = submit(w, "{\"after\": [2]}");
    int64_t any = submit(w, "{\"after\": [{\"job\": 3, \"when\": \"ended\"}]}");
    int64_t own = submit(w, "{\"after\": [1], \"cycles\": 0}");
    int64_t asleep = submit(w, "{\"after\": [2]}");
    must(job_pause(w->st, asleep, w->now, &w->err));
    assert_int_equal(claims(w, &a), 1);
    must(job_cancel(w->st, 1, w->now, &w->err));
    /* it saves first: nothing has ended yet */
    expect_job(w, second, "queued", "waits for job 1 to complete");
    must(saves(w, &a, 2, YIELD_STEPS, NULL));
    expect_job(w, 1, "canceled", "canceled by request");
    expect_job(w, second, "canceled", "canceled with job 1");
    expect_job(w, third, "canceled", "canceled with job 2");
    expect_job(w, own, "canceled", "canceled with job 1");
    expect_job(w, asleep, "canceled", "canceled with job 2");
    expect_job(w, any, "queued", "waits for a worker");
    assert_int_equal(events(w, third, "canceled", "job 2"), 1);

    /* one that is tried again waits anew, and says for what */
    must(job_retry(w->st, third, w->now, &w->err));
    expect_job(w, third, "queued",
               "waits for job 2, which was canceled: retry it, or cancel this "
               "one");
    must(job_retry(w->st, second, w->now, &w->err));
    expect_job(w, third, "queued", "waits for job 2 to complete");
    must(job_retry(w->st, 1, w->now, &w->err));
    expect_job(w, second, "queued", "waits for job 1 to complete");
}

static void a_failure_leaves_those_behind_it_waiting(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    submit(w, NULL);
    int64_t second = submit(w, "{\"after\": [1]}");
    int64_t third = submit(w, "{\"after\": [2]}");
    must(job_pause(w->st, second, w->now, &w->err));
    assert_int_equal(claims(w, &a), 1);
    must(releases(w, &a, FAILED("data", "true")));
    expect_job(w, second, "paused", "paused by request");
    expect_job(w, third, "queued", "waits for job 2 to complete");
    /* resumed it says what it waits for, and goes on when that is mended */
    must(job_resume(w->st, second, w->now, &w->err));
    expect_job(w, second, "queued", "waits for job 1, which failed");
    must(job_retry(w->st, 1, w->now, &w->err));
    expect_job(w, second, "queued", "waits for job 1 to complete");
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.job, 1);
    must(saves(w, &a, 6, FINISHED, NULL));
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.job, second);
}

/* One job after the other, by the thousand: ends move them without a stack. */
static void a_long_chain_ends_as_a_short_one_does(void **state)
{
    struct world *w = *state;
    char after[64];
    enum { N = 3000 };
    put_records(w);
    submit(w, NULL);
    struct txn all = TXN_INIT;
    must(txn_begin(&all, w->st, &w->err));
    for (int i = 1; i < N; i++) {
        snprintf(after, sizeof(after), "{\"after\": [%d]}", i);
        submit(w, after);
    }
    must(txn_commit(&all, &w->err));
    txn_end(&all);
    must(job_cancel(w->st, 1, w->now, &w->err));
    expect_job(w, N, "canceled", "canceled with job 2999");
}

static void what_a_job_needs_of_another_stays_or_is_met(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    submit(w, NULL);
    int64_t second = submit(w, "{\"after\": [1]}");
    assert_int_equal(claims(w, &a), 1);
    must(saves(w, &a, 6, FINISHED, NULL));
    must(job_delete(w->st, 1, &w->err)); /* done, and needed no more */
    must(job_cancel(w->st, second, w->now, &w->err));
    must(job_retry(w->st, second, w->now, &w->err));
    expect_job(w, second, "queued", "waits for a worker");

    int64_t third = submit(w, NULL), fourth = submit(w, "{\"after\": [3]}");
    must(job_cancel(w->st, third, w->now, &w->err));
    expect_job(w, fourth, "canceled", NULL);
    must(job_delete(w->st, third, &w->err));
    AUTO_FREE char *before = dump(w);
    assert_int_equal(job_retry(w->st, fourth, w->now, &w->err), ERR_CONFLICT);
    assert_non_null(strstr(w->err.text, "job 3"));
    AUTO_FREE char *after = dump(w);
    assert_string_equal(before, after);
}

static void a_job_does_not_begin_before_its_time(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    /* now is 2023-11-14T22:13:20Z: an hour from here, and a year ago */
    int64_t id = submit(w, "{\"not_before\": \"2023-11-15T00:13:20+01:00\"}");
    submit(w, "{\"not_before\": \"2022-11-14T00:00:00Z\"}");
    expect_job(w, id, "queued", "waits until 2023-11-14T23:13:20.000Z");
    expect_job(w, 2, "queued", "waits for a worker");
    AUTO_JSON json_t *j = job(w, id);
    assert_string_equal(str_of(j, "not_before_at"), "2023-11-14T23:13:20.000Z");
    assert_string_equal(str_of(j, "cycle_state"), "waiting");
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.job, 2);
    assert_int_equal(claims(w, &a), 0);

    w->now += 3600 * 1000 - 1;
    assert_int_equal(claims(w, &a), 0);
    must(job_pause(w->st, id, w->now, &w->err));
    must(job_resume(w->st, id, w->now, &w->err));
    expect_job(w, id, "queued", "waits until");
    w->now++;
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.job, id);
    /* a pause on the way is no back-off of a wall clock set back */
    must(saves(w, &a, 2, YIELD_STEPS, NULL));
    w->now -= 7200 * 1000;
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.job, id);
}

static void what_waits_for_a_time_can_be_canceled_and_tried_again(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, "{\"not_before\": \"2023-11-14T23:13:20Z\"}");
    int64_t then = submit(w, "{\"after\": [1], \"not_before\":"
                             " \"2023-11-15T00:13:20Z\"}");
    must(job_cancel(w->st, id, w->now, &w->err));
    expect_job(w, id, "canceled", NULL);
    expect_job(w, then, "canceled", "canceled with job 1");
    must(job_retry(w->st, id, w->now, &w->err));
    must(job_retry(w->st, then, w->now, &w->err));
    expect_job(w, id, "queued", "waits until 2023-11-14T23:13:20.000Z");
    expect_job(w, then, "queued", "waits for job 1 to complete");
    w->now += 3600 * 1000;
    assert_int_equal(claims(w, &a), 1);
    must(saves(w, &a, 6, FINISHED, NULL));
    expect_job(w, then, "queued", "waits until 2023-11-15T00:13:20.000Z");
    assert_int_equal(claims(w, &a), 0);
    w->now += 3600 * 1000;
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.job, then);
}

static void a_completed_job_keeps_its_policy_but_for_what_stays(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL), failed = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    must(saves(w, &a, 6, FINISHED, NULL));
    AUTO_JSON json_t *more = json_of("{\"runtime\": {\"micro_batch\": 1}}");
    assert_int_equal(job_patch(w->st, id, more, w->now, &w->err), ERR_CONFLICT);
    assert_string_equal(w->err.pointer, "/runtime/micro_batch");
    AUTO_JSON json_t *keep = json_of("{\"runtime\": {\"keep\": 5}, \"labels\":"
                                     " {\"a\": \"b\"}, \"priority\": 1}");
    must(job_patch(w->st, id, keep, w->now, &w->err));
    AUTO_JSON json_t *j = job(w, id);
    assert_int_equal(int_of(json_object_get(j, "runtime"), "keep"), 5);
    expect_job(w, id, "completed", NULL);

    /* one that failed is retried, perhaps only under another policy */
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.job, failed);
    must(releases(w, &a, FAILED("invalid", "true")));
    must(job_patch(w->st, failed, more, w->now, &w->err));
    must(job_retry(w->st, failed, w->now, &w->err));
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(int_of(json_object_get(a.claim, "runtime"), "micro_batch"),
                     1);
}

static void an_edit_is_counted_and_can_be_asked_for(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    static const struct {
        const char *header;
        int r;
    } table[] = {
        {"\"e1\"", 0},
        {"*", 0},
        {"\"x\", \"e1\"", 0},
        {" \"e1\" ,\"e9\"", 0},
        {"\"e2\"", ERR_PRECONDITION},
        {"e1", ERR_PRECONDITION},
        {"W/\"e1\"", ERR_PRECONDITION},
        {"\"e11\"", ERR_PRECONDITION},
        {"", ERR_PRECONDITION},
    };
    put_records(w);
    int64_t id = submit(w, NULL);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (job_if_match(w->st, id, table[i].header, &w->err) != table[i].r)
            fail_msg("If-Match: %s", table[i].header);
    assert_int_equal(job_if_match(w->st, 99, "*", &w->err), ERR_NOT_FOUND);
    /* progress is none */
    assert_int_equal(claims(w, &a), 1);
    must(saves(w, &a, 2, YIELD_STEPS, NULL));
    must(job_pause(w->st, id, w->now, &w->err));
    must(job_if_match(w->st, id, "\"e1\"", &w->err));
    AUTO_JSON json_t *p = json_of("{\"priority\": 1}");
    must(job_patch(w->st, id, p, w->now, &w->err));
    must(job_patch(w->st, id, p, w->now, &w->err)); /* changes nothing more */
    must(job_if_match(w->st, id, "\"e2\"", &w->err));
}

static void the_next_cycle_starts_from_the_end_of_the_one_before(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, "{\"cycles\": 2}"), end = 0;
    assert_int_equal(claims(w, &a), 1);
    assert_null(json_object_get(a.claim, "initial"));
    must(saves(w, &a, 6, FINISHED, &end));
    expect_job(w, id, "queued", NULL);
    must(try_shard(w, "set", "b.jsonl", "{\"x\":[1],\"v\":0}\n"));
    assert_int_equal(claims(w, &a), 1);
    const json_t *from = json_object_get(a.claim, "initial");
    assert_int_equal(int_of(from, "id"), end);
    assert_int_equal(int_of(a.claim, "step_base"), 6);
    assert_int_equal(int_of(a.claim, "steps"), 6); /* frozen as it was ready */
    must(saves(w, &a, 3, YIELD_STEPS, NULL));
    assert_int_equal(claims(w, &a), 1);
    assert_non_null(json_object_get(a.claim, "checkpoint"));
    must(saves(w, &a, 6, FINISHED, NULL));
    expect_job(w, id, "completed", NULL);
}

static void cycles_on_request_wait_run_in_order_and_complete(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    int64_t n;
    put_records(w);
    int64_t id = submit(w, "{\"cycles\": 0}");
    expect_job(w, id, "queued", "waits for POST /v1/jobs/1/cycles");
    assert_int_equal(claims(w, &a), 0);
    assert_int_equal(job_complete(w->st, id, w->now, &w->err), ERR_CONFLICT);
    must(job_add_cycle(w->st, id, NULL, w->now, &n, &w->err));
    assert_int_equal(n, 1);
    assert_int_equal(claims(w, &a), 1);
    must(try_shard(w, "more", "m.jsonl", "{\"x\":[1],\"v\":0}\n"));
    AUTO_JSON json_t *own = json_of("{\"data\": {\"dataset\": \"more\"},"
                                    " \"training\": {\"epochs\": 3}}");
    must(job_add_cycle(w->st, id, own, w->now, &n, &w->err));
    assert_int_equal(n, 2);
    AUTO_JSON json_t *bad = json_of("{\"model\": {}}");
    assert_int_equal(job_add_cycle(w->st, id, bad, w->now, &n, &w->err),
                     ERR_INVALID);
    assert_string_equal(w->err.pointer, "/model");
    /* behind another or not: data that is not there is said at once */
    AUTO_JSON json_t *none = json_of("{\"data\": {\"shards\": \"x*\"}}");
    assert_int_equal(job_add_cycle(w->st, id, none, w->now, &n, &w->err),
                     ERR_INVALID);
    assert_string_equal(w->err.pointer, "/data/shards");
    must(saves(w, &a, 6, FINISHED, NULL));
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(int_of(a.claim, "steps"), 3);
    must(saves(w, &a, 3, FINISHED, NULL));
    expect_job(w, id, "queued", "waits for POST /v1/jobs/1/cycles");
    must(job_complete(w->st, id, w->now, &w->err));
    expect_job(w, id, "completed", NULL);
    must(job_complete(w->st, id, w->now, &w->err)); /* said twice */
}

static void a_job_says_where_it_stands_in_line(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    for (int i = 0; i < 23; i++)
        submit(w, NULL);
    submit(w, "{\"priority\": 1}");
    submit(w, "{\"not_before\": \"2033-11-14T23:13:20Z\"}");
    must(job_pause(w->st, 5, w->now, &w->err));
    assert_int_equal(claims(w, &a), 1); /* the one of priority 1 */
    assert_int_equal(a.job, 24);
    static const struct {
        int64_t id;
        const char *reason;
        int place;
    } table[] = {
        {1, "next in line; waits for a worker", 1},
        {2, "2nd in line; waits for a worker", 2},
        {3, "3rd in line; waits for a worker", 3},
        {4, "4th in line; waits for a worker", 4},
        {5, "paused by request", 0},
        {6, "5th in line; waits for a worker", 5},
        {12, "11th in line; waits for a worker", 11},
        {13, "12th in line; waits for a worker", 12},
        {22, "21st in line; waits for a worker", 21},
        {23, "22nd in line; waits for a worker", 22},
        {25, "waits until 2033", 0},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        AUTO_JSON json_t *j = job(w, table[i].id);
        must(job_add_place(w->st, j, &w->err));
        assert_int_equal(int_of(j, "place"), table[i].place);
        if (strncmp(str_of(j, "reason"), table[i].reason,
                    strlen(table[i].reason)))
            fail_msg("job %d: %s", (int)table[i].id, str_of(j, "reason"));
    }
    /* who yielded goes first */
    must(saves(w, &a, 2, YIELD_STEPS, NULL));
    AUTO_JSON json_t *first = job(w, 1), *back = job(w, 24);
    must(job_add_place(w->st, first, &w->err));
    must(job_add_place(w->st, back, &w->err));
    assert_int_equal(int_of(first, "place"), 2);
    assert_int_equal(int_of(back, "place"), 1);
    AUTO_JSON json_t *stored = job(w, 2); /* computed, not kept */
    assert_string_equal(str_of(stored, "reason"), "waits for a worker");
}

static void a_patch_changes_policy_and_refuses_semantics(void **state)
{
    struct world *w = *state;
    put_records(w);
    int64_t id = submit(w, NULL);
    static const struct {
        const char *patch, *pointer;
    } refused[] = {
        {"{\"training\": {\"optimizer\": {\"lr\": 0.5}}}",
         "/training/optimizer/lr"},
        {"{\"training\": {\"seed\": 3}}", "/training/seed"},
        {"{\"data\": {\"dataset\": \"other\"}}", "/data/dataset"},
        {"{\"model\": {\"layers\": 2}}", "/model/layers"},
        {"{\"name\": \"new\"}", "/name"},
        {"{\"cycles\": 2}", "/cycles"},
        {"{\"limits\": {\"lost\": 2}}", "/limits"},
        {"{\"after\": [1]}", "/after"},
        {"{\"not_before\": \"2030-01-01T00:00:00Z\"}", "/not_before"},
    };
    AUTO_FREE char *before = dump(w);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        AUTO_JSON json_t *p = json_of(refused[i].patch);
        assert_int_equal(job_patch(w->st, id, p, w->now, &w->err),
                         ERR_CONFLICT);
        assert_string_equal(w->err.pointer, refused[i].pointer);
    }
    AUTO_JSON json_t *odd = json_of("{\"runtime\": {\"speed\": 3}}");
    assert_int_equal(job_patch(w->st, id, odd, w->now, &w->err), ERR_INVALID);
    assert_string_equal(w->err.pointer, "/runtime/speed");
    /* what is the same already may stand in it */
    AUTO_JSON json_t *same = json_of(
        "{\"training\": {\"optimizer\": {\"lr\": 0.001}}, \"name\": \"tiny\"}");
    must(job_patch(w->st, id, same, w->now, &w->err));
    AUTO_FREE char *after = dump(w);
    assert_string_equal(before, after);

    AUTO_JSON json_t *fine =
        json_of("{\"priority\": 4, \"labels\": {\"a\": \"b\"}, \"runtime\":"
                " {\"restart\": {\"every_micro_batches\": 7}}}");
    AUTO_JSON json_t *old = job(w, id);
    must(job_patch(w->st, id, fine, w->now, &w->err));
    AUTO_JSON json_t *j = job(w, id);
    assert_int_equal(int_of(j, "priority"), 4);
    assert_string_equal(str_of(json_object_get(j, "labels"), "a"), "b");
    assert_int_equal(
        int_of(json_object_get(json_object_get(j, "runtime"), "restart"),
               "every_micro_batches"),
        7);
    assert_true(int_of(j, "version") > int_of(old, "version"));
    assert_string_equal(str_of(j, "signature"), str_of(old, "signature"));
}

static void pause_and_resume_keep_the_place(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL);
    must(job_pause(w->st, id, w->now, &w->err));
    expect_job(w, id, "paused", "paused by request");
    must(job_pause(w->st, id, w->now, &w->err));
    assert_int_equal(events(w, id, "paused", NULL), 1);
    assert_int_equal(claims(w, &a), 0);
    must(job_resume(w->st, id, w->now, &w->err));
    expect_job(w, id, "queued", "waits for a worker");
    assert_int_equal(claims(w, &a), 1);
}

/* ---- every request in every state ---- */

/* The job `id` in a state, made in a world of its own. */
static int64_t job_in(struct world *w, const char *state, struct worker *k)
{
    int64_t id = 0;
    put_records(w);
    if (!strcmp(state, "waits for a job")) {
        id = submit(w, NULL);
        must(job_pause(w->st, id, w->now, &w->err));
        return submit(w, "{\"after\": [1]}");
    }
    if (!strcmp(state, "waits for its time"))
        return submit(w, "{\"not_before\": \"2033-01-01T00:00:00Z\"}");
    if (!strcmp(state, "waits for a cycle"))
        return submit(w, "{\"cycles\": 0}");
    id = submit(w, NULL);
    if (!strcmp(state, "paused"))
        must(job_pause(w->st, id, w->now, &w->err));
    if (!strcmp(state, "queued") || !strcmp(state, "paused"))
        return id;
    assert_int_equal(claims(w, k), 1);
    if (!strcmp(state, "pausing"))
        must(job_pause(w->st, id, w->now, &w->err));
    else if (!strcmp(state, "canceling"))
        must(job_cancel(w->st, id, w->now, &w->err));
    else if (!strcmp(state, "completed"))
        must(saves(w, k, 6, FINISHED, NULL));
    else if (!strcmp(state, "failed"))
        must(releases(w, k, FAILED("data", "true")));
    else if (!strcmp(state, "canceled")) {
        must(job_cancel(w->st, id, w->now, &w->err));
        must(saves(w, k, 2, YIELD_STEPS, NULL));
    }
    return id;
}

static int delete_too(struct store *st, int64_t id, int64_t now_ms,
                      struct err *err)
{
    return job_delete(st, id, err);
}

static void every_request_means_one_thing_in_every_state(void **unused)
{
    typedef int ask_fn(struct store *, int64_t, int64_t, struct err *);
    static const struct {
        const char *name;
        ask_fn *fn;
    } asks[] = {{"pause", job_pause},       {"resume", job_resume},
                {"cancel", job_cancel},     {"retry", job_retry},
                {"complete", job_complete}, {"delete", delete_too}};
    /* what the job is afterwards; NULL: refused, and as it was */
    static const struct {
        const char *state, *then[6];
    } table[] = {
        {"queued", {"paused", "queued", "canceled", NULL, "queued", NULL}},
        {"waits for a job",
         {"paused", "queued", "canceled", NULL, "queued", NULL}},
        {"waits for its time",
         {"paused", "queued", "canceled", NULL, "queued", NULL}},
        {"waits for a cycle",
         {"paused", "queued", "canceled", NULL, NULL, NULL}},
        {"paused", {"paused", "queued", "canceled", NULL, "paused", NULL}},
        {"running", {"running", "running", "running", NULL, "running", NULL}},
        {"pausing", {"running", "running", "running", NULL, "running", NULL}},
        {"canceling", {"running", "running", "running", NULL, "running", NULL}},
        {"completed", {NULL, NULL, NULL, NULL, "completed", "gone"}},
        {"failed", {NULL, NULL, NULL, "queued", NULL, "gone"}},
        {"canceled", {NULL, NULL, "canceled", "queued", NULL, "gone"}},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        for (size_t k = 0; k < sizeof asks / sizeof *asks; k++) {
            CLEANUP(worker_drop) struct worker a = {.name = "a"};
            void *own = NULL;
            assert_int_equal(setup(&own), 0);
            struct world *w = own;
            int64_t id = job_in(w, table[i].state, &a);
            AUTO_FREE char *before = dump(w);
            int r = asks[k].fn(w->st, id, w->now, &w->err);
            const char *then = table[i].then[k];
            AUTO_JSON json_t *j = NULL;
            struct err none;
            const char *is = job_get(w->st, id, false, &j, &none) < 0
                                 ? "gone"
                                 : str_of(j, "state");
            if (then ? r < 0 || strcmp(is, then) : r != ERR_CONFLICT)
                fail_msg("%s of one that is %s: %d, %s (%s)", asks[k].name,
                         table[i].state, r, is, r < 0 ? w->err.text : "");
            if (!then) {
                AUTO_FREE char *after = dump(w);
                assert_string_equal(before, after);
            }
            if (then && r >= 0 && strcmp(then, "gone") != 0 && k != 2) {
                /* sent twice, it is the same: but for a second cancel, which
                 * stops at once, and a retry of what was retried */
                int64_t version = int_of(j, "version");
                r = asks[k].fn(w->st, id, w->now, &w->err);
                AUTO_JSON json_t *again = job(w, id);
                assert_int_equal(r, k == 3 ? ERR_CONFLICT : 0);
                assert_int_equal(int_of(again, "version"), version);
            }
            teardown(&own);
        }
}

static void a_pause_holds_whatever_becomes_of_the_worker(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"}, b = {.name = "b"};
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    must(saves(w, &a, 2, NULL, NULL));
    must(job_pause(w->st, id, w->now, &w->err));
    expect_job(w, id, "running", "pausing: the worker saves first");
    must(lease_worker_died(w->st, 100, a.claims, "b", "was killed by signal 9",
                           NULL, w->now, &w->err));
    expect_job(w, id, "paused", "paused by request at step 2");
    assert_int_equal(claims(w, &b), 0);
    must(job_resume(w->st, id, w->now, &w->err));
    assert_int_equal(claims(w, &b), 1);
    assert_int_equal(b.step, 2);
    /* taken back before the worker has heard of it: nothing stops */
    must(job_pause(w->st, id, w->now, &w->err));
    must(job_resume(w->st, id, w->now, &w->err));
    AUTO_JSON json_t *answer = NULL;
    must(beats(w, &b, NULL, &answer));
    assert_string_equal(str_of(answer, "do"), "continue");
    /* and a cancel that was asked for outlasts the worker, too */
    must(job_cancel(w->st, id, w->now, &w->err));
    must(lease_worker_died(w->st, 100, b.claims, "b", "was killed by signal 9",
                           NULL, w->now, &w->err));
    expect_job(w, id, "canceled", "canceled by request");
}

static void an_ended_job_is_canceled_retried_or_deleted_as_fits(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(job_delete(w->st, id, &w->err), ERR_CONFLICT);
    assert_int_equal(job_retry(w->st, id, w->now, &w->err), ERR_CONFLICT);
    assert_int_equal(claims(w, &a), 1);
    must(saves(w, &a, 2, YIELD_STEPS, NULL));
    must(job_cancel(w->st, id, w->now, &w->err));
    expect_job(w, id, "canceled", NULL);
    must(job_cancel(w->st, id, w->now, &w->err));
    assert_int_equal(job_pause(w->st, id, w->now, &w->err), ERR_CONFLICT);
    must(job_retry(w->st, id, w->now, &w->err));
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.step, 2);
    must(saves(w, &a, 6, FINISHED, NULL));
    assert_int_equal(job_cancel(w->st, id, w->now, &w->err), ERR_CONFLICT);
    must(job_delete(w->st, id, &w->err));
    AUTO_JSON json_t *gone = NULL;
    assert_int_equal(job_get(w->st, id, true, &gone, &w->err), ERR_NOT_FOUND);
    AUTO_FREE char *all = dump(w);
    assert_null(strstr(all, "INSERT INTO leases"));
    assert_null(strstr(all, "INSERT INTO checkpoint"));
    assert_int_equal(submit(w, NULL), 2); /* ids are never used again */
}

static void lists_filter_and_page(void **state)
{
    struct world *w = *state;
    put_records(w);
    for (int i = 0; i < 5; i++)
        submit(w, i % 2 ? "{\"labels\": {\"team\": \"odd\"}}"
                        : "{\"name\": \"Even job\"}");
    must(job_pause(w->st, 3, w->now, &w->err));
    static const struct {
        struct job_filter f;
        int n, first;
    } table[] = {
        {{.limit = 10}, 5, 5},
        {{.limit = 10, .before = 3}, 2, 2},
        {{.limit = 10, .state = "paused"}, 1, 3},
        {{.limit = 10, .q = "EVEN"}, 3, 5},
        {{.limit = 10, .label = "team"}, 2, 4},
        {{.limit = 10, .label = "team", .label_value = "odd"}, 2, 4},
        {{.limit = 10, .label = "team", .label_value = "x"}, 0, 0},
        {{.limit = 10, .kind = "selfplay"}, 0, 0},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        AUTO_JSON json_t *page = NULL;
        must(job_list(w->st, &table[i].f, &page, &w->err));
        const json_t *items = json_object_get(page, "items");
        assert_int_equal(json_array_size(items), table[i].n);
        assert_null(json_object_get(page, "next"));
        if (table[i].n)
            assert_int_equal(int_of(json_array_get(items, 0), "id"),
                             table[i].first);
    }
    struct job_filter two = {.limit = 2};
    AUTO_JSON json_t *page = NULL;
    must(job_list(w->st, &two, &page, &w->err));
    assert_string_equal(str_of(page, "next"), "4");
}

static void a_dry_run_says_what_it_would_be_and_leaves_nothing(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    assert_int_equal(claims(w, &a), 0);
    AUTO_FREE char *before = dump(w);
    AUTO_JSON json_t *in = spec_json(NULL), *out = NULL;
    CLEANUP(spec_release) struct spec spec = {0};
    must(spec_parse(in, &spec, &w->err));
    must(dry_run(w->st, &spec, w->now, &out, &w->err));
    assert_string_equal(str_of(out, "signature"), spec.signature);
    assert_int_equal(int_of(out, "steps"), 6);
    assert_true(int_of(out, "parameters") > 0);
    assert_int_equal(json_array_size(json_object_get(out, "workers")), 1);
    AUTO_FREE char *after = dump(w);
    assert_string_equal(before, after);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_submission_waits_for_a_worker_with_its_data_frozen),
        TEST(unknown_data_and_ids_are_refused_with_their_place),
        TEST(an_empty_shard_fails_the_job_by_name),
        TEST(a_job_comes_after_those_that_completed),
        TEST(any_end_will_do_where_that_is_asked_for),
        TEST(a_cancel_takes_those_along_that_wait_for_completion),
        TEST(a_failure_leaves_those_behind_it_waiting),
        TEST(a_long_chain_ends_as_a_short_one_does),
        TEST(what_a_job_needs_of_another_stays_or_is_met),
        TEST(a_job_does_not_begin_before_its_time),
        TEST(what_waits_for_a_time_can_be_canceled_and_tried_again),
        TEST(a_completed_job_keeps_its_policy_but_for_what_stays),
        TEST(an_edit_is_counted_and_can_be_asked_for),
        TEST(the_next_cycle_starts_from_the_end_of_the_one_before),
        TEST(cycles_on_request_wait_run_in_order_and_complete),
        TEST(a_job_says_where_it_stands_in_line),
        TEST(a_patch_changes_policy_and_refuses_semantics),
        TEST(pause_and_resume_keep_the_place),
        TEST(every_request_means_one_thing_in_every_state),
        TEST(a_pause_holds_whatever_becomes_of_the_worker),
        TEST(an_ended_job_is_canceled_retried_or_deleted_as_fits),
        TEST(lists_filter_and_page),
        TEST(a_dry_run_says_what_it_would_be_and_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
