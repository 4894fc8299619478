/* Which worker fits, and what those that wait are told. */
#include "server/match.h"
#include "server/unfit.h"
#include "server_fixture.h"

/* ---- one worker, one wish ---- */

#define LIBRARY "{\"libtorch\": \"1\"}"
#define GPU                                                                    \
    "\"devices\": [{\"kind\": \"cuda\", \"memory_bytes\": 17179869184},"       \
    " {\"kind\": \"cpu\"}], \"memory_bytes\": 68719476736,"                    \
    " \"labels\": {\"gpu\": \"a100\", \"room\": \"b\"}"

/* Does a worker that offers this fit? Its answer in `why`. */
static int fits(struct world *w, const char *want, const char *offer,
                char why[512])
{
    struct worker_claim claim = {0};
    AUTO_JSON json_t *wish = json_of(want);
    AUTO_JSON json_t *body =
        json_fmt("{\"worker\": {\"name\": \"a\", \"pid\": 1, \"cpus\": 4,"
                 " \"library\": %s, %s}, \"claim\": \"c\"}",
                 LIBRARY, offer);
    must(worker_claim_parse(body, &claim, &w->err));
    *why = '\0';
    return match_worker(wish, &claim, why, 512);
}

static void a_worker_says_what_it_lacks(void **state)
{
    struct world *w = *state;
    static const char cpu[] = "\"devices\": [{\"kind\": \"cpu\"}]";
    static const char mps[] =
        "\"devices\": [{\"kind\": \"mps\"}, {\"kind\": \"cpu\"}],"
        " \"memory_bytes\": 34359738368";
    static const struct {
        const char *want, *offer, *why; /* NULL: it fits */
    } cases[] = {
        {"{\"device\": \"auto\"}", cpu, NULL},
        {"{\"device\": \"auto\", \"resources\": null}", cpu, NULL},
        {"{\"device\": \"cuda\"}", cpu, "has no cuda device"},
        {"{\"device\": \"cuda\"}", GPU, NULL},
        /* memory is the device's where that has its own, else the host's */
        {"{\"device\": \"cuda\", \"resources\": {\"memory_mb\": 16384}}", GPU,
         NULL},
        {"{\"device\": \"cuda\", \"resources\": {\"memory_mb\": 16385}}", GPU,
         "has 16384 MB of cuda memory, of 16385 asked for"},
        {"{\"device\": \"cpu\", \"resources\": {\"memory_mb\": 65536}}", GPU,
         NULL},
        {"{\"device\": \"cpu\", \"resources\": {\"memory_mb\": 65537}}", GPU,
         "has 65536 MB of cpu memory, of 65537 asked for"},
        {"{\"device\": \"mps\", \"resources\": {\"memory_mb\": 30000.5}}", mps,
         NULL},
        {"{\"device\": \"cpu\", \"resources\": {\"memory_mb\": 1}}", cpu,
         "does not say how much cpu memory it has"},
        {"{\"device\": \"cuda\", \"resources\": {\"memory_mb\": 1}}",
         "\"devices\": [{\"kind\": \"cuda\"}], \"memory_bytes\": 1099511627776",
         "does not say how much cuda memory it has"},
        /* auto: the first that has it */
        {"{\"device\": \"auto\", \"resources\": {\"memory_mb\": 20000}}", GPU,
         NULL},
        {"{\"device\": \"auto\", \"resources\": {\"memory_mb\": 70000}}", GPU,
         "has 16384 MB of cuda memory, of 70000 asked for"},
        {"{\"device\": \"auto\", \"resources\": {\"labels\": {\"gpu\":"
         " \"a100\"}}}",
         GPU, NULL},
        {"{\"device\": \"auto\", \"resources\": {\"labels\": {\"room\": \"b\","
         " \"gpu\": \"h200\"}}}",
         GPU, "lacks the label gpu=h200 (it has gpu=a100)"},
        {"{\"device\": \"auto\", \"resources\": {\"labels\": {\"x\": \"y\"}}}",
         cpu, "lacks the label x=y"},
        /* a state's fingerprint, where it is required */
        {"{\"device\": \"cpu\", \"threads\": 0, \"micro_batch\": 2, "
         "\"padding\":"
         " null, \"fingerprint\": {\"libtorch\": \"1\", \"device\": \"cpu\","
         " \"threads\": 4, \"micro_batch\": 2, \"padding\": null}}",
         cpu, NULL},
        {"{\"device\": \"cpu\", \"threads\": 2, \"micro_batch\": 2, "
         "\"padding\":"
         " null, \"fingerprint\": {\"libtorch\": \"1\", \"device\": \"cpu\","
         " \"threads\": 4, \"micro_batch\": 2, \"padding\": null}}",
         cpu, "differs: threads: 4 → 2"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char why[512];
        int r = fits(w, cases[i].want, cases[i].offer, why);
        assert_int_equal(r, !cases[i].why);
        assert_string_equal(why, cases[i].why ? cases[i].why : "");
    }
}

static void a_wish_has_words(void **state)
{
    char text[512];
    AUTO_JSON json_t *any = json_of("{\"device\": \"auto\"}");
    AUTO_JSON json_t *much =
        json_of("{\"device\": \"cuda\", \"resources\": {\"memory_mb\": 8192,"
                " \"labels\": {\"gpu\": \"h200\"}}}");
    match_wanted(any, text, sizeof(text));
    assert_string_equal(text, "");
    match_wanted(much, text, sizeof(text));
    assert_string_equal(
        text, " with a cuda device, 8192 MB of memory, the label gpu=h200");
}

static void a_claim_with_bad_labels_is_refused_at_its_place(void **state)
{
    struct world *w = *state;
    static const struct {
        const char *offer, *at;
    } cases[] = {
        {"\"labels\": {\"a\": 1}", "/worker/labels/a"},
        {"\"labels\": {\"\": \"x\"}", "/worker/labels"},
        {"\"labels\": [\"a\"]", "/worker/labels"},
        {"\"memory_bytes\": -1", "/worker/memory_bytes"},
        {"\"memory_bytes\": \"much\"", "/worker/memory_bytes"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct worker_claim claim = {0};
        AUTO_JSON json_t *body =
            json_fmt("{\"worker\": {\"name\": \"a\", \"pid\": 1, \"devices\":"
                     " [{\"kind\": \"cpu\"}], \"library\": {}, %s},"
                     " \"claim\": \"c\"}",
                     cases[i].offer);
        assert_int_equal(worker_claim_parse(body, &claim, &w->err),
                         ERR_INVALID);
        assert_string_equal(w->err.pointer, cases[i].at);
    }
}

/* ---- the queue ---- */

#define CUDA "{\"runtime\": {\"device\": \"cuda\", \"micro_batch\": 2}}"
#define LABEL                                                                  \
    "{\"runtime\": {\"micro_batch\": 2, \"resources\": {\"labels\":"           \
    " {\"gpu\": \"a100\"}}}}"

static void who_fits_is_found_behind_any_number_that_do_not(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    CLEANUP(worker_drop) struct worker gpu = {.name = "gpu", .offer = GPU};
    put_records(w);
    int64_t first = submit(w, CUDA);
    for (int i = 0; i < 600; i++)
        submit(w, i % 2 ? CUDA : LABEL);
    int64_t plain = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.job, plain);
    assert_int_equal(claims(w, &a), 0);
    assert_int_equal(claims(w, &gpu), 1); /* of both needs the oldest */
    assert_int_equal(gpu.job, first);
    assert_string_equal(str_of(gpu.claim, "device"), "cuda");
}

static void nobody_fits_is_said_to_all_and_taken_back(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    CLEANUP(worker_drop) struct worker gpu = {.name = "gpu", .offer = GPU};
    put_records(w);
    int64_t first = submit(w, LABEL), second = submit(w, LABEL);
    expect_job(w, first, "queued", "waits for a worker");
    assert_int_equal(claims(w, &a), 0);
    for (int64_t id = first; id <= second; id++)
        expect_job(w, id, "queued",
                   "waits for a worker with the label gpu=a100: worker a lacks "
                   "the label gpu=a100");
    int64_t third = submit(w, LABEL); /* knows at once */
    expect_job(w, third, "queued", "with the label gpu=a100");
    /* said once: nothing changes while nothing does */
    AUTO_JSON json_t *before = job(w, third);
    must(unfit_tell(w->st, w->now, &w->err));
    AUTO_JSON json_t *after = job(w, third);
    assert_int_equal(int_of(before, "version"), int_of(after, "version"));

    assert_int_equal(claims(w, &gpu), 1);
    must(unfit_tell(w->st, w->now, &w->err));
    for (int64_t id = second; id <= third; id++) {
        AUTO_JSON json_t *j = job(w, id);
        assert_string_equal(str_of(j, "reason"), "waits for a worker");
    }
    /* it is gone, and no other came in its place */
    must(saves(w, &gpu, 2, YIELD_STEPS, NULL));
    w->now += 16000;
    assert_int_equal(claims(w, &a), 0);
    expect_job(w, first, "queued",
               "yielded at step 2 (steps); waits for a worker with the label "
               "gpu=a100: worker a lacks");
}

static void what_is_asked_for_can_change(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop)
    struct worker a = {.name = "a",
                       .offer = "\"devices\": [{\"kind\": \"cpu\"}],"
                                " \"memory_bytes\": 1073741824"};
    AUTO_JSON json_t *less = json_of("{\"runtime\": {\"resources\":"
                                     " {\"memory_mb\": 1024}}}");
    put_records(w);
    int64_t id = submit(w, "{\"runtime\": {\"micro_batch\": 2, \"resources\":"
                           " {\"memory_mb\": 2048}}}");
    assert_int_equal(claims(w, &a), 0);
    expect_job(w, id, "queued",
               "with 2048 MB of memory: worker a has 1024 MB of cpu memory, of "
               "2048 asked for");
    must(job_patch(w->st, id, less, w->now, &w->err));
    expect_job(w, id, "queued", "waits for a worker");
    assert_int_equal(claims(w, &a), 1);
    /* asked for anew while it trains: nothing for this lease to heed */
    AUTO_JSON json_t *more = json_of("{\"runtime\": {\"resources\":"
                                     " {\"memory_mb\": 4096}}}");
    AUTO_JSON json_t *answer = NULL;
    must(job_patch(w->st, id, more, w->now, &w->err));
    must(beats(w, &a, NULL, &answer));
    assert_string_equal(str_of(answer, "do"), "continue");
    must(saves(w, &a, 1, YIELD_STEPS, NULL));
    assert_int_equal(claims(w, &a), 0);
}

