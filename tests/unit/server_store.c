/* One connection to the state database. */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#include "server_fixture.h"
#include "server/assets.h"
#include "server/once.h"

static void sql(struct world *w, const char *text)
{
    char cmd[512];
    snprintf(cmd, sizeof(cmd), "sqlite3 %s/pawl.db \"%s\" > /dev/null", w->dir,
             text);
    assert_int_equal(system(cmd), 0);
}

static void a_transaction_that_is_not_committed_leaves_nothing(void **state)
{
    struct world *w = *state;
    struct event e = {.step = -1, .kind = "k", .actor = "a"};
    {
        CLEANUP(txn_end) struct txn outer = TXN_INIT;
        must(txn_begin(&outer, w->st, &w->err));
        must(event_add(w->st, &e, w->now, &w->err, "kept"));
        {
            CLEANUP(txn_end) struct txn inner = TXN_INIT;
            must(txn_begin(&inner, w->st, &w->err));
            must(event_add(w->st, &e, w->now, &w->err, "dropped"));
        }
        {
            CLEANUP(txn_end) struct txn inner = TXN_INIT;
            must(txn_begin(&inner, w->st, &w->err));
            must(event_add(w->st, &e, w->now, &w->err, "kept too"));
            must(txn_commit(&inner, &w->err));
        }
        must(txn_commit(&outer, &w->err));
    }
    {
        CLEANUP(txn_end) struct txn outer = TXN_INIT;
        must(txn_begin(&outer, w->st, &w->err));
        must(event_add(w->st, &e, w->now, &w->err, "dropped"));
    }
    AUTO_FREE char *all = dump(w);
    assert_non_null(strstr(all, "'kept'"));
    assert_non_null(strstr(all, "'kept too'"));
    assert_null(strstr(all, "dropped"));
}

static void
a_reader_sees_only_what_was_committed_and_writes_nothing(void **state)
{
    struct world *w = *state;
    struct store *reader = NULL;
    put_records(w);
    must(store_open_reader(w->dir, false, &reader, &w->err));
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    must(txn_begin(&txn, w->st, &w->err));
    must(dataset_delete(w->st, "set", NULL, &w->err));
    AUTO_JSON json_t *set = NULL;
    must(dataset_get(reader, "set", &set, &w->err));
    must(txn_commit(&txn, &w->err));
    AUTO_JSON json_t *gone = NULL;
    assert_int_equal(dataset_get(reader, "set", &gone, &w->err), ERR_NOT_FOUND);
    assert_true(job_touch(reader, 1, &w->err) < 0);
    store_close(reader);
}

static void text_that_was_cut_inside_a_character_stays_readable(void **state)
{
    struct world *w = *state;
    static const char *const table[][2] = {
        {"a → b", "a → b"},      {"cut \xe2\x86", "cut ??"}, {"\xc3(", "?("},
        {"\xed\xa0\x80", "???"}, {"\xf0\x9f\x98\x80", "😀"},  {"\xff", "?"},
    };
    put_records(w);
    int64_t id = submit(w, NULL);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        must(job_say_why(w->st, id, table[i][0], &w->err));
        expect_job(w, id, "queued", table[i][1]);
    }
}

static void notices_come_with_the_change(void **state)
{
    struct world *w = *state;
    store_take_notices(w->st);
    put_records(w);
    assert_int_equal(store_take_notices(w->st), NOTIFY_DATASET);
    submit(w, NULL);
    assert_true(store_take_notices(w->st) & NOTIFY_QUEUE);
    assert_int_equal(store_take_notices(w->st), 0);
}

static void both_files_are_as_promised(void **state)
{
    struct world *w = *state;
    char cmd[400];
    int newest = 0;
    for (const struct asset *a = migrations; a->name; a++)
        newest = atoi(a->name) > newest ? atoi(a->name) : newest;
    snprintf(cmd, sizeof(cmd),
             "test \"$(sqlite3 %s/checkpoints.db 'PRAGMA page_size; PRAGMA "
             "auto_vacuum; PRAGMA journal_mode; PRAGMA user_version' | tr "
             "'\\n' ' ')\" = '65536 2 wal 1 '",
             w->dir);
    assert_int_equal(system(cmd), 0);
    snprintf(cmd, sizeof(cmd),
             "test \"$(sqlite3 %s/pawl.db 'PRAGMA journal_mode; PRAGMA "
             "user_version; PRAGMA foreign_key_check' | tr '\\n' ' ')\" = "
             "'wal %d '",
             w->dir, newest);
    assert_int_equal(system(cmd), 0);
}

