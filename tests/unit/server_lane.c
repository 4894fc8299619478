/* Group commit: what shares a commit fails alone. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include "frail_vfs.h"
#include "schema/cleanup.h"
#include "schema/digest.h"
#include "schema/state.h"
#include "server/chunk.h"
#include "server/lane.h"

static struct err err;
static char dir[64];
static struct lanes *lanes;
static atomic_uint noted;
static atomic_int notices;

static void on_notice(void *arg, unsigned bits)
{
    atomic_fetch_or(&noted, bits);
    atomic_fetch_add(&notices, 1);
}

static int setup(void **state)
{
    strcpy(dir, "/tmp/pawl-lane-XXXXXX");
    atomic_store(&noted, 0);
    atomic_store(&notices, 0);
    if (!mkdtemp(dir))
        return -1;
    if (lanes_new(dir, NULL, 2, &lanes, &err) < 0) {
        print_error("%s\n", err.text);
        return -1;
    }
    lanes_on_notice(lanes, on_notice, NULL);
    return 0;
}

static int teardown(void **state)
{
    static const char *const files[] = {
        "pawl.db",        "pawl.db-wal",        "pawl.db-shm",
        "checkpoints.db", "checkpoints.db-wal", "checkpoints.db-shm"};
    lanes_stop(lanes);
    for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
        char path[128];
        snprintf(path, sizeof(path), "%s/%s", dir, files[i]);
        unlink(path);
    }
    return rmdir(dir);
}

struct item {
    struct task task; /* first */
    char hash[32];
    int fail; /* the code to fail with, after writing */
    unsigned notes;
    bool over;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;

static int add_run(struct task *t, struct ctx *ctx, struct err *e)
{
    struct item *i = (struct item *)t;
    CLEANUP(stmt_end) struct stmt q = stmt_use(ctx->st, SQL_SESSION_ADD);
    stmt_text(&q, ":hash", i->hash);
    stmt_int(&q, ":now", 1);
    stmt_int(&q, ":ends", 1000);
    int64_t r = stmt_run(&q, e);
    if (r < 0)
        return (int)r;
    store_notify(ctx->st, i->notes);
    return i->fail ? err_set(e, i->fail, "told to fail") : 0;
}

static void add_done(struct task *t)
{
    struct item *i = (struct item *)t;
    pthread_mutex_lock(&mutex);
    i->over = true;
    pthread_cond_broadcast(&ended);
    pthread_mutex_unlock(&mutex);
}

static void wait_for(struct item *i)
{
    pthread_mutex_lock(&mutex);
    while (!i->over)
        pthread_cond_wait(&ended, &mutex);
    pthread_mutex_unlock(&mutex);
}

static int count_run(void *arg, struct ctx *ctx, struct err *e)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(ctx->st, SQL_SESSION_LIST);
    stmt_int(&q, ":now", 0);
    int n = 0, r;
    while ((r = stmt_row(&q, e)) > 0)
        n++;
    *(int *)arg = n;
    return r;
}

static int rows(void)
{
    int n = -1;
    assert_int_equal(lanes_call(lanes, LANE_READ, count_run, &n, &err), 0);
    return n;
}

struct blocker {
    struct task task;
    pthread_mutex_t *gate;
};

static int blocker_run(struct task *t, struct ctx *ctx, struct err *e)
{
    struct blocker *b = (struct blocker *)t;
    pthread_mutex_lock(b->gate);
    pthread_mutex_unlock(b->gate);
    return 0;
}

static void blocker_done(struct task *t)
{
}

/* Holds the writer until all items are queued, so that they share a commit. */
static void put_together(struct item *items, size_t n)
{
    static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    struct blocker b = {.task = {.run = blocker_run, .done = blocker_done},
                        .gate = &gate};
    pthread_mutex_lock(&gate);
    lanes_put(lanes, LANE_WRITE, &b.task);
    for (size_t i = 0; i < n; i++) {
        items[i].task.run = add_run;
        items[i].task.done = add_done;
        snprintf(items[i].hash, sizeof(items[i].hash), "item%zu", i);
        lanes_put(lanes, LANE_WRITE, &items[i].task);
    }
    pthread_mutex_unlock(&gate);
    for (size_t i = 0; i < n; i++)
        wait_for(&items[i]);
}