static void the_servers_own_workers_last_words_are_told(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL);
    must(unfit_workers(w->st,
                       "the server's workers end at once: the last one"
                       " exited with 2 by itself: no such probe",
                       &w->err));
    must(unfit_tell(w->st, w->now, &w->err));
    expect_job(w, id, "queued",
               "waits for a worker with a cpu device: none is there, for the "
               "server's workers end at once: the last one exited with 2 by "
               "itself: no such probe");
    assert_int_equal(claims(w, &a), 1); /* one that does not */
    int64_t other = submit(w, NULL);
    must(unfit_tell(w->st, w->now, &w->err));
    AUTO_JSON json_t *j = job(w, other);
    assert_string_equal(str_of(j, "reason"), "waits for a worker");
}

static void a_required_fingerprint_is_a_need_of_its_own(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"}, c = {.name = "c"};
    CLEANUP(worker_drop)
    struct worker b = {.name = "b", .library = "{\"libtorch\": \"2\"}"};
    static const char exact[] =
        "{\"runtime\": {\"exact\": \"require\", \"micro_batch\": 2,"
        " \"threads\": 1}}";
    put_records(w);
    submit(w, exact);
    submit(w, exact);
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(claims(w, &c), 1);
    must(saves(w, &a, 1, YIELD_STEPS, NULL));
    must(saves(w, &c, 1, YIELD_STEPS, NULL));
    int64_t fresh = submit(w, exact);
    assert_int_equal(claims(w, &b), 1);
    assert_int_equal(b.job, fresh);
    assert_int_equal(claims(w, &b), 0);
    w->now += 16000;
    assert_int_equal(claims(w, &b), 0);
    expect_job(w, 1, "queued",
               "waits for a worker with the fingerprint of its state "
               "(\"exact\": \"require\"): worker b differs: libtorch: 1 → 2");
    expect_job(w, 2, "queued", "worker b differs: libtorch: 1 → 2");
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.job, 1);
}

