/* Whose turn it is. */
#include <math.h>
#include <time.h>
#include "server/options.h"
#include "server/owner.h"
#include "server_fixture.h"

#define AGE_MS ((int64_t)OPTIONS_AGE_S * 1000)
#define HOUR_MS ((int64_t)3600 * 1000)

static int owner_setup(void **state)
{
    owner_policy = (struct owner_policy){.age_ms = AGE_MS};
    return setup(state);
}

static int64_t submit_of(struct world *w, const char *owner, int priority)
{
    char more[160];
    snprintf(more, sizeof(more),
             "{\"priority\": %d, \"labels\": {\"owner\": \"%s\"}}", priority,
             owner);
    return submit(w, more);
}

/* Who is served: the owner's label of the job that a new process gets. */
static void expect_owner(struct world *w, struct worker *k, const char *owner)
{
    assert_int_equal(claims(w, k), 1);
    AUTO_JSON json_t *j = job(w, k->job);
    assert_string_equal(str_of(json_object_get(j, "labels"), "owner"), owner);
}

/* It trains for so long, and is done. */
static void trains(struct world *w, struct worker *k, int64_t ms)
{
    w->now += ms;
    w->mono += 1000;
    must(beats(w, k, NULL, NULL));
    must(saves(w, k, 6, FINISHED, NULL));
}

static void use_counts_half_after_a_day(void **state)
{
    int64_t day = 24 * HOUR_MS;
    assert_true(fabs(owner_use(1000, 0, day) - 500) < 1e-9);
    assert_true(fabs(owner_use(1000, 0, 3 * day) - 125) < 1e-9);
    assert_true(owner_use(1000, 0, -5) == 1000);
    /* one that runs adds what it takes, at first to the full */
    double second = owner_use(0, 1, 1000);
    assert_true(second > 999.9 && second <= 1000);
    assert_true(fabs(owner_use(0, 4, 1000) - 4 * second) < 1e-6);
    /* in two parts it is the same as in one */
    double once = owner_use(7e6, 3, 5 * HOUR_MS);
    double twice = owner_use(owner_use(7e6, 3, 2 * HOUR_MS), 3, 3 * HOUR_MS);
    assert_true(fabs(once - twice) < 1e-3);
    /* and never more than it can be, however long it runs */
    assert_true(owner_use(0, 1, 1000 * day) < 1.45 * (double)day);
}

static void of_equal_priority_who_used_least_is_served(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"}, b = {.name = "b"};
    put_records(w);
    for (int i = 0; i < 4; i++)
        submit_of(w, "ann", 0);
    for (int i = 0; i < 4; i++)
        submit_of(w, "bob", 0);
    expect_owner(w, &a, "ann"); /* nobody used anything: the longest wait */
    expect_owner(w, &b, "bob"); /* hers runs, and counts already */
    trains(w, &a, 60000);
    must(saves(w, &b, 6, FINISHED, NULL));
    expect_owner(w, &a, "ann");
    trains(w, &a, 1000);
    expect_owner(w, &b, "bob"); /* 60 s against 61 */
    trains(w, &b, 30000);
    expect_owner(w, &a, "ann");
}

static void a_larger_share_gets_as_much_more(void **state)
{
    struct world *w = *state;
    static const struct share shares[] = {{(char *)"ann", 3}};
    owner_policy.shares = shares;
    owner_policy.n_shares = 1;
    owner_policy.age_ms = 1000 * AGE_MS; /* shares alone */
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    int of_ann = 0;
    put_records(w);
    for (int i = 0; i < 32; i++) {
        submit_of(w, "ann", 0);
        submit_of(w, "bob", 0);
    }
    for (int i = 0; i < 32; i++) {
        assert_int_equal(claims(w, &a), 1);
        AUTO_JSON json_t *j = job(w, a.job);
        of_ann += !strcmp(str_of(json_object_get(j, "labels"), "owner"), "ann");
        trains(w, &a, 10000);
    }
    assert_in_range(of_ann, 23, 25);
}

static void yesterday_counts_less_than_today(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    submit_of(w, "ann", 0);
    expect_owner(w, &a, "ann");
    trains(w, &a, 3 * HOUR_MS);
    w->now += 48 * HOUR_MS; /* 3 h are 0.75 h by now */
    submit_of(w, "bob", 0);
    expect_owner(w, &a, "bob");
    trains(w, &a, HOUR_MS);
    submit_of(w, "bob", 0);
    submit_of(w, "ann", 0);
    expect_owner(w, &a, "ann");
}