static void one_that_fails_is_rolled_back_alone(void **state)
{
    struct item items[40] = {0};
    items[3].fail = ERR_CONFLICT;
    items[17].fail = ERR_STALE;
    put_together(items, 40);
    assert_int_equal(items[3].task.result, ERR_CONFLICT);
    assert_string_equal(items[3].task.err.text, "told to fail");
    assert_int_equal(items[17].task.result, ERR_STALE);
    assert_int_equal(items[2].task.result, 0);
    assert_int_equal(items[39].task.result, 0);
    assert_int_equal(rows(), 38);
}

static void a_broken_statement_harms_no_other(void **state)
{
    struct item items[3] = {0}, twice = {.hash = "item1"};
    put_together(items, 3);
    twice.task.run = add_run;
    twice.task.done = add_done;
    lanes_put(lanes, LANE_WRITE, &twice.task);
    wait_for(&twice);
    assert_true(twice.task.result < 0);
    assert_int_equal(rows(), 3);
}

static void an_answer_is_durable_when_it_is_given(void **state)
{
    struct item item = {0};
    put_together(&item, 1);
    /* a second set of connections sees it at once */
    struct store *st = NULL;
    assert_int_equal(store_open_reader(dir, false, &st, &err), 0);
    int n = 0;
    struct ctx ctx = {.st = st};
    assert_int_equal(count_run(&n, &ctx, &err), 0);
    assert_int_equal(n, 1);
    store_close(st);
}

static void notices_of_a_failure_are_dropped(void **state)
{
    struct item items[3] = {0};
    items[0].notes = NOTIFY_JOB;
    items[1].notes = NOTIFY_QUEUE;
    items[1].fail = ERR_CONFLICT;
    items[2].notes = NOTIFY_DATASET;
    put_together(items, 3);
    assert_int_equal(atomic_load(&noted), NOTIFY_JOB | NOTIFY_DATASET);
    assert_true(atomic_load(&notices) <= 3);
}

static int64_t file_bytes(void)
{
    char path[128];
    struct stat sb;
    snprintf(path, sizeof(path), "%s/pawl.db", dir);
    assert_int_equal(stat(path, &sb), 0);
    return sb.st_size;
}

struct large {
    struct task task; /* first */
    int64_t bytes;    /* of the file when its answer left */
    atomic_bool over;
};

/* As much as the log may hold, all of it new pages. */
static int large_run(struct task *t, struct ctx *ctx, struct err *e)
{
    char hash[1001];
    for (int i = 0; i < 2000; i++) {
        snprintf(hash, sizeof(hash), "%01000d", i);
        CLEANUP(stmt_end) struct stmt q = stmt_use(ctx->st, SQL_SESSION_ADD);
        stmt_text(&q, ":hash", hash);
        stmt_int(&q, ":now", 1);
        stmt_int(&q, ":ends", 1000);
        int64_t r = stmt_run(&q, e);
        if (r < 0)
            return (int)r;
    }
    return 0;
}

static void large_done(struct task *t)
{
    struct large *l = (struct large *)t;
    l->bytes = file_bytes();
    atomic_store(&l->over, true);
}

static int nothing_run(void *arg, struct ctx *ctx, struct err *e)
{
    return 0;
}

static void the_log_is_folded_back_once_the_answers_have_left(void **state)
{
    struct large l = {.task = {.run = large_run, .done = large_done}};
    assert_int_equal(lanes_call(lanes, LANE_WRITE, nothing_run, NULL, &err), 0);
    int64_t before = file_bytes();
    lanes_put(lanes, LANE_WRITE, &l.task);
    /* the next one comes after the fold */
    assert_int_equal(lanes_call(lanes, LANE_WRITE, nothing_run, NULL, &err), 0);
    if (!atomic_load(&l.over)) /* both shared a commit */
        assert_int_equal(lanes_call(lanes, LANE_WRITE, nothing_run, NULL, &err),
                         0);
    assert_int_equal(lanes_call(lanes, LANE_WRITE, nothing_run, NULL, &err), 0);
    assert_true(atomic_load(&l.over));
    assert_int_equal(l.task.result, 0);
    assert_int_equal(l.bytes, before);
    assert_true(file_bytes() > before + 1000000);
}