static void a_drained_worker_gets_nothing_and_may_go(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    assert_int_equal(claims(w, &a), 0);
    AUTO_JSON json_t *row = NULL, *list = NULL;
    must(worker_list(w->st, 0, 10, w->now, &list, &w->err));
    must(worker_drain(
        w->st, int_of(json_array_get(json_object_get(list, "items"), 0), "id"),
        w->now, &row, &w->err));
    int64_t id = submit(w, CUDA);
    assert_int_equal(worker_claims(w, &a), ERR_STALE);
    assert_non_null(strstr(w->err.text, "drained"));
    must(unfit_tell(w->st, w->now, &w->err)); /* nor is it counted with */
    AUTO_JSON json_t *j = job(w, id);
    assert_string_equal(str_of(j, "reason"), "waits for a worker");
    submit(w, NULL);
    assert_int_equal(claims(w, &a), 1); /* the next process is another */
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_worker_says_what_it_lacks),
        TEST(a_wish_has_words),
        TEST(a_claim_with_bad_labels_is_refused_at_its_place),
        TEST(who_fits_is_found_behind_any_number_that_do_not),
        TEST(nobody_fits_is_said_to_all_and_taken_back),
        TEST(what_is_asked_for_can_change),
        TEST(the_servers_own_workers_last_words_are_told),
        TEST(a_required_fingerprint_is_a_need_of_its_own),
        TEST(a_drained_worker_gets_nothing_and_may_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
