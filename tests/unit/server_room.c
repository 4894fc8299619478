/* Room on disk: promised, taken up, let go; what is parked, and what goes on. */
#include "server_fixture.h"
#include <sys/statvfs.h>
#include "server/room.h"

#define MiB ((int64_t)1 << 20)

/* The disk: what it has free beside store_spare. */
static int64_t disk_free;

static int fake_statvfs(const char *path, struct statvfs *ret)
{
    memset(ret, 0, sizeof(*ret));
    ret->f_frsize = 1;
    ret->f_bavail = (fsblkcnt_t)(disk_free + store_spare);
    return 0;
}

static int room_setup(void **state)
{
    store_statvfs = fake_statvfs;
    disk_free = 100 * MiB;
    return setup(state);
}

static int room_teardown(void **state)
{
    store_statvfs = statvfs;
    return teardown(state);
}

static void room_ptr(struct room **room)
{
    room_free(*room);
}

static int64_t asks(struct world *w, struct room *room, int64_t lease,
                    int64_t bytes)
{
    int64_t missing = -1;
    must(room_ask(room, w->chunks, lease, bytes, w->mono, &missing, &w->err));
    return missing;
}

static void what_is_promised_to_one_lease_is_not_given_to_another(void **state)
{
    struct world *w = *state;
    CLEANUP(room_ptr) struct room *room = NULL;
    must(room_new(&room, &w->err));
    assert_int_equal(asks(w, room, 1, 60 * MiB), 0);
    int64_t missing = asks(w, room, 2, 60 * MiB);
    assert_true(missing > 20 * MiB && missing < 40 * MiB);
    /* so much that it fits to the byte */
    disk_free += missing;
    assert_int_equal(asks(w, room, 2, 60 * MiB), 0);
    /* asking again is no second promise */
    assert_int_equal(asks(w, room, 1, 60 * MiB), 0);
    assert_int_equal(asks(w, room, 2, 60 * MiB), 0);

    /* chunks take it up: what they fill is missing on disk, and not twice */
    for (int i = 0; i < 60; i++) {
        must(room_check(room, w->chunks, 1, MiB, w->mono, &w->err));
        room_used(room, 1, MiB, w->mono);
        disk_free -= MiB;
        assert_int_equal(asks(w, room, 2, 60 * MiB), 0);
    }
    /* whoever was promised nothing cannot take it */
    int r = room_check(room, w->chunks, 3, 32 * MiB, w->mono, &w->err);
    assert_int_equal(r, ERR_NOSPACE);
    assert_true(w->err.missing_bytes > 0);
    room_drop(room, 1);
    room_drop(room, 2);
    must(room_check(room, w->chunks, 3, 32 * MiB, w->mono, &w->err));
}

static void a_promise_that_is_not_taken_up_ends(void **state)
{
    struct world *w = *state;
    CLEANUP(room_ptr) struct room *room = NULL;
    must(room_new(&room, &w->err));
    assert_int_equal(asks(w, room, 1, 80 * MiB), 0);
    assert_true(asks(w, room, 2, 80 * MiB) > 0);
    w->mono += 50000; /* a chunk renews it */
    room_used(room, 1, MiB, w->mono);
    w->mono += 50000;
    assert_true(asks(w, room, 2, 80 * MiB) > 0);
    w->mono += 61000;
    assert_int_equal(asks(w, room, 2, 80 * MiB), 0);
}

static void free_pages_of_the_file_are_room(void **state)
{
    struct world *w = *state;
    CLEANUP(room_ptr) struct room *room = NULL;
    must(room_new(&room, &w->err));
    char cmd[256];
    snprintf(cmd, sizeof(cmd),
             "sqlite3 %s/checkpoints.db \"CREATE TABLE t(x); INSERT INTO t"
             " VALUES (zeroblob(20971520)); DROP TABLE t\"",
             w->dir);
    assert_int_equal(system(cmd), 0);
    disk_free = 2 * MiB;
    assert_int_equal(asks(w, room, 1, 15 * MiB), 0);
    /* but not when the disk is at its last: they go through the WAL */
    disk_free = -1;
    assert_true(asks(w, room, 1, 15 * MiB) > 15 * MiB);
}

