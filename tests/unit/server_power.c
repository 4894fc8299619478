/* A power cut, a full disk, an I/O error at the n-th call for each n, under the
 * real schema and the real transactions of a job's life. What was answered is
 * there, what was not is there whole or not at all, and sent again it all comes
 * to the same end.
 *
 * The story is a list of requests of one transaction each, as lane.c runs them,
 * told by a client that survives and repeats the step that got no answer. Time and data are the same
 * in each telling, so after each step both files must hold, row for row, what
 * they held there in an undisturbed run.
 *
 * Tests try about one in nine of these calls; TEST_LONG=1 tries them all, with
 * each kind of loss. PAWL_SEED=n draws the same ones again. */
#include <time.h>
#include "server_fixture.h"
#include "frail_vfs.h"
#include <sys/statvfs.h>
#include "server/once.h"
#include "server/room.h"
#include "server/sweep.h"

#define STEPS_MAX 48
#define FIRST_BYTES 150000 /* three pages of checkpoints.db */
#define LATER_BYTES 12000

static char template_dir[64];
static bool thorough;
static uint64_t seed;

struct tale {
    struct world w;
    struct worker a, b;
    struct room *room;
    int step;
    bool repeated; /* holds of chunks may stand twice now */
    /* the client's knowledge when it began the step, for a repeat */
    int begun;
    char a_digest[DIGEST_HEX], b_digest[DIGEST_HEX];
};

/* ---- steps ---- */

/* What a POST answers, once; `make` does it. */
static int posts_once(struct tale *t, const char *key, const json_t *body,
                      int (*make)(struct tale *t, const json_t *body,
                                  int64_t *ret_id))
{
    struct world *w = &t->w;
    AUTO_JSON json_t *said = NULL;
    int status;
    int64_t id;
    CLEANUP(txn_end) struct txn txn = TXN_INIT;
    int r = txn_begin(&txn, w->st, &w->err);
    if (r >= 0)
        r = once_find(w->st, "/v1/jobs", key, body, &status, &said, &w->err);
    if (r != 0)
        return r < 0 ? r : txn_commit(&txn, &w->err);
    r = make(t, body, &id);
    if (r < 0)
        return r;
    AUTO_JSON json_t *answer = json_pack("{sI}", "id", (json_int_t)id);
    r = once_keep(w->st, "/v1/jobs", key, body, 201, answer, w->now, &w->err);
    return r < 0 ? r : txn_commit(&txn, &w->err);
}

static int makes_sweep(struct tale *t, const json_t *body, int64_t *ret_id)
{
    CLEANUP(sweep_release) struct sweep s = {0};
    int r = sweep_parse(body, &s, &t->w.err);
    return r < 0 ? r : sweep_submit(t->w.st, &s, t->w.now, ret_id, &t->w.err);
}

static int submit_sweep(struct tale *t)
{
    AUTO_JSON json_t *body =
        spec_json("{\"sweep\": {\"/training/seed\": [1, 2]}}");
    return posts_once(t, "sweep", body, makes_sweep);
}

static int makes_job(struct tale *t, const json_t *body, int64_t *ret_id)
{
    CLEANUP(spec_release) struct spec spec = {0};
    int r = spec_parse(body, &spec, &t->w.err);
    return r < 0 ? r : job_submit(t->w.st, &spec, t->w.now, ret_id, &t->w.err);
}

static int submit_one(struct tale *t)
{
    AUTO_JSON json_t *body = spec_json(NULL);
    return posts_once(t, "one", body, makes_job);
}

static int submit_two(struct tale *t)
{
    AUTO_JSON json_t *body = spec_json(NULL);
    return posts_once(t, "two", body, makes_job);
}

static int submit_after(struct tale *t)
{
    AUTO_JSON json_t *body =
        spec_json("{\"after\": [{\"job\": 1, \"when\": \"ended\"}, 2]}");
    return posts_once(t, "after", body, makes_job);
}