static void a_newer_database_is_refused_and_left_alone(void **state)
{
    struct world *w = *state;
    world_close(w);
    sql(w, "PRAGMA user_version = 99");
    AUTO_FREE char *before = dump(w);
    assert_int_equal(store_open(w->dir, false, &w->st, &w->err), ERR_CONFLICT);
    assert_non_null(strstr(w->err.text, "newer pawld"));
    AUTO_FREE char *after = dump(w);
    assert_string_equal(before, after);
}

static void a_foreign_or_damaged_database_is_refused(void **state)
{
    struct world *w = *state;
    world_close(w);
    sql(w, "PRAGMA application_id = 5");
    assert_int_equal(store_open(w->dir, false, &w->st, &w->err), ERR_CONFLICT);
    sql(w, "PRAGMA application_id = 0x7061776c; PRAGMA wal_checkpoint;");
    char path[128];
    snprintf(path, sizeof(path), "%s/pawl.db", w->dir);
    int fd = open(path, O_RDWR);
    char junk[4096];
    memset(junk, 0x5a, sizeof(junk));
    assert_int_equal(pwrite(fd, junk, sizeof(junk), 8192), sizeof(junk));
    close(fd);
    assert_int_equal(store_open(w->dir, false, &w->st, &w->err), ERR_CORRUPT);
}

static void a_key_gets_its_first_answer_for_good(void **state)
{
    struct world *w = *state;
    AUTO_JSON json_t *body = json_of("{\"a\": 1, \"b\": 2}");
    AUTO_JSON json_t *same = json_of("{\"b\": 2, \"a\": 1}");
    AUTO_JSON json_t *other = json_of("{\"a\": 2}");
    AUTO_JSON json_t *said = NULL, *answer = json_of("{\"id\": 7}");
    int status = 0;
    assert_int_equal(once_find(w->st, "/p", "k", body, &status, &said, &w->err),
                     0);
    must(once_keep(w->st, "/p", "k", body, 201, answer, w->now, &w->err));
    assert_int_equal(once_find(w->st, "/p", "k", same, &status, &said, &w->err),
                     1);
    assert_int_equal(status, 201);
    assert_true(json_equal(said, answer));
    assert_int_equal(
        once_find(w->st, "/p", "k", other, &status, &said, &w->err),
        ERR_MISMATCH);
    AUTO_JSON json_t *none = NULL;
    assert_int_equal(
        once_find(w->st, "/q", "k", other, &status, &none, &w->err), 0);
    must(once_prune(w->st, w->now + 8 * 24 * 3600 * (int64_t)1000, &w->err));
    assert_int_equal(once_find(w->st, "/p", "k", body, &status, &none, &w->err),
                     0);
}