static void readers_run_side_by_side(void **state)
{
    /* one of the two readers is held up; the other one answers */
    static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    struct blocker held = {.task = {.run = blocker_run, .done = blocker_done},
                           .gate = &gate};
    pthread_mutex_lock(&gate);
    lanes_put(lanes, LANE_READ, &held.task);
    assert_int_equal(rows(), 0);
    pthread_mutex_unlock(&gate);
    lanes_stop(lanes);
    assert_int_equal(lanes_new(dir, NULL, 2, &lanes, &err), 0);
}

static int fail_run(void *arg, struct ctx *ctx, struct err *e)
{
    return err_at(e, ERR_INVALID, "/field", "because");
}

static void a_call_brings_its_error_back(void **state)
{
    assert_int_equal(lanes_call(lanes, LANE_WRITE, fail_run, NULL, &err),
                     ERR_INVALID);
    assert_string_equal(err.pointer, "/field");
    assert_int_equal(lanes_call(lanes, LANE_CHUNK, fail_run, NULL, &err),
                     ERR_INVALID);
    assert_int_equal(lanes_call(lanes, LANE_READ, fail_run, NULL, NULL),
                     ERR_INVALID);
}

#define CHUNKS 8 /* more than SQLite's cache holds: some are written early */

struct put {
    struct task task; /* first */
    struct item over; /* for wait_for() */
    char *data, sha[DIGEST_HEX];
};

static int put_run(struct task *t, struct ctx *ctx, struct err *e)
{
    struct put *p = (struct put *)t;
    return chunk_put(ctx->st, 1, p->sha, p->data, STATE_CHUNK, e);
}

static void put_done(struct task *t)
{
    add_done(&((struct put *)t)->over.task);
}

/* Eight chunks that share a commit; the count that was refused. */
static int put_chunks(struct put *puts)
{
    static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    struct blocker b = {.task = {.run = blocker_run, .done = blocker_done},
                        .gate = &gate};
    int refused = 0;
    pthread_mutex_lock(&gate);
    lanes_put(lanes, LANE_CHUNK, &b.task);
    for (int i = 0; i < CHUNKS; i++) {
        puts[i].task.run = put_run;
        puts[i].task.done = put_done;
        puts[i].over.over = false;
        lanes_put(lanes, LANE_CHUNK, &puts[i].task);
    }
    pthread_mutex_unlock(&gate);
    for (int i = 0; i < CHUNKS; i++) {
        wait_for(&puts[i].over);
        refused += puts[i].task.result < 0;
    }
    /* the first one waits for the log to be folded back, the second for what
     * the first may have left to fold */
    for (int i = 0; i < 2; i++)
        lanes_call(lanes, LANE_CHUNK, nothing_run, NULL, NULL);
    return refused;
}

static void
a_disk_that_fills_up_within_a_batch_is_told_to_all_of_it(void **state)
{
    struct put puts[CHUNKS] = {0};
    int refused = 1;
    for (int i = 0; i < CHUNKS; i++)
        puts[i].data = malloc(STATE_CHUNK);
    for (int64_t n = 1; refused; n += 29) {
        for (int i = 0; i < CHUNKS; i++) { /* new ones */
            uint8_t sum[DIGEST_BYTES];
            memset(puts[i].data, (int)n, STATE_CHUNK);
            memcpy(puts[i].data, &i, sizeof(i));
            digest_of(puts[i].data, STATE_CHUNK, sum);
            digest_hex(sum, puts[i].sha);
        }
        frail_arm(FAULT_FULL, n, true);
        refused = put_chunks(puts);
        frail_mend();
        for (int i = 0; i < CHUNKS; i++)
            if (puts[i].task.result < 0 && puts[i].task.result != ERR_NOSPACE)
                fail_msg("write %d, chunk %d: %s", (int)n, i,
                         puts[i].task.err.text);
        /* what is refused comes through when there is room */
        assert_int_equal(put_chunks(puts), 0);
    }
    for (int i = 0; i < CHUNKS; i++)
        free(puts[i].data);
}

int main(void)
{
    frail_register();
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(one_that_fails_is_rolled_back_alone),
        TEST(a_broken_statement_harms_no_other),
        TEST(an_answer_is_durable_when_it_is_given),
        TEST(notices_of_a_failure_are_dropped),
        TEST(the_log_is_folded_back_once_the_answers_have_left),
        TEST(readers_run_side_by_side),
        TEST(a_call_brings_its_error_back),
        TEST(a_disk_that_fills_up_within_a_batch_is_told_to_all_of_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
