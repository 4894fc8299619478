/* A copy is of one moment and whole, whatever is written, pruned and swept while
 * it is made. */
#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include "server_fixture.h"
#include "server/backup.h"
#include "server/server.h"

struct home {
    struct world w;
    struct server server;
    struct backups *backups;
    char tmp[96];
};

static int setup_home(void **state)
{
    void *world;
    if (setup(&world) < 0)
        return -1;
    struct home *h = calloc(1, sizeof(*h));
    memcpy(&h->w, world, sizeof(h->w));
    free(world);
    snprintf(h->tmp, sizeof(h->tmp), "%s/tmp", h->w.dir);
    if (mkdir(h->tmp, 0700) < 0)
        return -1;
    h->server.dir = h->w.dir;
    h->server.tmp_dir = h->tmp;
    *state = h;
    return backups_new(&h->server, &h->backups, &h->w.err);
}

static int teardown_home(void **state)
{
    struct home *h = *state;
    backups_free(h->backups);
    world_close(&h->w);
    nftw(h->w.dir, unlink_one, 16, FTW_DEPTH | FTW_PHYS);
    free(h);
    return 0;
}

static int wait_ready(struct backup *b, struct err *err)
{
    int r;
    struct timespec nap = {.tv_nsec = 1000000};
    while ((r = backup_ready(b, err)) == 0)
        nanosleep(&nap, NULL);
    return r;
}

/* The whole tar, unpacked into `to`; the names in its order. */
static char *unpacked(struct home *h, struct backup *b, const char *to)
{
    struct world *w = &h->w;
    CLEANUP(buf_release) struct buf tar = {0}, names = {0};
    int r;
    must(wait_ready(b, &w->err));
    while ((r = backup_next(b, &tar, &w->err)) > 0)
        ;
    must(r);
    struct archive *a = archive_read_new();
    struct archive_entry *e;
    archive_read_support_format_tar(a);
    assert_int_equal(archive_read_open_memory(a, tar.data, tar.len),
                     ARCHIVE_OK);
    while (archive_read_next_header(a, &e) == ARCHIVE_OK) {
        char path[512];
        buf_addf(&names, "%s%s", names.len ? " " : "",
                 archive_entry_pathname(e));
        snprintf(path, sizeof(path), "%s/%s", to, archive_entry_pathname(e));
        archive_entry_set_pathname(e, path);
        assert_int_equal(archive_read_extract(a, e, 0), ARCHIVE_OK);
    }
    archive_read_free(a);
    buf_add(&names, "", 1);
    char *s = names.data;
    names = (struct buf){0};
    return s;
}

static void says(const char *dir, const char *file, const char *sql,
                 const char *want)
{
    char cmd[700], got[200] = "";
    snprintf(cmd, sizeof(cmd), "sqlite3 %s/%s \"%s\" | tr '\\n' ' '", dir, file,
             sql);
    FILE *f = popen(cmd, "r");
    size_t n = fread(got, 1, sizeof(got) - 1, f);
    got[n] = '\0';
    assert_int_equal(pclose(f), 0);
    if (strcmp(got, want))
        fail_msg("%s: %s instead of %s", sql, got, want);
}

#define MISSING                                                                \
    "ATTACH '%s/checkpoints.db' AS c; SELECT count(*) FROM checkpoint_chunks"  \
    " WHERE sha256 NOT IN (SELECT sha256 FROM c.chunks); SELECT count(*) FROM" \
    " c.chunks WHERE sha256 NOT IN (SELECT sha256 FROM checkpoint_chunks)"

static void copy_to(struct home *h, const char *name, char path[128])
{
    struct world *w = &h->w;
    struct backup *b = NULL;
    char sql[500];
    snprintf(path, 128, "%s/%s", w->dir, name);
    assert_int_equal(mkdir(path, 0700), 0);
    must(backup_new(h->backups, &b, &w->err));
    AUTO_FREE char *names = unpacked(h, b, path);
    backup_free(b);
    assert_string_equal(names, "datasets/set/a.jsonl checkpoints.db pawl.db");
    says(path, "pawl.db", "PRAGMA integrity_check; PRAGMA foreign_key_check",
         "ok ");
    says(path, "checkpoints.db", "PRAGMA integrity_check", "ok ");
    snprintf(sql, sizeof(sql), MISSING, path);
    says(path, "pawl.db", sql, "0 0 ");
}