static int claim(struct tale *t, struct worker *k, int nth)
{
    k->claims = nth;
    int r = worker_claims(&t->w, k);
    return r == 0 ? ERR_NOT_FOUND : r;
}

static int a_claims(struct tale *t)
{
    return claim(t, &t->a, 1);
}

static int b_claims(struct tale *t)
{
    return claim(t, &t->b, 1);
}

static int a_claims_again(struct tale *t)
{
    int r = claim(t, &t->a, 2);
    assert_true(r < 0 || t->a.step == 4); /* where it yielded */
    return r;
}

static int beat(struct tale *t, struct worker *k, int seq, int64_t step)
{
    CLEANUP(buf_release) struct buf more = {0};
    buf_addf(&more, "\"metrics\": [");
    for (int64_t i = step - 1; i <= step; i++)
        buf_addf(&more, "%s[%d, {\"loss\": %d.5, \"lr\": 0.25}]",
                 i < step ? "" : ", ", (int)i, (int)i);
    buf_addf(&more,
             "], \"logs\": [{\"at_ms\": %d, \"level\": \"info\", \"text\":"
             " \"step %d\"}], \"memory\": [{\"step\": %d, \"at_ms\": %d,"
             " \"rss_bytes\": 1000000, \"shapes\": 1}]",
             seq, (int)step, (int)step, seq);
    k->seq = seq - 1;
    k->step = step;
    return beats(&t->w, k, more.data, NULL);
}

static int a_beats(struct tale *t)
{
    return beat(t, &t->a, 1, 2);
}

static int a_beats_again(struct tale *t)
{
    return beat(t, &t->a, 1, 6);
}

/* Two requests that share a commit. */
static int both_beat(struct tale *t)
{
    int r = beat(t, &t->b, 1, 2);
    return r < 0 ? r : beat(t, &t->a, 2, 4);
}

/* The state after so many steps, and its manifest. */
static json_t *state_at(struct tale *t, struct worker *k, int64_t step,
                        char **ret_bytes, size_t *ret_len)
{
    struct world *w = &t->w;
    size_t len = step == 2 ? FIRST_BYTES : LATER_BYTES;
    uint8_t *data = malloc(len);
    for (size_t i = 0; i < len; i++)
        data[i] = (uint8_t)(i * 31 + i / 256 + (size_t)step * 7 +
                            (k == &t->b ? 3 : 0));
    uint8_t sum[DIGEST_BYTES];
    char hex[DIGEST_HEX];
    digest_of(data, len, sum);
    digest_hex(sum, hex);
    json_t *m = json_pack(
        "{ss si sO sI si sI sO sO s{} s{} s[{ss ss s[I] si sI}] sI s[s]}",
        "format", "pawl-state", "version", 1, "cycle",
        json_object_get(json_object_get(k->claim, "lease"), "cycle"), "step",
        (json_int_t)step, "epoch", 0, "records", (json_int_t)step * 4,
        "signature", json_object_get(k->claim, "signature"), "fingerprint",
        json_object_get(k->claim, "fingerprint"), "feed", "totals", "tensors",
        "name", "model.w", "dtype", "F32", "shape", (json_int_t)len / 4,
        "begin", 0, "end", (json_int_t)len, "bytes", (json_int_t)len, "chunks",
        hex);
    assert_non_null(m);
    json_object_set_new(m, "previous",
                        k->digest[0] ? json_string(k->digest) : json_null());
    CLEANUP(buf_release) struct buf file = {0};
    int64_t payload;
    must(state_model_header(m, json_object_get(k->claim, "spec"), &file,
                            &payload, &w->err));
    buf_add(&file, (char *)data, len);
    digest_of(file.data, file.len, sum);
    digest_hex(sum, hex);
    json_object_set_new(m, "model_bytes", json_integer((json_int_t)file.len));
    json_object_set_new(m, "model_sha256", json_string(hex));
    if (ret_bytes) {
        *ret_bytes = (char *)data;
        *ret_len = len;
    } else {
        free(data);
    }
    return m;
}