static void
a_lost_lease_stops_counting_and_counts_again_when_it_is_back(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"}, b = {.name = "b"};
    owner_policy.age_ms = 1000 * AGE_MS; /* shares alone */
    put_records(w);
    submit_of(w, "ann", 0);
    submit_of(w, "bob", 0);
    submit_of(w, "bob", 0);
    expect_owner(w, &a, "ann");
    expect_owner(w, &b, "bob");
    w->now += 10000;
    w->mono += 31000;
    must(beats(w, &b, NULL, NULL));
    must(lease_tick(w->st, w->now, w->mono, &w->err)); /* a is lost */
    w->now += 5000;
    must(beats(w, &a, NULL, NULL)); /* and comes back: 10 s, not 15 */
    w->now += 1000;
    CLEANUP(worker_drop) struct worker c = {.name = "c"};
    submit_of(w, "ann", 0);
    expect_owner(w, &c, "ann"); /* 11 s against bob's 16 */
    /* a restarted server counts what runs, neither twice nor never */
    world_close(w);
    world_open(w);
    must(lease_listening(w->st, w->mono, &w->err));
    must(saves(w, &a, 6, FINISHED, NULL));
    must(saves(w, &c, 6, FINISHED, NULL));
    must(saves(w, &b, 6, FINISHED, NULL));
    w->now += 24 * HOUR_MS; /* if one still ran that would show */
    submit_of(w, "ann", 0);
    expect_owner(w, &a, "ann");
}

static void who_waits_an_age_goes_before_a_priority_more(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t low = submit(w, "{\"priority\": 0}");
    int64_t first = submit(w, "{\"priority\": 2}");
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.job, first);
    must(saves(w, &a, 6, FINISHED, NULL));
    w->now += 2 * AGE_MS - 1;
    int64_t second = submit(w, "{\"priority\": 2}");
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.job, second);
    must(saves(w, &a, 6, FINISHED, NULL));
    submit(w, "{\"priority\": 2}");
    w->now += 1; /* two whole ages: as high, and it waits longer */
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.job, low);
}

/* The bound that the documentation gives, against the worst there is: a higher
 * priority whose queue never gets empty, and an owner who used less. */
static void nothing_starves(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    static const struct share shares[] = {{(char *)"rich", 1000}};
    owner_policy.shares = shares;
    owner_policy.n_shares = 1;
    put_records(w);
    submit_of(w, "poor", 0); /* used much, for its share */
    expect_owner(w, &a, "poor");
    trains(w, &a, 100000);
    int64_t poor = submit_of(w, "poor", -3), since = w->now;
    for (;;) {
        submit_of(w, "rich", 5);
        assert_int_equal(claims(w, &a), 1);
        if (a.job == poor)
            break;
        trains(w, &a, 60000);
        assert_true(w->now - since <= (8 + 1) * AGE_MS + 60000);
    }
    assert_true(w->now - since > 8 * AGE_MS);
}

static void
a_yield_goes_first_in_its_group_and_the_group_has_been_served(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    submit_of(w, "ann", 0);
    int64_t young = submit_of(w, "ann", 0);
    CLEANUP(worker_drop) struct worker b = {.name = "b"};
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(claims(w, &b), 1);
    assert_int_equal(b.job, young);
    must(releases(w, &a, FAILED("torch", "false")));
    must(saves(w, &b, 1, YIELD_STEPS, NULL));
    assert_int_equal(claims(w, &b), 1);
    assert_int_equal(b.job, young);
}

static void a_changed_owner_takes_job_and_use_along(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"}, b = {.name = "b"};
    AUTO_JSON json_t *to_bob = json_of("{\"labels\": {\"owner\": \"bob\"}}");
    put_records(w);
    int64_t moved = submit_of(w, "ann", 0);
    submit_of(w, "ann", 0);
    submit_of(w, "bob", 0);
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.job, moved);
    must(job_patch(w->st, moved, to_bob, w->now, &w->err));
    w->now += 60000; /* on bob's account */
    expect_owner(w, &b, "ann");
}