static void what_is_copied_is_what_the_rows_name(void **state)
{
    struct home *h = *state;
    struct world *w = &h->w;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    char path[128];
    put_records(w);
    submit(w, NULL);
    assert_int_equal(claims(w, &a), 1);
    for (int i = 1; i <= 5; i++)
        must(saves(w, &a, i, NULL, NULL));
    assert_int_equal(prunes(w), 3); /* their chunks are there still */
    copy_to(h, "copy", path);
    says(path, "checkpoints.db", "SELECT count(*) FROM chunks", "2 ");
    says(path, "checkpoints.db", "SELECT count(*) FROM holds", "0 ");
    /* the worker is the other server's, and so are ids of leases to come */
    says(path, "pawl.db", "SELECT count(*) FROM workers WHERE gone_ms IS NULL",
         "0 ");
    says(path, "pawl.db",
         "SELECT seq FROM sqlite_sequence WHERE name ="
         " 'leases'",
         "1000001 ");
    says(w->dir, "pawl.db",
         "SELECT count(*) FROM workers WHERE gone_ms IS NULL", "1 ");
}

/* ---- while others write ---- */

struct busy {
    struct home *h;
    pthread_mutex_t chunks_lane; /* one connection writes each file */
    atomic_bool stop;
    atomic_int saved, swept, pruned;
};

static void *saves_and_prunes(void *arg)
{
    struct busy *b = arg;
    struct world *w = &b->h->w;
    CLEANUP(worker_drop) struct worker a = {.name = "a"};
    if (claims(w, &a) != 1)
        abort();
    for (int i = 1; !atomic_load(&b->stop); i++) {
        a.step = i % 1000;
        pthread_mutex_lock(&b->chunks_lane);
        json_t *m = manifest_at(w, &a, (float)i);
        int r = posts(w, &a, m, NULL, NULL);
        pthread_mutex_unlock(&b->chunks_lane);
        if (r < 0) {
            print_error("save %d: %s\n", i, w->err.text);
            abort();
        }
        json_decref(m);
        atomic_fetch_add(&b->saved, 1);
        atomic_fetch_add(&b->pruned, prunes(w));
    }
    return NULL;
}

static void *sweeps_on(void *arg)
{
    struct busy *b = arg;
    struct world *w = &b->h->w;
    struct store *st = NULL, *chunks = NULL;
    struct err err;
    int64_t after = 0;
    if (store_open_reader(w->dir, false, &st, &err) < 0 ||
        store_open_reader(w->dir, true, &chunks, &err) < 0)
        abort();
    while (!atomic_load(&b->stop)) {
        struct chunk_sweep s = {0};
        int64_t turn = backups_turn(b->h->backups);
        if (turn < 0)
            continue;
        if (chunk_sweep_find(st, chunks, &after, 1000, &s, &err) < 0)
            abort();
        pthread_mutex_lock(&b->chunks_lane);
        int n = 0;
        if (backups_may_sweep(b->h->backups, turn))
            n = chunk_sweep_run(w->chunks, &s, &err);
        pthread_mutex_unlock(&b->chunks_lane);
        if (n < 0)
            abort();
        atomic_fetch_add(&b->swept, n);
        chunk_sweep_release(&s);
    }
    store_close(st);
    store_close(chunks);
    return NULL;
}

static void nothing_that_a_copy_names_is_swept_from_under_it(void **state)
{
    struct home *h = *state;
    struct world *w = &h->w;
    struct busy b = {.h = h, .chunks_lane = PTHREAD_MUTEX_INITIALIZER};
    pthread_t threads[2];
    put_records(w);
    submit(w, "{\"training\": {\"epochs\": 1000, \"effective_batch\": 4,"
              " \"optimizer\": {\"type\": \"adamw\", \"lr\": 0.001}}}");
    assert_int_equal(pthread_create(&threads[0], NULL, saves_and_prunes, &b),
                     0);
    assert_int_equal(pthread_create(&threads[1], NULL, sweeps_on, &b), 0);
    struct world own = {.err = {0}}; /* its err is the other thread's */
    strcpy(own.dir, w->dir);
    for (int i = 0; i < 40; i++) {
        char name[32], path[128], sql[500];
        struct backup *one = NULL;
        snprintf(name, sizeof(name), "copy-%d", i);
        snprintf(path, sizeof(path), "%s/%s", w->dir, name);
        assert_int_equal(mkdir(path, 0700), 0);
        assert_int_equal(backup_new(h->backups, &one, &own.err), 0);
        AUTO_FREE char *names = unpacked(h, one, path);
        backup_free(one);
        snprintf(sql, sizeof(sql), MISSING, path);
        says(path, "pawl.db", sql, "0 0 ");
    }
    atomic_store(&b.stop, true);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    print_message("# %d saved, %d pruned, %d chunks swept meanwhile\n",
                  atomic_load(&b.saved), atomic_load(&b.pruned),
                  atomic_load(&b.swept));
    assert_true(atomic_load(&b.swept) > 50);
}