static int puts_chunk(struct tale *t, struct worker *k, int64_t step)
{
    AUTO_FREE char *data = NULL;
    size_t len = 0;
    AUTO_JSON json_t *m = state_at(t, k, step, &data, &len);
    const char *sha =
        json_string_value(json_array_get(json_object_get(m, "chunks"), 0));
    return chunk_put(t->w.chunks, k->id, sha, data, len, &t->w.err);
}

static int posts_state(struct tale *t, struct worker *k, int64_t step,
                       const char *release)
{
    AUTO_JSON json_t *m = state_at(t, k, step, NULL, NULL);
    k->step = step;
    return posts(&t->w, k, m, release, NULL);
}

static int chunk_2(struct tale *t)
{
    return puts_chunk(t, &t->a, 2);
}

static int save_2(struct tale *t)
{
    return posts_state(t, &t->a, 2, NULL);
}

static int chunk_4(struct tale *t)
{
    return puts_chunk(t, &t->a, 4);
}

static int yield_4(struct tale *t)
{
    return posts_state(t, &t->a, 4, YIELD_STEPS);
}

static int chunk_b(struct tale *t)
{
    return puts_chunk(t, &t->b, 3);
}

static int save_b(struct tale *t)
{
    return posts_state(t, &t->b, 3, NULL);
}

static int fail_b(struct tale *t)
{
    return releases(&t->w, &t->b, FAILED("torch", "true"));
}

static int chunk_5(struct tale *t)
{
    return puts_chunk(t, &t->a, 5);
}

static int save_5(struct tale *t)
{
    return posts_state(t, &t->a, 5, NULL);
}

static int chunk_6(struct tale *t)
{
    return puts_chunk(t, &t->a, 6);
}

static int finish(struct tale *t)
{
    return posts_state(t, &t->a, 6, FINISHED);
}

static int prune(struct tale *t)
{
    return prunes(&t->w);
}

static int sweep(struct tale *t)
{
    CLEANUP(chunk_sweep_release) struct chunk_sweep s = {0};
    int64_t after = 0;
    int r = chunk_sweep_find(t->w.st, t->w.chunks, &after, 1000, &s, &t->w.err);
    return r < 0 ? r : chunk_sweep_run(t->w.chunks, &s, &t->w.err);
}

/* b is let go for want of room, and its cycle waits until there is some. */
static int b_claims_again(struct tale *t)
{
    return claim(t, &t->b, 2);
}

static int park_b(struct tale *t)
{
    return releases(&t->w, &t->b,
                    "{\"outcome\": \"failed\", \"error\": {\"code\":"
                    " \"no_space\", \"detail\": \"full\", \"bytes\": 4,"
                    " \"missing_bytes\": 1}}");
}

static int unpark_b(struct tale *t)
{
    struct world *w = &t->w;
    return room_tick(t->room, w->st, w->chunks, w->now, w->mono, &w->err);
}

/* Another owner while it is trained: his use moves, too. */
static int patch_owner(struct tale *t)
{
    AUTO_JSON json_t *p = json_of("{\"labels\": {\"owner\": \"ann\"}}");
    return job_patch(t->w.st, 1, p, t->w.now, &t->w.err);
}

static int pin(struct tale *t)
{
    return retention_pin(t->w.st, 1, true, t->w.now, &t->w.err);
}

static int cancel_sweep(struct tale *t)
{
    return sweep_cancel(t->w.st, 1, t->w.now, &t->w.err);
}

/* pawld ends and starts: the logs are folded into their files. */
static int reopen(struct tale *t)
{
    struct world *w = &t->w;
    world_close(w);
    int r = store_open(w->dir, false, &w->st, &w->err);
    return r < 0 ? r : store_open(w->dir, true, &w->chunks, &w->err);
}

