/* Shards that are at a server: the same lines as here, each block fetched once
 * where the cache holds them all, just the lines where it does not; a server
 * that is away, bytes that come damaged, a cache that is emptied. */
#include "tests/unit/worker_server.h"
#include "tests/unit/worker_text.h"
#include <time.h>
#include "worker/cache.h"
#include "worker/remote.h"
#include "worker/scanner.h"

#define MB_BLOCK (64 * 1024)

static unsigned next_random(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Two shards, here and at the server. */
struct scene {
    struct folder dir;
    struct server server;
    json_t *data;
    struct buf text[2];
    struct client_options net;
    struct cache *cache;
    struct remote *remote;
    struct shards *near, *far;
    atomic_int patience; /* attempts until it is given up */
};

static bool give_up(void *arg)
{
    struct scene *s = arg;
    return atomic_fetch_sub(&s->patience, 1) <= 0;
}

static void make_text(unsigned seed, int lines, struct buf *ret)
{
    unsigned random = seed;
    for (int i = 0; i < lines; i++) {
        buf_addf(ret, "{\"id\":%d,\"x\":\"", i);
        for (unsigned k = next_random(&random) % 400; k; k--) {
            char c = (char)('a' + next_random(&random) % 26);
            buf_add(ret, &c, 1);
        }
        buf_adds(ret, "\"}\n");
    }
}

static void reach(struct scene *s)
{
    struct err err = {0};
    struct remote_options o = {.net = &s->net,
                               .lease = 7,
                               .token = 5,
                               .cache = s->cache,
                               .give_up = give_up,
                               .arg = s};
    assert_int_equal(remote_new(&o, &s->remote, &err), 0);
    if (shards_open(s->data, s->remote, &s->far, &err) < 0)
        fail_msg("%s", err.text);
}

static void leave(struct scene *s)
{
    shards_close(s->far);
    remote_free(s->remote);
    s->far = NULL;
    s->remote = NULL;
}

static void cache_of(struct scene *s, int64_t max)
{
    char path[128];
    struct err err = {0};
    in_folder(&s->dir, "cache", path, sizeof path);
    cache_close(s->cache);
    s->cache = NULL;
    if (max >= 0)
        assert_int_equal(cache_open(path, max, &s->cache, &err), 0);
}

/* cache_max −1: none. */
static void scene_init(struct scene *s, int64_t cache_max)
{
    *s = (struct scene){.patience = 1000};
    folder_init(&s->dir);
    server_start(&s->server, &s->dir);
    s->net = (struct client_options){.server = s->server.url, .token = "word"};
    make_text(1, 2000, &s->text[0]);
    make_text(2, 1000, &s->text[1]);
    struct made how = {.index = true, .block_bytes = MB_BLOCK};
    s->data = json_pack("{s:[o,o]}", "shards",
                        freeze_text(&s->dir, "a", &s->text[0], &how),
                        freeze_text(&s->dir, "b", &s->text[1], &how));
    struct err err = {0};
    assert_int_equal(shards_open(s->data, NULL, &s->near, &err), 0);
    for (int i = 0; i < 2; i++) {
        const json_t *one =
            json_array_get(json_object_get(s->data, "shards"), (size_t)i);
        server_holds(&s->server, i, s->text[i].data, s->text[i].len,
                     json_string_value(json_object_get(one, "index")));
    }
    cache_of(s, cache_max);
    reach(s);
}

static void scene_release(struct scene *s)
{
    leave(s);
    shards_close(s->near);
    cache_close(s->cache);
    server_stop(&s->server);
    json_decref(s->data);
    buf_release(&s->text[0]);
    buf_release(&s->text[1]);
    folder_release(&s->dir);
}

static int64_t blocks_of(const struct scene *s)
{
    return s->near->v[0].n_blocks + s->near->v[1].n_blocks;
}

/* All lines front to back; <0: what went wrong. */
static int scan_all(struct scene *s, struct err *err)
{
    CLEANUP(scanner_release) struct scanner scan;
    struct ref ref;
    const char *line;
    int r, n = 0;
    assert_int_equal(scanner_init(&scan, s->far, err), 0);
    while ((r = scanner_next(&scan, &ref, &line, err)) > 0) {
        assert_memory_equal(line, s->text[ref.shard].data + ref.offset,
                            (size_t)ref.length);
        n++;
    }
    return r < 0 ? r : n;
}

/* `n` records drawn at random, by the index, as a shuffle of all does. */
static int draw(struct scene *s, unsigned seed, int n, struct err *err)
{
    AUTO_FREE struct ref *refs = calloc((size_t)n, sizeof *refs);
    CLEANUP(buf_release) struct buf out = {0}, want = {0};
    unsigned random = seed;
    for (int i = 0; i < n; i++) {
        int shard = (int)(next_random(&random) % 2);
        int64_t k = next_random(&random) % (shard ? 1000 : 2000);
        struct line_entry e, near;
        int r = shards_entries(s->far, shard, k, 1, &e, err);
        if (r < 0)
            return r;
        assert_int_equal(shards_entries(s->near, shard, k, 1, &near, err), 0);
        assert_memory_equal(&e, &near, sizeof e);
        refs[i] = shards_ref(shard, &e);
    }
    int r = shards_lines(s->far, refs, n, &out, err);
    if (r < 0)
        return r;
    assert_int_equal(shards_lines(s->near, refs, n, &want, err), 0);
    assert_int_equal(out.len, want.len);
    assert_memory_equal(out.data, want.data, out.len);
    return n;
}

static void the_lines_are_the_same_however_they_are_kept(void **state)
{
    static const int64_t sizes[] = {-1, 0, 3 * MB_BLOCK, 16 << 20};
    for (int i = 0; i < 4; i++) {
        CLEANUP(scene_release) struct scene s;
        scene_init(&s, sizes[i]);
        struct err err = {0};
        assert_int_equal(scan_all(&s, &err), 3000);
        for (unsigned seed = 0; seed < 5; seed++)
            assert_int_equal(draw(&s, seed, 100, &err), 100);
        assert_int_equal(scan_all(&s, &err), 3000);
        assert_true(shards_bytes_read(s.far) > 0);
        CLEANUP(buf_release) struct buf a = {0}, b = {0};
        assert_int_equal(shards_line_number(s.far, 1, s.far->v[1].bytes - 1),
                         1000);
    }
}

static void each_block_comes_once_where_all_fit(void **state)
{
    CLEANUP(scene_release) struct scene s;
    scene_init(&s, 16 << 20);
    struct err err = {0};
    for (unsigned seed = 0; seed < 20; seed++)
        draw(&s, seed, 50, &err);
    assert_int_equal(s.server.requests, blocks_of(&s));
    assert_int_equal(s.server.index_requests, 2);
    assert_int_equal(scan_all(&s, &err), 3000);
    assert_int_equal(s.server.requests, blocks_of(&s));
    leave(&s);
    reach(&s); /* the next process */
    assert_int_equal(scan_all(&s, &err), 3000);
    draw(&s, 99, 50, &err);
    assert_int_equal(s.server.requests, blocks_of(&s));
    assert_int_equal(s.server.index_requests, 2);
}

static void no_block_is_fetched_for_a_record_where_they_do_not_fit(void **state)
{
    CLEANUP(scene_release) struct scene s;
    scene_init(&s, 4 * MB_BLOCK);
    struct err err = {0};
    draw(&s, 1, 4, &err); /* has the indexes fetched */
    int before = atomic_load(&s.server.bytes);
    assert_int_equal(draw(&s, 2, 4, &err), 4);
    /* four lines of 500 bytes at the most, and gaps between near ones */
    assert_true(atomic_load(&s.server.bytes) - before < 4 * 500 + 3 * 16384);
    assert_int_equal(s.server.index_requests, 2);
    /* what lies in the cache is not fetched again */
    assert_int_equal(scan_all(&s, &err), 3000);
}

/* Were the oldest to go, a cache of half the text would be of no use to one who
 * reads it again and again. */
static void a_small_cache_spares_its_share_of_each_pass(void **state)
{
    CLEANUP(scene_release) struct scene s;
    scene_init(&s, 6 * MB_BLOCK); /* of some 10 blocks */
    struct err err = {0};
    int64_t all = blocks_of(&s);
    assert_in_range(all, 9, 12);
    assert_int_equal(scan_all(&s, &err), 3000);
    assert_int_equal(s.server.requests, all);
    for (int pass = 2; pass < 5; pass++) {
        int before = atomic_load(&s.server.requests);
        assert_int_equal(scan_all(&s, &err), 3000);
        assert_in_range(s.server.requests - before, 1, all - 2);
    }
}

static void blocks_in_order_are_asked_for_ahead(void **state)
{
    CLEANUP(scene_release) struct scene s;
    scene_init(&s, -1);
    struct err err = {0};
    assert_int_equal(scan_all(&s, &err), 3000);
    assert_int_equal(s.server.requests, blocks_of(&s)); /* and each once */
}

static void a_server_that_is_away_is_waited_for(void **state)
{
    CLEANUP(scene_release) struct scene s;
    scene_init(&s, 16 << 20);
    struct err err = {0};
    s.server.away = 1;
    s.server.busy = 1;
    s.server.cut = 1;
    s.server.deaf = 1; /* a proxy that knows no Range */
    assert_int_equal(scan_all(&s, &err), 3000);
    s.server.away = 1;
    s.server.cut = 1;
    assert_int_equal(draw(&s, 3, 60, &err), 60);
    cache_of(&s, -1); /* no cache from now on */
    leave(&s);
    reach(&s);
    s.server.away = 1000000;
    s.patience = 2;
    assert_int_equal(scan_all(&s, &err), ERR_NET);
    s.server.away = 0;
    s.patience = 100;
    assert_int_equal(scan_all(&s, &err), 3000); /* and is there again */
}

static void what_is_damaged_on_the_way_is_asked_for_again(void **state)
{
    for (int i = 0; i < 3; i++) {
        CLEANUP(scene_release) struct scene s;
        scene_init(&s, i ? 16 << 20 : 0);
        struct err err = {0};
        s.server.flip = 1;
        if (i == 1)
            assert_int_equal(scan_all(&s, &err), 3000);
        else
            assert_int_equal(draw(&s, 5, 1, &err) + draw(&s, 6, 20, &err), 21);
        assert_int_equal(s.server.flip, 0);
    }
}

/* The four of DAT-07: three are the server's to see, one is the worker's. */
static void each_refusal_is_the_servers_or_a_digests(void **state)
{
    static const char *const refusals[] = {
        "shard 'a' is missing: there is no file /x/a",
        "shard 'a' is a symbolic link now; links are not followed",
        "shard 'a' has shrunk: it ends at offset 3000, but held 9000 bytes",
    };
    for (int by_lines = 0; by_lines < 2; by_lines++)
        for (int i = 0; i < 4; i++) {
            CLEANUP(scene_release) struct scene s;
            scene_init(&s, by_lines ? 0 : 16 << 20);
            struct err err = {0};
            assert_int_equal(draw(&s, 1, 1, &err), 1);
            if (i < 3)
                s.server.refuse[0] = refusals[i];
            else
                for (size_t k = 0; k < s.server.text[0].len; k++)
                    s.server.text[0].data[k] ^= 1;
            int r = by_lines ? draw(&s, 2, 40, &err) : scan_all(&s, &err);
            assert_int_equal(r, ERR_DATA);
            if (i < 3) {
                assert_string_equal(err.text, refusals[i]);
                assert_int_equal(err.offset, 3000);
            } else {
                assert_non_null(strstr(err.text, "is not what it was when"));
            }
            assert_string_equal(err.shard, "a");
            s.server.refuse[0] = NULL;
            if (i == 3)
                for (size_t k = 0; k < s.server.text[0].len; k++)
                    s.server.text[0].data[k] ^= 1;
            assert_int_equal(scan_all(&s, &err), 3000);
            assert_int_equal(draw(&s, 2, 40, &err), 40);
        }
}

static void an_old_lease_gets_nothing(void **state)
{
    CLEANUP(scene_release) struct scene s;
    scene_init(&s, 0);
    struct err err = {0};
    s.server.stale = true;
    assert_int_equal(scan_all(&s, &err), ERR_STALE);
    assert_int_equal(draw(&s, 1, 5, &err), ERR_STALE);
}

static void a_wrong_index_gives_no_wrong_record(void **state)
{
    CLEANUP(scene_release) struct scene s;
    scene_init(&s, 16 << 20);
    CLEANUP(buf_release) struct buf line = {0};
    struct err err = {0};
    s.server.index[0].data[LINE_INDEX_HEAD + 16 * 3 + 4] ^= 1; /* offset */
    struct line_entry e;
    assert_int_equal(shards_entries(s.far, 0, 3, 1, &e, &err), 0);
    struct ref ref = shards_ref(0, &e);
    assert_int_equal(shards_line(s.far, &ref, &line, &err), ERR_CORRUPT);
    assert_non_null(strstr(err.text, "index"));
    /* behind the end of the text */
    s.server.index[1].data[LINE_INDEX_HEAD + 16 * 3 + 6] ^= 64;
    assert_int_equal(shards_entries(s.far, 1, 3, 1, &e, &err), ERR_CORRUPT);
    assert_non_null(strstr(err.text, "'b'"));
}

static void empty_cache(struct scene *s, bool damage)
{
    char command[256];
    if (damage)
        snprintf(command, sizeof command,
                 "find '%s/cache' -type f -size +1k | while read f; do "
                 "printf XXXX | dd of=$f bs=1 seek=700 conv=notrunc "
                 "2>/dev/null; done",
                 s->dir.path);
    else
        snprintf(command, sizeof command, "rm -rf '%s/cache'", s->dir.path);
    assert_int_equal(system(command), 0);
}

static void a_cache_that_is_emptied_or_damaged_is_filled_again(void **state)
{
    for (int damage = 0; damage < 2; damage++) {
        CLEANUP(scene_release) struct scene s;
        scene_init(&s, 16 << 20);
        struct err err = {0};
        for (int round = 0; round < 4; round++) {
            assert_int_equal(draw(&s, (unsigned)round, 100, &err), 100);
            empty_cache(&s, damage);
            assert_int_equal(draw(&s, (unsigned)round, 100, &err), 100);
            empty_cache(&s, damage);
            assert_int_equal(scan_all(&s, &err), 3000);
        }
    }
}

/* ---- an end while it waits ---- */

static void *interrupt_soon(void *arg)
{
    struct scene *s = arg;
    while (atomic_load(&s->server.requests) < 3) /* it is being waited for */
        sched_yield();
    shards_interrupt(s->far);
    return NULL;
}

static void a_read_that_waits_can_be_interrupted(void **state)
{
    CLEANUP(scene_release) struct scene s;
    scene_init(&s, 0);
    struct err err = {0};
    s.server.busy = 1000000;
    s.patience = 1000000;
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, interrupt_soon, &s), 0);
    assert_int_equal(scan_all(&s, &err), ERR_NET);
    pthread_join(t, NULL);
    assert_int_equal(draw(&s, 1, 1, &err), ERR_NET); /* nor does it begin */
}