static void a_retried_job_stands_where_it_was_patched_to(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    AUTO_JSON json_t *urgent = json_of("{\"priority\": 9}");
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    must(releases(w, &a, FAILED("data", "true")));
    expect_job(w, id, "failed", NULL);
    must(job_patch(w->st, id, urgent, w->now, &w->err));
    submit(w, "{\"priority\": 8}");
    must(job_retry(w->st, id, w->now, &w->err));
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.job, id);
}

static void who_is_paused_holds_no_place(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t paused = submit(w, "{\"priority\": 5}");
    int64_t other = submit(w, NULL);
    must(job_pause(w->st, paused, w->now, &w->err));
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.job, other);
    assert_int_equal(claims(w, &a), 0);
    must(job_resume(w->st, paused, w->now, &w->err));
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.job, paused);
}

static void a_wall_clock_set_back_keeps_nobody_waiting(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t low = submit(w, "{\"priority\": 0}");
    submit(w, "{\"priority\": 1}");
    assert_int_equal(claims(w, &a), 1);
    must(saves(w, &a, 6, FINISHED, NULL));
    w->now -= 300 * HOUR_MS;
    submit(w, "{\"priority\": 1}");
    assert_int_equal(claims(w, &a), 1); /* sees that, and counts from here */
    must(saves(w, &a, 6, FINISHED, NULL));
    w->now += AGE_MS;
    submit(w, "{\"priority\": 1}");
    assert_int_equal(claims(w, &a), 1);
    assert_int_equal(a.job, low);
}

static double ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* What keeps a claim fast is the count of rows it looks at: time with ten
 * thousand in front of it must be about that with ten. */
static double claim_takes(struct world *w, int n, struct worker *k)
{
    static int made;
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    must(txn_begin(&txn, w->st, &w->err));
    for (; made < n; made++)
        submit(w, "{\"runtime\": {\"device\": \"cuda\"}, \"priority\": 1}");
    double best = 1e9;
    for (int i = 0; i < 20; i++) {
        int64_t id = submit(w, NULL);
        double from = ms();
        assert_int_equal(claims(w, k), 1);
        double took = ms() - from;
        best = took < best ? took : best;
        assert_int_equal(k->job, id);
        must(releases(w, k, FAILED("data", "true")));
    }
    must(txn_commit(&txn, &w->err));
    return best;
}

static void ten_thousand_that_do_not_fit_cost_a_claim_nothing(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    double few = claim_takes(w, 10, &a), many = claim_takes(w, 10000, &a);
    print_message("a claim: %.3f ms behind 10, %.3f ms behind 10,000\n", few,
                  many);
    assert_true(many < 3 * few + 1);
}

/* Each owner is a group of its own: that many seeks. */
static void a_thousand_owners_are_looked_through_in_a_moment(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    {
        CLEANUP(txn_end) struct txn txn = TXN_INIT;
        must(txn_begin(&txn, w->st, &w->err));
        for (int i = 0; i < 3000; i++) {
            char owner[16];
            snprintf(owner, sizeof(owner), "o%d", i % 1000);
            submit_of(w, owner, 0);
        }
        must(txn_commit(&txn, &w->err));
    }
    double best = 1e9;
    for (int i = 0; i < 20; i++) {
        double from = ms();
        assert_int_equal(claims(w, &a), 1);
        double took = ms() - from;
        best = took < best ? took : best;
        must(saves(w, &a, 6, FINISHED, NULL));
        w->now += 1000;
    }
    print_message("a claim among 1,000 owners: %.2f ms\n", best);
    assert_true(best < 50);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, owner_setup, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(use_counts_half_after_a_day),
        TEST(of_equal_priority_who_used_least_is_served),
        TEST(a_larger_share_gets_as_much_more),
        TEST(yesterday_counts_less_than_today),
        TEST(a_lost_lease_stops_counting_and_counts_again_when_it_is_back),
        TEST(who_waits_an_age_goes_before_a_priority_more),
        TEST(nothing_starves),
        TEST(a_yield_goes_first_in_its_group_and_the_group_has_been_served),
        TEST(a_changed_owner_takes_job_and_use_along),
        TEST(a_retried_job_stands_where_it_was_patched_to),
        TEST(who_is_paused_holds_no_place),
        TEST(a_wall_clock_set_back_keeps_nobody_waiting),
        TEST(ten_thousand_that_do_not_fit_cost_a_claim_nothing),
        TEST(a_thousand_owners_are_looked_through_in_a_moment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