static void a_lost_database_is_not_replaced_by_an_empty_one(void **state)
{
    struct world *w = *state;
    char path[200], shards[300];
    struct store *st = NULL, *chunks = NULL;
    snprintf(path, sizeof path, "%s/lost", w->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    must(store_open(path, false, &st, &w->err));
    must(store_open(path, true, &chunks, &w->err));
    store_close(st);
    snprintf(shards, sizeof shards, "%s/pawl.db", path);
    assert_int_equal(unlink(shards), 0);

    /* nothing is lost while nothing was kept */
    must(store_open(path, false, &st, &w->err));
    store_close(st);

    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(chunks, SQL_CHUNK_ADD);
        uint8_t sum[DIGEST_BYTES];
        digest_of("x", 1, sum);
        stmt_blob(&q, ":sha", sum, sizeof sum);
        stmt_int(&q, ":bytes", 1);
        stmt_blob(&q, ":data", "x", 1);
        must(stmt_run(&q, &w->err));
    }
    for (int missing = 0; missing < 2; missing++) {
        if (missing)
            assert_int_equal(unlink(shards), 0);
        else
            assert_int_equal(truncate(shards, 0), 0);
        for (int again = 0; again < 2; again++) {
            assert_int_equal(store_open(path, false, &st, &w->err),
                             ERR_CONFLICT);
            assert_non_null(strstr(w->err.text, "checkpoints.db holds"));
        }
    }
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(chunks, SQL_CHUNK_ANY);
        assert_int_equal(stmt_row(&q, &w->err), 1);
    }
    store_close(chunks);

    static const char *const folders[] = {"lost2", "lost2/datasets",
                                          "lost2/datasets/set"};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", w->dir, folders[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    snprintf(shards, sizeof shards, "%s/lost2", w->dir);
    must(store_open(shards, false, &st, &w->err));
    store_close(st);
    char file[400];
    snprintf(file, sizeof file, "%s/a.jsonl", path);
    int fd = open(file, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    close(fd);
    snprintf(file, sizeof file, "%s/pawl.db", shards);
    assert_int_equal(truncate(file, 0), 0);
    assert_int_equal(store_open(shards, false, &st, &w->err), ERR_CONFLICT);
    assert_non_null(strstr(w->err.text, "datasets/ holds shards"));
}

static void the_wal_of_chunks_stays_small(void **state)
{
    struct world *w = *state;
    CLEANUP(buf_release) struct buf data = {0};
    char path[300];
    struct stat sb;
    for (int i = 0; i < 65536; i++)
        must(buf_adds(&data, "0123456789abcdef"));
    for (int i = 0; i < 40; i++) {
        uint8_t sum[DIGEST_BYTES];
        char hex[DIGEST_HEX];
        data.data[0] = (char)i;
        digest_of(data.data, data.len, sum);
        digest_hex(sum, hex);
        must(chunk_put(w->chunks, 1, hex, data.data, data.len, &w->err));
    }
    snprintf(path, sizeof(path), "%s/checkpoints.db-wal", w->dir);
    assert_int_equal(stat(path, &sb), 0);
    assert_true(sb.st_size < 16 << 20);
}

static int64_t wal_size(struct world *w, struct store *st)
{
    struct store_sizes sizes;
    store_sizes(st, &sizes);
    return sizes.wal_bytes;
}

/* About 40 KiB a commit. */
static void write_some(struct world *w, int commits)
{
    CLEANUP(buf_release) struct buf text = {0};
    for (int i = 0; i < 700; i++)
        must(buf_adds(&text, "what happened. "));
    struct event e = {.step = -1, .kind = "k", .actor = "a"};
    for (int i = 0; i < commits; i++) {
        CLEANUP(txn_end) struct txn txn = TXN_INIT;
        must(txn_begin(&txn, w->st, &w->err));
        for (int k = 0; k < 50; k++)
            must(event_add(w->st, &e, w->now, &w->err, "%s", text.data));
        must(txn_commit(&txn, &w->err));
    }
}

struct reading {
    struct world *w;
    atomic_bool stop;
    atomic_long reads;
};

/* One read after the other, 4 ms each. */
static void *reads_on(void *arg)
{
    struct reading *r = arg;
    struct world *w = r->w;
    struct store *st = NULL;
    struct err err;
    if (store_open_reader(w->dir, false, &st, &err) < 0)
        abort();
    while (!atomic_load(&r->stop)) {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_DATASET_FIND);
        stmt_text(&q, ":name", "set");
        if (stmt_row(&q, &err) != 1)
            abort();
        struct timespec nap = {.tv_nsec = 4000000};
        nanosleep(&nap, NULL);
        atomic_fetch_add(&r->reads, 1);
    }
    store_close(st);
    return NULL;
}

/* Three readers that overlap, so that there is always one: SQLite's own way
 * would let the WAL grow as long as they come. */