static void a_save_without_room_is_put_off_and_the_job_says_so(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    must(room_told(w->st, a.id, a.token, 2, 5 * MiB, w->now, &w->err));
    expect_job(w, id, "running",
               "no room for the checkpoint of step 2: 5242880 bytes are "
               "missing; there is none before it");
    assert_int_equal(events(w, id, "no_room", "5242880 bytes"), 1);
    /* asked again and again: one event */
    must(room_told(w->st, a.id, a.token, 3, 5 * MiB, w->now, &w->err));
    assert_int_equal(events(w, id, "no_room", NULL), 1);
    expect_job(w, id, "running", "of step 3");
    must(room_told(w->st, a.id, a.token, 4, 0, w->now, &w->err));
    must(saves(w, &a, 4, NULL, NULL));
    AUTO_JSON json_t *j = job(w, id);
    assert_true(json_is_null(json_object_get(j, "reason")));
    must(room_told(w->st, a.id, a.token, 5, MiB, w->now, &w->err));
    expect_job(w, id, "running", "1048576 bytes are missing; step 4's is kept");
    /* not with an old token */
    char *before = dump(w);
    assert_int_equal(room_told(w->st, a.id, a.token - 1, 5, 0, w->now, &w->err),
                     ERR_STALE);
    char *after = dump(w);
    assert_string_equal(before, after);
    free(before);
    free(after);
}

#define NO_SPACE                                                               \
    "{\"outcome\": \"failed\", \"reason\": \"no room\", \"position\":"         \
    " {\"step\": 4, \"records\": 16}, \"error\": {\"code\": \"no_space\","     \
    " \"detail\": \"no room\", \"bytes\": 52428800,"                           \
    " \"missing_bytes\": 1000000}}"

static void a_lease_that_ends_without_room_parks_its_cycle(void **state)
{
    struct world *w = *state;
    CLEANUP(room_ptr) struct room *room = NULL;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    must(room_new(&room, &w->err));
    put_records(w);
    int64_t id = submit(w, "{\"limits\": {\"failures\": 1, \"lost\": 1,"
                           " \"no_progress\": 1}}");
    for (int i = 0; i < 3; i++) { /* whatever the budgets */
        disk_free = 10 * MiB;
        assert_int_equal(claims(w, &a), 1);
        assert_int_equal(a.step, i ? 2 : 0);
        if (!i)
            must(saves(w, &a, 2, NULL, NULL));
        a.step = 4;
        must(releases(w, &a, NO_SPACE));
        expect_job(w, id, "queued",
                   "waits for room on disk for the checkpoint of step 4: "
                   "1000000 bytes are missing; step 2's is kept");
        AUTO_JSON json_t *j = job(w, id);
        const json_t *parked = json_object_get(j, "parked");
        assert_int_equal(int_of(parked, "missing_bytes"), 1000000);
        assert_true(json_is_string(json_object_get(parked, "since_at")));
        assert_int_equal(int_of(json_object_get(j, "budgets"), "failures"), 0);
        assert_int_equal(int_of(json_object_get(j, "budgets"), "no_progress"),
                         0);
        assert_int_equal(events(w, id, "parked", "1000000 bytes"), i + 1);

        /* nobody gets it, however long it waits */
        w->now += 3600000;
        w->mono += 3600000;
        must(room_tick(room, w->st, w->chunks, w->now, w->mono, &w->err));
        assert_int_equal(claims(w, &a), 0);
        /* the figure follows the disk */
        expect_job(w, id, "queued", "bytes are missing");
        AUTO_JSON json_t *later = job(w, id);
        assert_true(int_of(json_object_get(later, "parked"), "missing_bytes") >
                    40 * MiB);
        /* what is promised to others is no room */
        disk_free = 80 * MiB;
        assert_int_equal(asks(w, room, 999, 60 * MiB), 0);
        must(room_tick(room, w->st, w->chunks, w->now, w->mono, &w->err));
        /* (no lease has that number: the tick let go of it) */
        expect_job(w, id, "queued",
                   "there is room again; waits for a worker to go on at step "
                   "2");
        AUTO_JSON json_t *ready = job(w, id);
        assert_true(json_is_null(json_object_get(ready, "parked")));
        assert_int_equal(events(w, id, "unparked", NULL), i + 1);
    }
    assert_int_equal(claims(w, &a), 1);
    must(saves(w, &a, 6, FINISHED, NULL));
    expect_job(w, id, "completed", NULL);
}