/* ---- threads ---- */

static void *draw_much(void *arg)
{
    struct scene *s = arg;
    struct err err = {0};
    for (unsigned seed = 0; seed < 10; seed++)
        assert_int_equal(draw(s, seed * 17, 30, &err), 30);
    return NULL;
}

static void threads_read_side_by_side(void **state)
{
    for (int i = 0; i < 2; i++) {
        CLEANUP(scene_release) struct scene s;
        scene_init(&s, i ? 16 << 20 : 2 * MB_BLOCK);
        struct err err = {0};
        pthread_t t[3];
        for (int k = 0; k < 3; k++)
            assert_int_equal(pthread_create(&t[k], NULL, draw_much, &s), 0);
        assert_int_equal(scan_all(&s, &err), 3000);
        for (int k = 0; k < 3; k++)
            pthread_join(t[k], NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_lines_are_the_same_however_they_are_kept),
        cmocka_unit_test(each_block_comes_once_where_all_fit),
        cmocka_unit_test(
            no_block_is_fetched_for_a_record_where_they_do_not_fit),
        cmocka_unit_test(a_small_cache_spares_its_share_of_each_pass),
        cmocka_unit_test(blocks_in_order_are_asked_for_ahead),
        cmocka_unit_test(a_server_that_is_away_is_waited_for),
        cmocka_unit_test(what_is_damaged_on_the_way_is_asked_for_again),
        cmocka_unit_test(each_refusal_is_the_servers_or_a_digests),
        cmocka_unit_test(an_old_lease_gets_nothing),
        cmocka_unit_test(a_wrong_index_gives_no_wrong_record),
        cmocka_unit_test(a_cache_that_is_emptied_or_damaged_is_filled_again),
        cmocka_unit_test(a_read_that_waits_can_be_interrupted),
        cmocka_unit_test(threads_read_side_by_side),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