static void the_wal_begins_anew_where_there_is_always_a_reader(void **state)
{
    struct world *w = *state;
    struct reading r = {.w = w};
    pthread_t threads[3];
    put_records(w);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, reads_on, &r), 0);
    while (atomic_load(&r.reads) < 9) /* all are at it */
        sched_yield();
    int64_t most = 0;
    for (int i = 0; i < 1500; i++) {
        write_some(w, 1);
        int64_t now = wal_size(w, w->st);
        most = now > most ? now : most;
    }
    atomic_store(&r.stop, true);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    print_message("# at most %d MiB, over %d reads\n", (int)(most >> 20),
                  (int)atomic_load(&r.reads));
    assert_true(most < 40 << 20);
}

/* It is waited for now and then, not at each commit. */
static void a_reader_that_stays_is_no_brake(void **state)
{
    struct world *w = *state;
    struct store *reader = NULL;
    must(store_open_reader(w->dir, false, &reader, &w->err));
    put_records(w);
    struct stmt q = stmt_use(reader, SQL_DATASET_FIND);
    stmt_text(&q, ":name", "set");
    assert_int_equal(stmt_row(&q, &w->err), 1);
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    write_some(w, 400);
    clock_gettime(CLOCK_MONOTONIC, &b);
    double took =
        (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) / 1e9;
    int64_t grown = wal_size(w, w->st);
    print_message("# %d MiB in %.2f s\n", (int)(grown >> 20), took);
    assert_true(grown > 32 << 20);
    assert_true(took < 20); /* 50 ms for each 16 MiB, not for each commit */
    stmt_end(&q);
    store_close(reader);
    write_some(w, 1000); /* as far again as it has come */
    assert_true(wal_size(w, w->st) < grown);
}

static void a_disk_that_is_nearly_full_takes_no_new_chunk(void **state)
{
    struct world *w = *state;
    uint8_t sum[DIGEST_BYTES];
    char hex[2][DIGEST_HEX];
    const char *data[] = {"kept", "refused"};
    for (int i = 0; i < 2; i++) {
        digest_of(data[i], strlen(data[i]), sum);
        digest_hex(sum, hex[i]);
    }
    must(chunk_put(w->chunks, 1, hex[0], data[0], 4, &w->err));
    int64_t spare = store_spare;
    store_spare = INT64_MAX / 2;
    int r = chunk_put(w->chunks, 1, hex[1], data[1], 7, &w->err);
    int again = chunk_put(w->chunks, 1, hex[0], data[0], 4, &w->err);
    store_spare = spare;
    assert_int_equal(r, ERR_NOSPACE);
    assert_int_equal(again, 0);
    assert_int_equal(chunk_hold(w->chunks, 1, hex[1], &w->err), 0);
    must(chunk_put(w->chunks, 1, hex[1], data[1], 7, &w->err));
}

/* SQLite keeps pages as they were before a savepoint; past its limit they go to
 * a file in the system's folder for such, again and again. */
static int spilled_files(void)
{
    char link[64], to[300];
    int n = 0;
    for (int fd = 0; fd < 256; fd++) {
        snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
        ssize_t len = readlink(link, to, sizeof(to) - 1);
        to[len > 0 ? len : 0] = '\0';
        n += strstr(to, "etilqs_") != NULL;
    }
    return n;
}

static void add_session(struct world *w, int i, int64_t ends)
{
    char hash[300];
    snprintf(hash, sizeof(hash), "%0280d", i);
    CLEANUP(stmt_end) struct stmt q = stmt_use(w->st, SQL_SESSION_ADD);
    stmt_text(&q, ":hash", hash);
    stmt_int(&q, ":now", 1);
    stmt_int(&q, ":ends", ends);
    must(stmt_run(&q, &w->err));
}

static void the_savepoints_of_a_commit_stay_in_memory(void **state)
{
    struct world *w = *state;
    enum { ROWS = 3000 }; /* 1 MiB of pages */
    CLEANUP(txn_end) struct txn outer = TXN_INIT, inner = TXN_INIT;
    CLEANUP(txn_end) struct txn more = TXN_INIT;
    must(txn_begin(&outer, w->st, &w->err));
    for (int i = 0; i < ROWS; i++)
        add_session(w, 2 * i, 1000);
    must(txn_commit(&outer, &w->err));
    must(txn_begin(&more, w->st, &w->err));
    must(txn_begin(&inner, w->st, &w->err));
    for (int i = 0; i < ROWS; i += 5) /* each of those pages */
        add_session(w, 2 * i + 1, 1000);
    assert_int_equal(spilled_files(), 0);
    txn_end(&inner);
    must(txn_commit(&more, &w->err));
    CLEANUP(stmt_end) struct stmt q = stmt_use(w->st, SQL_SESSION_LIST);
    stmt_int(&q, ":now", 0);
    int n = 0;
    while (stmt_row(&q, &w->err) > 0)
        n++;
    assert_int_equal(n, ROWS);
}

