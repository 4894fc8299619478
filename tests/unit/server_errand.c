/* Errands: in order, once per key, stopped when asked. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "server/errand.h"

/* What ran, in order; a gate that those that run wait at. */
struct trace {
    pthread_mutex_t mutex;
    pthread_cond_t moved;
    char ran[256];
    int open, under_way, ended, freed, notices;
};

static struct trace t;

struct job {
    const char *name;
    int result;
    bool until_stopped;
};

static void moved(int *count)
{
    pthread_mutex_lock(&t.mutex);
    ++*count;
    pthread_cond_broadcast(&t.moved);
    pthread_mutex_unlock(&t.mutex);
}

static void await(const int *count, int n)
{
    pthread_mutex_lock(&t.mutex);
    while (*count < n)
        pthread_cond_wait(&t.moved, &t.mutex);
    pthread_mutex_unlock(&t.mutex);
}

static int run(struct errand *e, void *arg, struct err *err)
{
    struct job *j = arg;
    errand_progress(e, 3, 8);
    moved(&t.under_way);
    while (j->until_stopped && !errand_stopped(e))
        ;
    pthread_mutex_lock(&t.mutex);
    while (!t.open && !j->until_stopped)
        pthread_cond_wait(&t.moved, &t.mutex);
    strcat(t.ran, j->name);
    pthread_mutex_unlock(&t.mutex);
    if (j->result < 0)
        return err_set(err, j->result, "%s broke", j->name);
    return j->result;
}

static void freed(void *arg)
{
    free(arg);
    moved(&t.freed);
}

static void notice(void *arg)
{
    moved(&t.notices);
}

static int begin(struct errands *es, enum errand_line line, const char *key,
                 struct job job)
{
    struct err err;
    struct job *j = malloc(sizeof(*j));
    *j = job;
    return errands_begin(es, line, key, run, j, freed, &err);
}

static int setup(void **state)
{
    struct err err;
    struct errands *es = NULL;
    memset(&t, 0, sizeof(t));
    pthread_mutex_init(&t.mutex, NULL);
    pthread_cond_init(&t.moved, NULL);
    assert_int_equal(errands_new(NULL, notice, NULL, &es, &err), 0);
    *state = es;
    return 0;
}

static int teardown(void **state)
{
    return 0;
}

static void one_after_the_other_and_once_for_each_key(void **state)
{
    struct errands *es = *state;
    struct errand_view v;
    assert_int_equal(begin(es, ERRAND_FREEZE, "a", (struct job){.name = "a"}),
                     1);
    await(&t.under_way, 1);
    assert_int_equal(begin(es, ERRAND_FREEZE, "b", (struct job){.name = "b"}),
                     1);
    assert_int_equal(begin(es, ERRAND_FREEZE, "c", (struct job){.name = "c"}),
                     1);
    assert_int_equal(begin(es, ERRAND_FREEZE, "a", (struct job){.name = "x"}),
                     0);
    assert_int_equal(begin(es, ERRAND_LOOK, "b", (struct job){.name = "x"}), 0);
    await(&t.freed, 2); /* what was not begun is let go of at once */
    assert_int_equal(errands_look(es, "a", &v), ERRAND_RUNS);
    assert_int_equal(v.done, 3);
    assert_int_equal(v.all, 8);
    assert_int_equal(errands_look(es, "b", &v), ERRAND_WAITS);
    assert_int_equal(errands_look(es, "d", &v), ERRAND_NONE);
    moved(&t.open);
    await(&t.notices, 3);
    assert_string_equal(t.ran, "abc");
    assert_int_equal(errands_look(es, "a", NULL), ERRAND_NONE);
    errands_free(es);
    assert_int_equal(t.freed, 5);
}