/* Each in a transaction of its lane, as a task of lane.c is. */
static const struct {
    int (*run)(struct tale *t);
    enum { ALONE, ON_WRITE, ON_CHUNK } lane;
} steps[] = {
    {submit_one, ON_WRITE},
    {submit_two, ON_WRITE},
    {submit_sweep, ON_WRITE},
    {submit_after, ON_WRITE},
    {a_claims, ON_WRITE},
    {b_claims, ON_WRITE},
    {a_beats, ON_WRITE},
    {chunk_2, ON_CHUNK},
    {save_2, ON_WRITE},
    {both_beat, ON_WRITE},
    {chunk_4, ON_CHUNK},
    {yield_4, ON_WRITE},
    {reopen, ALONE},
    {chunk_b, ON_CHUNK},
    {save_b, ON_WRITE},
    {fail_b, ON_WRITE},
    {a_claims_again, ON_WRITE},
    {b_claims_again, ON_WRITE},
    {patch_owner, ON_WRITE},
    {park_b, ON_WRITE},
    {pin, ON_WRITE},
    {unpark_b, ON_WRITE},
    {prune, ON_WRITE},
    {a_beats_again, ON_WRITE},
    {chunk_5, ON_CHUNK},
    {save_5, ON_WRITE},
    {sweep, ON_CHUNK},
    {chunk_6, ON_CHUNK},
    {finish, ON_WRITE},
    {cancel_sweep, ON_WRITE},
    {prune, ON_WRITE},
    {sweep, ON_CHUNK},
    {reopen, ALONE},
};
#define STEPS ((int)(sizeof(steps) / sizeof(*steps)))

/* ---- what the files hold ---- */

static void add_row(struct digest *d, sqlite3_stmt *q, bool loose)
{
    for (int i = 0; i < sqlite3_column_count(q); i++) {
        const char *name = sqlite3_column_name(q, i);
        if (loose && !strncmp(name, "holds_", 6))
            continue;
        const void *data = sqlite3_column_blob(q, i);
        int n = sqlite3_column_bytes(q, i);
        uint8_t type = (uint8_t)sqlite3_column_type(q, i);
        digest_add(d, &type, 1);
        digest_add(d, data ? data : "", (size_t)n);
        digest_add(d, "|", 1);
    }
}

static sqlite3 *look(struct world *w, const char *file)
{
    char path[128];
    sqlite3 *db = NULL;
    snprintf(path, sizeof(path), "%s/%s", w->dir, file);
    if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL) != SQLITE_OK)
        fail_msg("%s: %s", path, sqlite3_errmsg(db));
    sqlite3_wal_autocheckpoint(db, 0);
    return db;
}