/* One savepoint that changes many pages: 12 MiB of sessions, 24 MiB of chunks. */
static void a_savepoint_may_be_large(void **state)
{
    struct world *w = *state;
    CLEANUP(buf_release) struct buf data = {0};
    for (int i = 0; i < 65536; i++)
        must(buf_adds(&data, "0123456789abcdef"));
    uint8_t sums[24][DIGEST_BYTES];
    for (int i = 0; i < 24; i++) {
        char hex[DIGEST_HEX];
        data.data[0] = (char)i;
        digest_of(data.data, data.len, sums[i]);
        digest_hex(sums[i], hex);
        must(chunk_put(w->chunks, 1, hex, data.data, data.len, &w->err));
    }
    for (int i = 0; i < 40000; i++)
        add_session(w, i, 1000);
    for (int undo = 1; undo >= 0; undo--) {
        CLEANUP(txn_end) struct txn outer = TXN_INIT, inner = TXN_INIT;
        CLEANUP(txn_end) struct txn chunks = TXN_INIT, chunk = TXN_INIT;
        must(txn_begin(&outer, w->st, &w->err));
        must(txn_begin(&inner, w->st, &w->err));
        {
            CLEANUP(stmt_end) struct stmt q = stmt_use(w->st, SQL_SESSION_TRIM);
            stmt_int(&q, ":now", 1);
            stmt_int(&q, ":max", 100);
            assert_int_equal(stmt_run(&q, &w->err), 39900);
        }
        must(txn_begin(&chunks, w->chunks, &w->err));
        must(txn_begin(&chunk, w->chunks, &w->err));
        {
            CLEANUP(stmt_end)
            struct stmt q = stmt_use(w->chunks, SQL_HOLD_DROP);
            stmt_text(&q, ":live", "[]");
            stmt_int(&q, ":newest", 1);
            assert_int_equal(stmt_run(&q, &w->err), 24);
        }
        for (int i = 0; i < 24; i++) {
            CLEANUP(stmt_end)
            struct stmt q = stmt_use(w->chunks, SQL_CHUNK_DROP);
            stmt_blob(&q, ":sha", sums[i], DIGEST_BYTES);
            assert_int_equal(stmt_run(&q, &w->err), 1);
        }
        if (undo)
            continue;
        must(txn_commit(&chunk, &w->err));
        must(txn_commit(&chunks, &w->err));
        must(txn_commit(&inner, &w->err));
        must(txn_commit(&outer, &w->err));
    }
    CLEANUP(stmt_end) struct stmt q = stmt_use(w->chunks, SQL_CHUNK_ANY);
    assert_int_equal(stmt_row(&q, &w->err), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_transaction_that_is_not_committed_leaves_nothing),
        TEST(text_that_was_cut_inside_a_character_stays_readable),
        TEST(a_reader_sees_only_what_was_committed_and_writes_nothing),
        TEST(notices_come_with_the_change),
        TEST(both_files_are_as_promised),
        TEST(the_wal_of_chunks_stays_small),
        TEST(the_wal_begins_anew_where_there_is_always_a_reader),
        TEST(a_reader_that_stays_is_no_brake),
        TEST(a_disk_that_is_nearly_full_takes_no_new_chunk),
        TEST(a_newer_database_is_refused_and_left_alone),
        TEST(a_lost_database_is_not_replaced_by_an_empty_one),
        TEST(a_foreign_or_damaged_database_is_refused),
        TEST(a_key_gets_its_first_answer_for_good),
        TEST(the_savepoints_of_a_commit_stay_in_memory),
        TEST(a_savepoint_may_be_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
