/* The memory policy: thresholds, baselines, the fake probe. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <cmocka.h>
#include "worker/memory.h"

/* The probes ask a trainer; here there is none. */
void trainer_memory(struct trainer *t, int64_t *ret_allocated,
                    int64_t *ret_driver, int64_t *ret_recommended)
{
    *ret_allocated = *ret_driver = *ret_recommended = -1;
}

void trainer_empty_cache(struct trainer *t)
{
}

static int64_t mb(double n)
{
    return (int64_t)(n * MB);
}

static struct runtime_policy defaults(void)
{
    struct runtime_policy p = {.empty_cache_every = -1};
    p.restart.device_memory_mb = p.restart.rss_mb = p.restart.seconds = -1;
    p.restart.every_micro_batches = -1;
    return p;
}

static void defaults_are_the_devices_own(void **state)
{
    struct runtime_policy p = defaults();
    struct thresholds t;
    thresholds_resolve(&p, "mps", mb(10000), &t);
    assert_true(t.device_memory_mb == 8500);
    assert_int_equal(t.every_micro_batches, 3000);
    assert_int_equal(t.empty_cache_every, 50);
    assert_true(t.rss_mb == 0 && t.seconds == 0);
    static const char *const others[] = {"cpu", "cuda"};
    for (int i = 0; i < 2; i++) {
        thresholds_resolve(&p, others[i], mb(10000), &t);
        assert_true(t.device_memory_mb == 0 && t.every_micro_batches == 0);
        assert_int_equal(t.empty_cache_every, 0);
    }
    p.restart.device_memory_mb = 0; /* said: off */
    p.restart.every_micro_batches = 7;
    thresholds_resolve(&p, "mps", mb(10000), &t);
    assert_true(t.device_memory_mb == 0);
    assert_int_equal(t.every_micro_batches, 7);
}