static sqlite3_stmt *ask(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *q = NULL;
    if (sqlite3_prepare_v2(db, sql, -1, &q, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    return q;
}

#define TABLES_MAX 40

/* A digest for each table of both files. */
struct snapshot {
    int n;
    struct table {
        char name[48];
        char strict[DIGEST_HEX];
        char loose[DIGEST_HEX]; /* without what repeats may add: holds */
    } tables[TABLES_MAX];
};

static void digest_of_table(sqlite3 *db, const char *name, bool loose,
                            char ret[DIGEST_HEX])
{
    struct digest *d = digest_new();
    uint8_t sum[DIGEST_BYTES];
    char sql[200];
    int rc;
    snprintf(sql, sizeof(sql), "SELECT * FROM \"%s\"", name);
    sqlite3_stmt *q = ask(db, sql);
    bool skip =
        loose && (!strcmp(name, "holds") || !strcmp(name, "sqlite_sequence"));
    while (!skip && (rc = sqlite3_step(q)) == SQLITE_ROW)
        add_row(d, q, loose);
    assert_true(skip || rc == SQLITE_DONE);
    sqlite3_finalize(q);
    digest_end(d, sum);
    digest_free(d);
    digest_hex(sum, ret);
}

static void snap_file(struct world *w, const char *file, struct snapshot *ret)
{
    sqlite3 *db = look(w, file);
    sqlite3_stmt *q = ask(db, "SELECT name FROM sqlite_schema WHERE type ="
                              " 'table' ORDER BY name");
    while (sqlite3_step(q) == SQLITE_ROW) {
        struct table *t = &ret->tables[ret->n++];
        assert_true(ret->n <= TABLES_MAX);
        const char *name = (const char *)sqlite3_column_text(q, 0);
        snprintf(t->name, sizeof(t->name), "%s", name);
        digest_of_table(db, name, false, t->strict);
        digest_of_table(db, name, true, t->loose);
    }
    sqlite3_finalize(q);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static void snap(struct world *w, struct snapshot *ret)
{
    frail.paused = true;
    ret->n = 0;
    snap_file(w, "pawl.db", ret);
    snap_file(w, "checkpoints.db", ret);
    frail.paused = false;
}

static struct snapshot after[STEPS_MAX + 1]; /* of the undisturbed run */

/* The first table that is not as it was before that step, or NULL. */
static const char *differs(const struct snapshot *now, int step, bool loose)
{
    const struct snapshot *then = &after[step];
    if (now->n != then->n)
        return "sqlite_schema";
    for (int i = 0; i < now->n; i++) {
        const struct table *a = &now->tables[i], *b = &then->tables[i];
        if (strcmp(a->name, b->name) ||
            (loose ? strcmp(a->loose, b->loose) : strcmp(a->strict, b->strict)))
            return a->name;
    }
    return NULL;
}

static void sound(struct world *w, const char *file)
{
    frail.paused = true;
    sqlite3 *db = look(w, file);
    sqlite3_stmt *q = ask(db, "PRAGMA integrity_check");
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    assert_string_equal((const char *)sqlite3_column_text(q, 0), "ok");
    sqlite3_finalize(q);
    q = ask(db, "PRAGMA foreign_key_check");
    assert_int_equal(sqlite3_step(q), SQLITE_DONE);
    sqlite3_finalize(q);
    sqlite3_close(db);
    frail.paused = false;
}

/* Every checkpoint can be had whole: chunks were durable before manifests. */
static void whole(struct world *w)
{
    frail.paused = true;
    sqlite3 *db = look(w, "pawl.db");
    sqlite3_stmt *q = ask(db, "SELECT id FROM checkpoints");
    while (sqlite3_step(q) == SQLITE_ROW) {
        CLEANUP(checkpoint_release) struct checkpoint c = {0};
        struct checkpoint_body *body = NULL;
        must(checkpoint_load(w->st, sqlite3_column_int64(q, 0), &c, &w->err));
        must(checkpoint_body_new(w->st, &c, false, &body, &w->err));
        int64_t n = checkpoint_body_bytes(body);
        AUTO_FREE char *all = malloc((size_t)n);
        assert_int_equal(
            checkpoint_body_read(body, w->chunks, 0, all, (size_t)n, &w->err),
            n);
        checkpoint_body_free(body);
    }
    sqlite3_finalize(q);
    sqlite3_close(db);
    frail.paused = false;
}

/* ---- telling it ---- */

static int copy_file(const char *from_dir, const char *to_dir, const char *name)
{
    char from[200], to[200], part[65536];
    snprintf(from, sizeof(from), "%s/%s", from_dir, name);
    snprintf(to, sizeof(to), "%s/%s", to_dir, name);
    int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT, 0600);
    ssize_t n;
    while ((n = read(in, part, sizeof(part))) > 0)
        if (write(out, part, (size_t)n) != n)
            return -1;
    close(in);
    close(out);
    return n < 0 ? -1 : 0;
}

static void tale_begin(struct tale *t, bool with_files)
{
    struct world *w = &t->w;
    memset(t, 0, sizeof(*t));
    t->a.name = "a";
    t->b.name = "b";
    t->begun = -1;
    strcpy(w->dir, access("/dev/shm", W_OK) == 0 ? "/dev/shm/pawl-power-XXXXXX"
                                                 : "/tmp/pawl-power-XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    w->now = 1700000000000;
    w->mono = 5000000;
    must(room_new(&t->room, &w->err));
    if (!with_files)
        return;
    assert_int_equal(copy_file(template_dir, w->dir, "pawl.db"), 0);
    assert_int_equal(copy_file(template_dir, w->dir, "checkpoints.db"), 0);
    char link[100], to[100];
    snprintf(link, sizeof(link), "%s/datasets", w->dir);
    snprintf(to, sizeof(to), "%s/datasets", template_dir);
    assert_int_equal(symlink(to, link), 0);
    world_open(w);
}

static void tale_end(struct tale *t)
{
    frail_mend();
    room_free(t->room);
    worker_drop(&t->a);
    worker_drop(&t->b);
    world_close(&t->w);
    frail_forget();
    nftw(t->w.dir, unlink_one, 16, FTW_DEPTH | FTW_PHYS);
}

static int tell(struct tale *t)
{
    t->w.now = 1700000000000 + t->step * 1000;
    t->w.mono = 5000000 + t->step * 1000;
    if (t->begun == t->step) {
        memcpy(t->a.digest, t->a_digest, DIGEST_HEX);
        memcpy(t->b.digest, t->b_digest, DIGEST_HEX);
    }
    t->begun = t->step;
    memcpy(t->a_digest, t->a.digest, DIGEST_HEX);
    memcpy(t->b_digest, t->b.digest, DIGEST_HEX);
    if (steps[t->step].lane == ALONE)
        return steps[t->step].run(t);
    struct store *st = steps[t->step].lane == ON_WRITE ? t->w.st : t->w.chunks;
    CLEANUP(txn_end) struct txn batch = TXN_INIT;
    int r = txn_begin(&batch, st, &t->w.err);
    if (r >= 0) {
        CLEANUP(txn_end) struct txn own = TXN_INIT;
        r = txn_begin(&own, st, &t->w.err);
        if (r >= 0)
            r = steps[t->step].run(t);
        if (r >= 0)
            r = txn_commit(&own, &t->w.err);
    }
    return r < 0 ? r : txn_commit(&batch, &t->w.err);
}

static void tell_rest(struct tale *t)
{
    struct world *w = &t->w;
    for (; t->step < STEPS; t->step++)
        must(tell(t));
    struct snapshot end;
    snap(w, &end);
    const char *table = differs(&end, STEPS, true);
    if (table)
        fail_msg("the story ends with other %s", table);
    sound(w, "pawl.db");
    sound(w, "checkpoints.db");
    whole(w);
}

/* Power is gone: what is there when it is back? */
static void come_back(struct tale *t, enum frail_loss loss)
{
    struct world *w = &t->w;
    struct snapshot now;
    world_close(w);
    frail_cut(loss);
    world_open(w);
    sound(w, "pawl.db");
    sound(w, "checkpoints.db");
    whole(w);
    snap(w, &now);
    const char *old = differs(&now, t->step, t->repeated);
    const char *new = differs(&now, t->step + 1, t->repeated);
    if (old && new)
        fail_msg("step %d was cut: what is there is neither as before it (%s) "
                 "nor as after it (%s)",
                 t->step, old, new);
    t->repeated = true;
}

/* Tell the story with power gone at the n-th call, and with luck once more. */
static bool cut_at(int64_t n, enum frail_loss loss)
{
    struct tale t;
    tale_begin(&t, true);
    frail.random = seed * 1000003 + (uint64_t)n * 7 + loss;
    frail_arm(FAULT_CUT, n, false);
    int cuts = 0;
    while (t.step < STEPS) {
        int r = tell(&t);
        if (!frail.off) {
            if (r < 0)
                fail_msg("step %d: %s", t.step, t.w.err.text);
            t.step++;
            continue;
        }
        /* a step that was answered all the same has happened */
        if (r >= 0)
            t.step++;
        cuts++;
        come_back(&t, loss);
        if (cuts < 3 && frail_random() & 1)
            frail_arm(FAULT_CUT, 1 + frail_random() % 30, false);
    }
    frail_mend();
    tell_rest(&t);
    tale_end(&t);
    return cuts > 0;
}

/* Tell it with an error at the n-th call; then power goes, too. */
static bool fail_at(enum frail_fault fault, int64_t n, bool lasting)
{
    struct tale t;
    struct world *w = &t.w;
    tale_begin(&t, true);
    frail.random = seed * 1000003 + (uint64_t)n * 7 + fault;
    frail_arm(fault, n, lasting);
    bool hit = false;
    while (t.step < STEPS) {
        int r = tell(&t);
        hit |= frail.hit;
        if (r >= 0) {
            t.step++;
            continue;
        }
        if (!frail.hit)
            fail_msg("step %d: %s", t.step, w->err.text);
        int want = fault == FAULT_FULL ? ERR_NOSPACE : ERR_IO;
        if (r != want)
            fail_msg("step %d is refused with %d instead of %d: %s", t.step, r,
                     want, w->err.text);
        frail_mend();
        if (!w->st || !w->chunks) {
            world_close(w);
            world_open(w);
        }
        struct snapshot now;
        snap(w, &now);
        const char *table = differs(&now, t.step, t.repeated);
        if (table)
            fail_msg("step %d was refused, but left something in %s", t.step,
                     table);
        t.repeated = true;
    }
    frail_mend();
    tell_rest(&t);
    t.step = STEPS;
    world_close(w);
    frail_cut(LOSE_ALL);
    world_open(w);
    struct snapshot now;
    snap(w, &now);
    const char *lost = differs(&now, STEPS, true);
    if (lost)
        fail_msg("what was answered is not in %s after a power cut", lost);
    whole(w);
    tale_end(&t);
    return hit;
}

/* ---- tests ---- */

static void an_undisturbed_story_has_one_end(void **state)
{
    for (int i = 0; i < 2; i++) {
        struct tale t;
        tale_begin(&t, true);
        for (;;) {
            struct snapshot now;
            snap(&t.w, &now);
            if (i == 0)
                after[t.step] = now;
            else
                assert_null(differs(&now, t.step, false));
            if (t.step == STEPS)
                break;
            struct world *w = &t.w;
            must(tell(&t));
            t.step++;
        }
        AUTO_JSON json_t *j = job(&t.w, 1);
        assert_string_equal(str_of(j, "state"), "completed");
        tale_end(&t);
    }
}

static void a_step_that_is_repeated_changes_nothing(void **state)
{
    struct tale t;
    struct world *w = &t.w;
    tale_begin(&t, true);
    for (; t.step < STEPS; t.step++) {
        must(tell(&t));
        must(tell(&t));
        struct snapshot now;
        snap(w, &now);
        const char *table = differs(&now, t.step + 1, true);
        if (table)
            fail_msg("step %d, told twice, changed %s twice", t.step, table);
    }
    tale_end(&t);
}

/* All calls, or about one in nine of them. */
static int64_t next(int64_t n)
{
    return n + (thorough ? 1 : 1 + frail_random() % 17);
}

static void a_power_cut_at_any_call_leaves_old_or_new(void **state)
{
    bool any = true;
    int64_t n, told = 0;
    frail.random = seed;
    for (n = next(0); any; n = next(n)) {
        any = false;
        for (int loss = 0; loss < LOSSES; loss++)
            if (thorough || n % LOSSES == loss) {
                any |= cut_at(n, (enum frail_loss)loss);
                told++;
            }
        for (int i = 0; thorough && i < 8; i++, told++) {
            seed += 100000;
            any |= cut_at(n, LOSE_SOME);
        }
    }
    print_message("# power went in %d of %d stories\n", (int)told - 1,
                  (int)told);
    assert_true(n > 100);
}

/* For a moment, or until somebody sees to it. */
static void fails_everywhere(enum frail_fault fault, const char *what,
                             int least)
{
    int64_t n, told = 0;
    bool any = true, each = thorough || fault == FAULT_SYNC;
    frail.random = seed;
    for (n = each ? 1 : next(0); any; n = each ? n + 1 : next(n), told++) {
        any = fail_at(fault, n, told & 1);
        if (any && each)
            fail_at(fault, n, !(told & 1));
    }
    print_message("# %s failed in %d stories\n", what, (int)told - 1);
    assert_true(n > least);
}

static void a_full_disk_at_any_write_changes_nothing(void **state)
{
    fails_everywhere(FAULT_FULL, "a write for want of space", 100);
}

static void a_failed_write_changes_nothing(void **state)
{
    fails_everywhere(FAULT_WRITE, "a write", 100);
}

static void a_failed_sync_changes_nothing(void **state)
{
    fails_everywhere(FAULT_SYNC, "a sync", 20);
}

static void a_failed_read_changes_nothing(void **state)
{
    fails_everywhere(FAULT_READ, "a read", 20);
}

/* From the first byte of the files on. */
static void a_power_cut_while_the_files_are_made_is_mended(void **state)
{
    bool cut = true;
    int64_t n;
    for (n = 1; cut; n++) {
        for (int loss = 0; loss < LOSSES; loss++) {
            if (!thorough && n % LOSSES != loss)
                continue;
            struct tale t;
            struct world *w = &t.w;
            tale_begin(&t, false);
            frail.random = seed * 1000003 + (uint64_t)n * 7;
            frail_arm(FAULT_CUT, n, false);
            int r = store_open(w->dir, false, &w->st, &w->err);
            if (r >= 0)
                r = store_open(w->dir, true, &w->chunks, &w->err);
            cut = frail.off;
            assert_true(r >= 0 || cut);
            world_close(w);
            frail_cut((enum frail_loss)loss);
            world_open(w);
            sound(w, "pawl.db");
            sound(w, "checkpoints.db");
            struct event e = {.step = -1, .kind = "k", .actor = "a"};
            must(event_add(w->st, &e, w->now, &w->err, "works"));
            tale_end(&t);
        }
    }
    print_message("# %d calls\n", (int)n - 2);
}

/* As much room on each machine. */
static int roomy(const char *path, struct statvfs *ret)
{
    *ret = (struct statvfs){.f_bsize = 4096,
                            .f_frsize = 4096,
                            .f_blocks = 1 << 28,
                            .f_bfree = 1 << 27,
                            .f_bavail = 1 << 27};
    return 0;
}

static int begin(void **state)
{
    store_statvfs = roomy;
    const char *text = getenv("PAWL_SEED");
    seed = text ? strtoull(text, NULL, 10) : (uint64_t)time(NULL) % 100000;
    text = getenv("TEST_LONG");
    thorough = text && *text;
    print_message("# PAWL_SEED=%llu\n", (unsigned long long)seed);
    int r = setup(state);
    if (r < 0)
        return r;
    struct world *w = *state;
    put_records(w);
    world_close(w);
    strcpy(template_dir, w->dir);
    frail_register();
    /* logs are folded into the files all the time, not every 1,000 pages */
    store_wal_bytes = 6 * 4096;
    return 0;
}

static int end(void **state)
{
    return teardown(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_undisturbed_story_has_one_end),
        cmocka_unit_test(a_step_that_is_repeated_changes_nothing),
        cmocka_unit_test(a_power_cut_at_any_call_leaves_old_or_new),
        cmocka_unit_test(a_power_cut_while_the_files_are_made_is_mended),
        cmocka_unit_test(a_full_disk_at_any_write_changes_nothing),
        cmocka_unit_test(a_failed_write_changes_nothing),
        cmocka_unit_test(a_failed_sync_changes_nothing),
        cmocka_unit_test(a_failed_read_changes_nothing),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