static void a_parked_job_can_be_paused_and_canceled(void **state)
{
    struct world *w = *state;
    CLEANUP(room_ptr) struct room *room = NULL;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    must(room_new(&room, &w->err));
    put_records(w);
    int64_t id = submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    a.step = 4;
    must(releases(w, &a, NO_SPACE));
    must(job_pause(w->st, id, w->now, &w->err));
    expect_job(w, id, "paused", "paused by request");
    must(room_tick(room, w->st, w->chunks, w->now, w->mono, &w->err));
    expect_job(w, id, "paused", NULL);
    assert_int_equal(claims(w, &a), 0);
    must(job_resume(w->st, id, w->now, &w->err));
    expect_job(w, id, "queued", "there is room again");
    assert_int_equal(claims(w, &a), 1);
    disk_free = 0;
    a.step = 4;
    must(releases(w, &a, NO_SPACE));
    must(job_cancel(w->st, id, w->now, &w->err));
    expect_job(w, id, "canceled", NULL);
    AUTO_JSON json_t *j = job(w, id);
    assert_true(json_is_null(json_object_get(j, "parked")));
    must(room_tick(room, w->st, w->chunks, w->now, w->mono, &w->err));
    expect_job(w, id, "canceled", NULL);
    /* back in the queue it waits for room still */
    must(job_retry(w->st, id, w->now, &w->err));
    expect_job(w, id, "queued", "waits for room on disk");
    assert_int_equal(claims(w, &a), 0);
    must(room_tick(room, w->st, w->chunks, w->now, w->mono, &w->err));
    expect_job(w, id, "queued", "bytes are missing");
    disk_free = 100 * MiB;
    must(room_tick(room, w->st, w->chunks, w->now, w->mono, &w->err));
    assert_int_equal(claims(w, &a), 1);
}

static void the_room_of_one_is_not_given_to_all_that_wait_for_it(void **state)
{
    struct world *w = *state;
    CLEANUP(room_ptr) struct room *room = NULL;
    must(room_new(&room, &w->err));
    put_records(w);
    int64_t ids[3];
    struct worker v[3] = {{.name = "a"}, {.name = "b"}, {.name = "c"}};
    for (int i = 0; i < 3; i++)
        ids[i] = submit(w, NULL);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(claims(w, &v[i]), 1);
        v[i].step = 4;
        w->now += 1000;
        must(releases(w, &v[i], NO_SPACE));
    }
    disk_free = 120 * MiB; /* for two of them */
    must(room_tick(room, w->st, w->chunks, w->now, w->mono, &w->err));
    expect_job(w, ids[0], "queued", "there is room again");
    expect_job(w, ids[1], "queued", "there is room again");
    expect_job(w, ids[2], "queued", "waits for room on disk");
    for (int i = 0; i < 3; i++)
        worker_drop(&v[i]);
}

static void
chunks_stop_before_the_disk_is_full_and_heartbeats_go_on(void **state)
{
    struct world *w = *state;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    char hex[DIGEST_HEX], bytes[1000] = {1};
    uint8_t sum[DIGEST_BYTES];
    digest_of(bytes, sizeof(bytes), sum);
    digest_hex(sum, hex);
    put_records(w);
    submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    disk_free = 999;
    int r = chunk_put(w->chunks, a.id, hex, bytes, sizeof(bytes), &w->err);
    assert_int_equal(r, ERR_NOSPACE);
    assert_int_equal(w->err.missing_bytes, 1);
    must(beats(w, &a, NULL, NULL));
    disk_free = 1000;
    must(chunk_put(w->chunks, a.id, hex, bytes, sizeof(bytes), &w->err));
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, room_setup, room_teardown)
    const struct CMUnitTest tests[] = {
        TEST(what_is_promised_to_one_lease_is_not_given_to_another),
        TEST(a_promise_that_is_not_taken_up_ends),
        TEST(free_pages_of_the_file_are_room),
        TEST(a_save_without_room_is_put_off_and_the_job_says_so),
        TEST(a_lease_that_ends_without_room_parks_its_cycle),
        TEST(a_parked_job_can_be_paused_and_canceled),
        TEST(the_room_of_one_is_not_given_to_all_that_wait_for_it),
        TEST(chunks_stop_before_the_disk_is_full_and_heartbeats_go_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