static void who_only_looks_holds_up_no_job(void **state)
{
    struct errands *es = *state;
    begin(es, ERRAND_LOOK, "look", (struct job){.name = "l"});
    await(&t.under_way, 1);
    begin(es, ERRAND_FREEZE, "freeze",
          (struct job){.name = "f", .until_stopped = true});
    await(&t.under_way, 2); /* though the other one has not ended */
    errands_cancel(es, "freeze");
    await(&t.notices, 1);
    assert_string_equal(t.ran, "f");
    moved(&t.open);
    await(&t.notices, 2);
    errands_free(es);
}

static void a_failure_is_told_until_it_is_begun_anew(void **state)
{
    struct errands *es = *state;
    struct errand_view v;
    moved(&t.open);
    begin(es, ERRAND_LOOK, "a", (struct job){.name = "a", .result = ERR_IO});
    await(&t.notices, 1);
    assert_int_equal(errands_look(es, "a", &v), ERRAND_FAILED);
    assert_int_equal(v.err.code, ERR_IO);
    assert_string_equal(v.err.text, "a broke");
    begin(es, ERRAND_LOOK, "a", (struct job){.name = "a"});
    await(&t.notices, 2);
    assert_int_equal(errands_look(es, "a", &v), ERRAND_NONE);
    /* of many failures the first are forgotten, not the last */
    for (int i = 0; i < 100; i++) {
        char key[16];
        snprintf(key, sizeof(key), "k%d", i);
        t.ran[0] = 0;
        begin(es, ERRAND_LOOK, key,
              (struct job){.name = "k", .result = ERR_DATA});
        await(&t.notices, 3 + i);
    }
    assert_int_equal(errands_look(es, "k0", &v), ERRAND_NONE);
    assert_int_equal(errands_look(es, "k99", &v), ERRAND_FAILED);
    errands_free(es);
}

static void one_that_waits_can_be_dropped(void **state)
{
    struct errands *es = *state;
    begin(es, ERRAND_FREEZE, "a", (struct job){.name = "a"});
    await(&t.under_way, 1);
    begin(es, ERRAND_FREEZE, "b", (struct job){.name = "b"});
    begin(es, ERRAND_FREEZE, "c", (struct job){.name = "c"});
    errands_cancel(es, "c");
    begin(es, ERRAND_FREEZE, "d", (struct job){.name = "d"});
    errands_cancel(es, "b");
    await(&t.freed, 2);
    moved(&t.open);
    await(&t.notices, 4);
    assert_string_equal(t.ran, "ad");
    errands_free(es);
    assert_int_equal(t.freed, 4);
}

static void one_that_was_asked_to_stop_may_be_begun_anew(void **state)
{
    struct errands *es = *state;
    begin(es, ERRAND_FREEZE, "a",
          (struct job){.name = "a", .until_stopped = true});
    await(&t.under_way, 1);
    moved(&t.open);
    errands_cancel(es, "a");
    assert_int_equal(begin(es, ERRAND_FREEZE, "a", (struct job){.name = "n"}),
                     1);
    await(&t.notices, 2);
    assert_string_equal(t.ran, "an");
    errands_free(es);
}

static void the_end_waits_for_what_runs_and_drops_the_rest(void **state)
{
    struct errands *es = *state;
    struct job forever = {
        .name = "a", .result = ERR_BUSY, .until_stopped = true};
    begin(es, ERRAND_FREEZE, "a", forever);
    begin(es, ERRAND_LOOK, "b", forever);
    await(&t.under_way, 2);
    begin(es, ERRAND_FREEZE, "c", (struct job){.name = "c"});
    errands_free(es);
    assert_string_equal(t.ran, "aa");
    assert_int_equal(t.freed, 3);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(one_after_the_other_and_once_for_each_key),
        TEST(who_only_looks_holds_up_no_job),
        TEST(a_failure_is_told_until_it_is_begun_anew),
        TEST(one_that_waits_can_be_dropped),
        TEST(one_that_was_asked_to_stop_may_be_begun_anew),
        TEST(the_end_waits_for_what_runs_and_drops_the_rest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