static void each_threshold_yields_with_its_reason_and_numbers(void **state)
{
    static const struct {
        struct thresholds t;
        double device, rss; /* MB; -1: not known */
        struct lease_use use;
        enum yield_reason reason;
        const char *says;
    } cases[] = {
        {{.device_memory_mb = 2048}, 2047, 9999, {0}, YIELD_NONE, ""},
        {{.device_memory_mb = 2048},
         2112,
         100,
         {0},
         YIELD_MEMORY,
         "device_memory_mb is 2048 and the device holds 2112 MB"},
        {{.device_memory_mb = 2048}, -1, 9999, {0}, YIELD_NONE, ""},
        {{.rss_mb = 600},
         9999,
         601,
         {0},
         YIELD_MEMORY,
         "rss_mb is 600 and the process holds 601 MB"},
        {{.every_micro_batches = 28},
         0,
         0,
         {.micro_batches = 27},
         YIELD_NONE,
         ""},
        {{.every_micro_batches = 28},
         0,
         0,
         {.micro_batches = 28},
         YIELD_STEPS,
         "every_micro_batches is 28 and the lease made 28"},
        {{.seconds = 1.5},
         0,
         0,
         {.seconds = 1.6},
         YIELD_TIME,
         "seconds is 1.5 and the lease took 1.6"},
        {{.seconds = 0}, 1e6, 1e6, {1 << 30, 1e9}, YIELD_NONE, ""},
        /* memory is named first when several are reached */
        {{.device_memory_mb = 1, .every_micro_batches = 1},
         2,
         2,
         {.micro_batches = 2},
         YIELD_MEMORY,
         "device_memory_mb is 1 and the device holds 2 MB"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct memory_sample s = {.device = mb(cases[i].device),
                                  .rss = mb(cases[i].rss)};
        if (cases[i].device < 0)
            s.device = -1;
        char detail[256];
        assert_int_equal(thresholds_check(&cases[i].t, &s, &cases[i].use,
                                          detail, sizeof detail),
                         cases[i].reason);
        assert_string_equal(detail, cases[i].says);
    }
    assert_string_equal(yield_word(YIELD_MEMORY), "memory");
    assert_string_equal(yield_word(YIELD_STEPS), "steps");
    assert_string_equal(yield_word(YIELD_TIME), "time");
}

static void a_threshold_below_a_fresh_process_names_both_numbers(void **state)
{
    struct thresholds t = {.device_memory_mb = 500, .rss_mb = 400};
    struct memory_sample s = {.device = mb(900), .rss = mb(300)};
    struct err err = {0};
    assert_int_equal(thresholds_baseline(&t, &s, "after load", &err),
                     ERR_INVALID);
    assert_non_null(strstr(err.text, "500 MB"));
    assert_non_null(strstr(err.text, "900 MB"));
    assert_non_null(strstr(err.text, "after load"));
    assert_string_equal(err.pointer, "/runtime/restart/device_memory_mb");
    s.device = mb(450);
    assert_int_equal(thresholds_baseline(&t, &s, "after load", &err), 0);
    s.rss = mb(401);
    assert_int_equal(thresholds_baseline(&t, &s, "after load", &err),
                     ERR_INVALID);
    assert_string_equal(err.pointer, "/runtime/restart/rss_mb");
    t = (struct thresholds){.every_micro_batches = 1, .seconds = 0.001};
    assert_int_equal(thresholds_baseline(&t, &s, "after load", &err), 0);
}

static void the_fake_device_grows_as_it_is_told(void **state)
{
    struct memory_fake f;
    struct err err = {0};
    assert_int_equal(
        memory_fake_parse("fake:start_mb=900,per_shape_mb=64,per_step_mb=2,"
                          "recommended_mb=25559,cache_mb=100",
                          &f, &err),
        0);
    assert_true(f.on);
    assert_true(f.level == mb(900) && f.recommended == mb(25559));
    for (int i = 0; i < 3; i++)
        memory_fake_shape(&f);
    memory_fake_step(&f);
    assert_true(f.level == mb(900 + 3 * 64 + 2));
    memory_fake_empty_cache(&f);
    assert_true(f.level == mb(994));
    memory_fake_empty_cache(&f); /* never below what it began with */
    assert_true(f.level == mb(900));
    assert_int_equal(memory_fake_parse("fake:start_mb=0.5", &f, &err), 0);
    memory_fake_shape(&f);
    memory_fake_empty_cache(&f);
    assert_true(f.level == mb(0.5)); /* nothing is given back unless said */
    assert_int_equal(memory_fake_parse(NULL, &f, &err), 0);
    assert_false(f.on);
    assert_int_equal(memory_fake_parse("", &f, &err), 0);
    assert_false(f.on);
}

static void a_probe_that_makes_no_sense_is_refused(void **state)
{
    static const char *const bad[] = {
        "real",
        "fake:start=1",
        "fake:start_mb",
        "fake:start_mb=",
        "fake:start_mb=x",
        "fake:start_mb=-1",
        "fake:start_mb=1;per_step_mb=2",
        "fake:start_mb=nan",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct memory_fake f;
        struct err err = {0};
        assert_int_equal(memory_fake_parse(bad[i], &f, &err), ERR_INVALID);
        assert_non_null(strstr(err.text, "PAWL_MEMORY_PROBE"));
        assert_false(f.on);
    }
}

static void a_sample_shows_only_what_was_measured(void **state)
{
    struct memory m;
    struct err err = {0};
    unsetenv("PAWL_MEMORY_PROBE");
    assert_int_equal(memory_init(&m, "cuda", &err), 0);
    struct memory_sample s;
    memory_sample(&m, NULL, &s);
    assert_true(s.rss > mb(1) && s.device == -1 && s.allocated == -1);
    json_t *o = memory_sample_json(&s);
    assert_null(json_object_get(o, "device_bytes"));
    assert_non_null(json_object_get(o, "rss_bytes"));
    json_decref(o);
    assert_int_equal(memory_init(&m, "cpu", &err), 0);
    memory_sample(&m, NULL, &s);
    assert_true(s.device == s.rss); /* on the CPU the process is the device */
    setenv("PAWL_MEMORY_PROBE", "fake:start_mb=900", 1);
    assert_int_equal(memory_init(&m, "cpu", &err), 0);
    assert_string_equal(m.device, "mps");
    memory_sample(&m, NULL, &s);
    assert_true(s.device == mb(900));
    unsetenv("PAWL_MEMORY_PROBE");
}

static bool allows(const char *probe, double rss_mb, double want_mb, char *why)
{
    struct memory m;
    struct err err = {0};
    struct thresholds t = {.rss_mb = rss_mb};
    setenv("PAWL_MEMORY_PROBE", probe, 1);
    assert_int_equal(memory_init(&m, "cpu", &err), 0);
    unsetenv("PAWL_MEMORY_PROBE");
    return memory_allows(&m, &t, mb(want_mb), why, 256);
}

static void
a_copy_is_allowed_where_system_limits_and_threshold_leave_room(void **state)
{
    char why[256];
    struct memory_sample s;
    memory_host(&s);
    double rss = (double)s.rss / MB;
    /* an eighth and 64 MB beside it: 9 + 64 for 8 */
    assert_true(allows("fake:available_mb=74", 0, 8, why));
    assert_string_equal(why, "");
    assert_false(allows("fake:available_mb=72", 0, 8, why));
    assert_non_null(strstr(why, "wants 73 MB"));
    assert_non_null(strstr(why, "the system has 72 MB"));
    /* it must not bring on the threshold that it counts towards */
    assert_true(allows("fake:available_mb=1000", rss + 80, 8, why));
    assert_false(allows("fake:available_mb=1000", rss + 40, 8, why));
    assert_non_null(strstr(why, "restart.rss_mb leaves"));
    assert_false(allows("fake:available_mb=1000", 1, 8, why));
    assert_non_null(strstr(why, "leaves 0 MB"));
#ifdef __linux__
    struct rlimit was, now;
    assert_int_equal(getrlimit(RLIMIT_AS, &was), 0);
    long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_int_equal(fscanf(f, "%lld", &pages), 1);
    fclose(f);
    now = was;
    now.rlim_cur = (rlim_t)(pages * sysconf(_SC_PAGESIZE)) + (rlim_t)mb(90);
    assert_int_equal(setrlimit(RLIMIT_AS, &now), 0);
    bool small = allows("fake:available_mb=1000", 0, 8, why);
    bool large = allows("fake:available_mb=1000", 0, 100, why);
    assert_int_equal(setrlimit(RLIMIT_AS, &was), 0);
    assert_true(small);
    assert_false(large);
    assert_non_null(strstr(why, "this process's limits leave"));
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_the_devices_own),
        cmocka_unit_test(each_threshold_yields_with_its_reason_and_numbers),
        cmocka_unit_test(a_threshold_below_a_fresh_process_names_both_numbers),
        cmocka_unit_test(the_fake_device_grows_as_it_is_told),
        cmocka_unit_test(a_probe_that_makes_no_sense_is_refused),
        cmocka_unit_test(a_sample_shows_only_what_was_measured),
        cmocka_unit_test(
            a_copy_is_allowed_where_system_limits_and_threshold_leave_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