/* ---- turns ---- */

static void a_sweep_that_looked_before_a_copy_began_is_given_up(void **state)
{
    struct home *h = *state;
    struct world *w = &h->w;
    struct backup *b = NULL;
    put_records(w);
    int64_t turn = backups_turn(h->backups);
    assert_true(turn >= 0 && backups_may_sweep(h->backups, turn));
    must(backup_new(h->backups, &b, &w->err));
    assert_false(backups_may_sweep(h->backups, turn));
    must(wait_ready(b, &w->err));
    assert_false(backups_may_sweep(h->backups, turn)); /* it looked too early */
    turn = backups_turn(h->backups);
    assert_true(turn >= 0); /* sending holds up nobody */
    assert_true(backups_may_sweep(h->backups, turn));
    backup_free(b);
}

static void a_copy_that_is_broken_off_leaves_nothing(void **state)
{
    struct home *h = *state;
    struct world *w = &h->w;
    put_records(w);
    for (int i = 0; i < 50; i++) {
        struct backup *b = NULL;
        must(backup_new(h->backups, &b, &w->err));
        if (i % 3 == 1)
            must(wait_ready(b, &w->err));
        if (i % 3 == 2) {
            CLEANUP(buf_release) struct buf part = {0};
            must(wait_ready(b, &w->err));
            must(backup_next(b, &part, &w->err));
        }
        backup_free(b);
    }
    backups_free(h->backups); /* waits for their threads */
    must(backups_new(&h->server, &h->backups, &w->err));
    assert_int_equal(rmdir(h->tmp), 0); /* only when it is empty */
    assert_int_equal(mkdir(h->tmp, 0700), 0);
}

static void a_copy_that_does_not_fit_is_refused_before_it_is_made(void **state)
{
    struct home *h = *state;
    struct world *w = &h->w;
    struct backup *b = NULL;
    int64_t spare = store_spare;
    put_records(w);
    store_spare = INT64_MAX / 4;
    must(backup_new(h->backups, &b, &w->err));
    int r = wait_ready(b, &w->err);
    store_spare = spare;
    assert_int_equal(r, ERR_NOSPACE);
    assert_true(w->err.missing_bytes > 0);
    assert_non_null(strstr(w->err.text, "pawl.db"));
    backup_free(b);
}

static void a_stop_breaks_them_off(void **state)
{
    struct home *h = *state;
    struct world *w = &h->w;
    struct backup *b = NULL;
    put_records(w);
    atomic_store(&h->server.shutting_down, true);
    must(backup_new(h->backups, &b, &w->err));
    int r = wait_ready(b, &w->err);
    assert_true(r == ERR_BUSY || r > 0); /* small ones may be done by then */
    backup_free(b);
}

/* A name that a plain tar has no room for. */
static void long_names_and_odd_ones_come_through(void **state)
{
    struct home *h = *state;
    struct world *w = &h->w;
    struct backup *b = NULL;
    char set[64], shard[128], path[128], want[400];
    memset(set, 's', sizeof(set));
    set[60] = '\0';
    memset(shard, 'x', sizeof(shard));
    strcpy(shard + 110, ".jsonl");
    must(try_shard(w, set, shard, "{\"a\":1}\n"));
    must(try_shard(w, "set", "a-1_b.c.jsonl", "{\"a\":2}\n"));
    must(backup_new(h->backups, &b, &w->err));
    snprintf(path, sizeof(path), "%s/copy", w->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    AUTO_FREE char *names = unpacked(h, b, path);
    backup_free(b);
    snprintf(want, sizeof(want),
             "datasets/set/a-1_b.c.jsonl datasets/%s/%s checkpoints.db pawl.db",
             set, shard);
    assert_string_equal(names, want);
}

int main(void)
{
#define TEST(name)                                                             \
    cmocka_unit_test_setup_teardown(name, setup_home, teardown_home)
    const struct CMUnitTest tests[] = {
        TEST(what_is_copied_is_what_the_rows_name),
        TEST(nothing_that_a_copy_names_is_swept_from_under_it),
        TEST(a_sweep_that_looked_before_a_copy_began_is_given_up),
        TEST(a_copy_that_is_broken_off_leaves_nothing),
        TEST(a_copy_that_does_not_fit_is_refused_before_it_is_made),
        TEST(a_stop_breaks_them_off),
        TEST(long_names_and_odd_ones_come_through),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
