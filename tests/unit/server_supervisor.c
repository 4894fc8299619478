/* How a worker ended, in words. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>
#include "server/supervisor.h"

static void one_three_seven_is_no_proof_of_anything(void **state)
{
    struct death by_hand = {
        .kind = DEATH_SIGNAL, .signal = SIGKILL, .code = -1};
    struct death by_itself = {.kind = DEATH_EXIT, .code = 137, .signal = -1};
    struct death by_kernel = {.kind = DEATH_SIGNAL,
                              .signal = SIGKILL,
                              .code = -1,
                              .oom_confirmed = true};
    death_judge(&by_hand);
    death_judge(&by_itself);
    death_judge(&by_kernel);
    assert_non_null(
        strstr(by_hand.verdict, "killed by signal 9, cause unknown"));
    assert_non_null(strstr(by_itself.verdict, "exited with 137 by itself"));
    assert_non_null(strstr(by_kernel.verdict, "confirmed out-of-memory kill"));
}

static void a_crash_names_its_signal(void **state)
{
    struct death d = {.kind = DEATH_SIGNAL, .signal = SIGSEGV, .code = -1};
    death_judge(&d);
    assert_non_null(strstr(d.verdict, "killed by signal 11 ("));
}

static void an_adopted_worker_took_its_status_along(void **state)
{
    struct death d = {.kind = DEATH_UNKNOWN, .code = -1, .signal = -1};
    death_judge(&d);
    assert_non_null(strstr(d.verdict, "not known"));
    assert_false(death_is_clean(&d));
}

static void only_exit_zero_is_clean(void **state)
{
    struct death d = {.kind = DEATH_EXIT, .code = 0, .signal = -1};
    assert_true(death_is_clean(&d));
    d.code = 1;
    assert_false(death_is_clean(&d));
    d.kind = DEATH_SIGNAL;
    d.code = 0;
    assert_false(death_is_clean(&d));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_three_seven_is_no_proof_of_anything),
        cmocka_unit_test(a_crash_names_its_signal),
        cmocka_unit_test(an_adopted_worker_took_its_status_along),
        cmocka_unit_test(only_exit_zero_is_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
