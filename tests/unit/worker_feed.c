/* The feed: order, resumes, data that changed, records that are bad. */
#include "tests/unit/worker_data.h"
#include "schema/line_hash.h"
#include "worker/feed.h"
#include "worker/scanner.h"
#include "worker/shard.h"
#include "worker/shuffle.h"

/* ---- running a feed as the trainer does ---- */

/* One trained step, as text: "step epoch shard:offset …". */
struct log {
    struct buf text;
    int64_t steps;
    int ids[4096]; /* first tokens, in order */
    int n_ids;
};

static void log_release(struct log *l)
{
    buf_release(&l->text);
}

struct saved {
    json_t *position;
    int64_t *buffer, n;
};

static void saved_release(struct saved *s)
{
    json_decref(s->position);
    free(s->buffer);
    *s = (struct saved){0};
}

static struct feed *open_feed(const struct spec *spec, const json_t *data,
                              const struct saved *from)
{
    struct feed *f = NULL;
    struct err err = {0};
    if (feed_open(spec, &spec->runtime, data, NULL, 3, &f, &err) < 0)
        fail_msg("%s", err.text);
    if (from && from->position &&
        feed_resume(f, from->position, from->buffer, from->n, &err) < 0)
        fail_msg("%s", err.text);
    return f;
}

static void save_feed(struct feed *f, struct saved *ret)
{
    struct err err = {0};
    saved_release(ret);
    assert_int_equal(feed_save(f, &ret->position, &ret->buffer, &ret->n, &err),
                     0);
}

/* Hand out one step's micro-batches; trained only if `count` says so. 1, or
 * what feed_next returned instead. */
static int one_step(struct feed *f, const struct spec *spec, bool count,
                    struct log *l, struct err *err)
{
    CLEANUP(buf_release) struct buf line = {0};
    int ids[1024], n = 0, records = 0;
    struct feed_batch *b;
    do {
        int r = feed_next(f, &b, err);
        if (r <= 0) {
            assert_int_equal(records, 0); /* never within a step */
            return r;
        }
        if (!records)
            buf_addf(&line, "%lld %lld", (long long)b->step,
                     (long long)b->epoch);
        assert_int_equal(b->batch.first, records);
        int x = record_desc_field(&spec->record, "x");
        int width = b->batch.padded[spec->record.fields[x].dim];
        for (int i = 0; i < b->batch.records; i++) {
            buf_addf(&line, " %lld:%lld", (long long)b->places[i][0],
                     (long long)b->places[i][1]);
            ids[n++] = b->batch.ints[x][i * width];
        }
        records += b->batch.records;
        assert_true(records <= b->effective);
        assert_int_equal(b->last, records == b->effective);
    } while (!b->last);
    if (!count)
        return 1;
    feed_trained(f);
    buf_addf(&l->text, "%s\n", line.data);
    l->steps++;
    for (int i = 0; i < n && l->n_ids < 4096; i++)
        l->ids[l->n_ids++] = ids[i];
    return 1;
}

static unsigned next_random(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Train all, stopping after each step with a chance of 1 in `stop`; a stop
 * loses what was handed out but not trained. */
static void run_all(const struct spec *spec, const json_t *data, unsigned stop,
                    unsigned seed, struct log *l, int *ret_stops)
{
    CLEANUP(saved_release) struct saved at = {0};
    struct feed *f = open_feed(spec, data, NULL);
    struct err err = {0};
    int stops = 0, r;
    for (;;) {
        bool lost = stop && next_random(&seed) % (stop + 1) == 0;
        r = one_step(f, spec, !lost, l, &err);
        if (r <= 0)
            break;
        if (!lost && !(stop && next_random(&seed) % stop == 0))
            continue;
        save_feed(f, &at);
        feed_close(f);
        f = open_feed(spec, data, &at);
        stops++;
    }
    if (r < 0)
        fail_msg("%s", err.text);
    save_feed(f, &at); /* and at the very end */
    feed_close(f);
    f = open_feed(spec, data, &at);
    assert_int_equal(one_step(f, spec, true, l, &err), 0);
    feed_close(f);
    *ret_stops = stops;
}

static json_t *shards_with(const struct folder *dir, int records, int shards)
{
    json_t *list = json_array();
    for (int s = 0; s < shards; s++) {
        CLEANUP(buf_release) struct buf b = {0};
        char name[32];
        snprintf(name, sizeof name, "shard-%d.jsonl", s);
        for (int i = records * s / shards; i < records * (s + 1) / shards; i++)
            add_record(&b, i);
        put_file(dir, name, b.data, b.len);
        json_array_append_new(list, freeze(dir, name));
    }
    return json_pack("{s:o}", "shards", list);
}

/* ---- order and resumes ---- */

static void check_each_once(const struct log *l, int records, int epochs)
{
    assert_int_equal(l->n_ids, records * epochs);
    for (int e = 0; e < epochs; e++) {
        static bool seen[4096];
        memset(seen, 0, sizeof seen);
        for (int i = 0; i < records; i++) {
            int id = l->ids[e * records + i];
            assert_in_range(id, 0, records - 1);
            assert_false(seen[id]);
            seen[id] = true;
        }
    }
}

static void any_stops_give_the_same_order(void **state)
{
    static const int buffers[] = {0, 1, 2, 7, 40, 5000};
    unsigned random = 12345;
    int longest = 0;
    for (int round = 0; round < 60; round++) {
        CLEANUP(folder_release) struct folder dir;
        folder_init(&dir);
        int records = 1 + (int)(next_random(&random) % 150);
        int shards = 1 + (int)(next_random(&random) % 4);
        if (shards > records)
            shards = records;
        int effective = 1 + (int)(next_random(&random) % 20);
        struct spec_in in = {
            .epochs = 1 + (int)(next_random(&random) % 3),
            .effective = effective,
            .micro = 1 + (int)(next_random(&random) % (unsigned)effective),
            .shuffle = buffers[round % 6],
            .seed = round,
        };
        CLEANUP(spec_release) struct spec spec = {0};
        make_spec(&in, &spec);
        AUTO_JSON json_t *data = shards_with(&dir, records, shards);
        CLEANUP(log_release) struct log whole = {0}, cut = {0};
        int stops;
        run_all(&spec, data, 0, 0, &whole, &stops);
        check_each_once(&whole, records, in.epochs);
        assert_int_equal(whole.steps, spec_steps(&spec, records));
        run_all(&spec, data, 1 + next_random(&random) % 6, random, &cut,
                &stops);
        assert_string_equal(whole.text.data, cut.text.data);
        longest = stops > longest ? stops : longest;
    }
    assert_in_range(longest, 50, 100000); /* chains were long enough */
}

static void a_stop_after_every_step_gives_the_same_order(void **state)
{
    CLEANUP(folder_release) struct folder dir;
    folder_init(&dir);
    struct spec_in in = {
        .epochs = 3, .effective = 1, .micro = 1, .shuffle = 4, .seed = 7};
    CLEANUP(spec_release) struct spec spec = {0};
    make_spec(&in, &spec);
    AUTO_JSON json_t *data = shards_with(&dir, 34, 2);
    CLEANUP(log_release) struct log whole = {0}, cut = {0};
    CLEANUP(saved_release) struct saved at = {0};
    int stops;
    run_all(&spec, data, 0, 0, &whole, &stops);
    struct err err = {0};
    for (int i = 0;; i++) {
        struct feed *f = open_feed(&spec, data, &at);
        int r = one_step(f, &spec, true, &cut, &err);
        assert_true(r >= 0);
        if (r == 0) {
            feed_close(f);
            assert_int_equal(i, 102);
            break;
        }
        save_feed(f, &at);
        /* the pass changes when its last record is trained, not before */
        int64_t epoch =
            json_integer_value(json_object_get(at.position, "epoch"));
        assert_int_equal(epoch, (i + 1) / 34);
        assert_int_equal(
            json_integer_value(json_object_get(at.position, "records")), i + 1);
        feed_close(f);
    }
    assert_string_equal(whole.text.data, cut.text.data);
}

static void order_depends_on_seed_cycle_and_epoch(void **state)
{
    CLEANUP(folder_release) struct folder dir;
    folder_init(&dir);
    AUTO_JSON json_t *data = shards_with(&dir, 60, 1);
    struct log logs[2] = {0};
    for (int i = 0; i < 2; i++) {
        struct spec_in in = {.epochs = 2,
                             .effective = 10,
                             .micro = 10,
                             .shuffle = 100,
                             .seed = i};
        CLEANUP(spec_release) struct spec spec = {0};
        make_spec(&in, &spec);
        int stops;
        run_all(&spec, data, 0, 0, &logs[i], &stops);
        check_each_once(&logs[i], 60, 2);
    }
    assert_memory_not_equal(logs[0].ids, logs[1].ids, 60 * sizeof(int));
    assert_memory_not_equal(logs[0].ids, logs[0].ids + 60, 60 * sizeof(int));
    log_release(&logs[0]);
    log_release(&logs[1]);
}

static void no_shuffle_keeps_the_files_order(void **state)
{
    CLEANUP(folder_release) struct folder dir;
    folder_init(&dir);
    AUTO_JSON json_t *data = shards_with(&dir, 50, 3);
    struct spec_in in = {.epochs = 2, .effective = 8, .micro = 3};
    CLEANUP(spec_release) struct spec spec = {0};
    make_spec(&in, &spec);
    CLEANUP(log_release) struct log l = {0};
    int stops;
    run_all(&spec, data, 0, 0, &l, &stops);
    for (int i = 0; i < 100; i++)
        assert_int_equal(l.ids[i], i % 50);
    assert_int_equal(l.steps, 14); /* 7 each, the last of 2 records */
}

static void resuming_reads_a_buffer_not_the_prefix(void **state)
{
    CLEANUP(folder_release) struct folder dir;
    folder_init(&dir);
    AUTO_JSON json_t *data = shards_with(&dir, 4000, 1);
    struct spec_in in = {
        .epochs = 1, .effective = 10, .micro = 10, .shuffle = 20};
    CLEANUP(spec_release) struct spec spec = {0};
    make_spec(&in, &spec);
    CLEANUP(log_release) struct log l = {0};
    CLEANUP(saved_release) struct saved at = {0};
    struct err err = {0};
    struct feed *f = open_feed(&spec, data, NULL);
    for (int i = 0; i < 390; i++)
        assert_int_equal(one_step(f, &spec, true, &l, &err), 1);
    save_feed(f, &at);
    feed_close(f);
    assert_true(at.n <= 20);
    f = open_feed(&spec, data, &at);
    while (one_step(f, &spec, true, &l, &err) > 0)
        ;
    struct feed_stats stats;
    feed_stats(f, &stats);
    json_decref(stats.bad);
    feed_close(f);
    assert_int_equal(stats.records, 4000);
    check_each_once(&l, 4000, 1);
    int64_t bytes = json_integer_value(json_object_get(
        json_array_get(json_object_get(data, "shards"), 0), "bytes"));
    assert_true(bytes > 300000);
    assert_true(stats.bytes_read < 8 * BLOCK);
}

/* 25 records of epochs of 20: a whole one, and 5 of the next. */
static void a_cycle_ends_with_the_last_record_it_may_take(void **state)
{
    static const int sizes[] = {8, 8, 4, 5};
    CLEANUP(folder_release) struct folder dir;
    folder_init(&dir);
    AUTO_JSON json_t *data = shards_with(&dir, 20, 2);
    json_object_set_new(data, "take", json_integer(25));
    struct spec_in in = {
        .epochs = 3, .effective = 8, .micro = 3, .shuffle = 6, .seed = 2};
    CLEANUP(spec_release) struct spec spec = {0};
    make_spec(&in, &spec);
    CLEANUP(saved_release) struct saved at = {0};
    struct err err = {0};
    for (int resumed = 0; resumed < 2; resumed++) {
        struct feed *f = open_feed(&spec, data, NULL);
        struct feed_batch *b;
        for (int step = 0; step < 4; step++) {
            do {
                assert_int_equal(feed_next(f, &b, &err), 1);
                assert_int_equal(b->effective, sizes[step]);
                assert_int_equal(b->epoch, step / 3);
                assert_int_equal(b->epoch_end, b->last && step == 2);
                assert_int_equal(b->cycle_end, b->last && step == 3);
            } while (!b->last);
            feed_trained(f);
            save_feed(f, &at);
            if (!resumed)
                continue;
            feed_close(f);
            f = open_feed(&spec, data, &at);
        }
        assert_int_equal(feed_next(f, &b, &err), 0);
        feed_close(f);
        assert_int_equal(
            json_integer_value(json_object_get(at.position, "records")), 25);
        saved_release(&at);
    }
}

/* Lines are kept while there is room for them; what a draw lacks is fetched. */
static void the_buffer_keeps_no_more_lines_than_fit(void **state)
{
    struct shuffle s;
    struct journal j = {0};
    struct err err = {0};
    shuffle_init(&s, 4, 1, 1);
    s.line_bytes_max = 25;
    static const char *const lines[] = {"0123456789", "abcdefghij",
                                        "ABCDEFGHIJ", "klmno"};
    for (int i = 0; i < 4; i++) {
        struct ref ref = {0, i * 100, (int64_t)strlen(lines[i]), i};
        assert_int_equal(shuffle_push(&s, &j, &ref, lines[i], &err), 0);
    }
    assert_non_null(s.lines[0]);
    assert_non_null(s.lines[1]);
    assert_null(s.lines[2]); /* no room */
    assert_non_null(s.lines[3]);
    assert_int_equal(s.line_bytes, 25);
    assert_int_equal(shuffle_give(&s, 2, lines[2], &err), 0); /* fetched */
    struct ref next = {0, 400, 5, 4}, got;
    char *line;
    for (int i = 0; i < 5; i++) {
        /* the drawn line goes with its reference, also where others moved */
        assert_int_equal(shuffle_take(&s, &j, 0, i == 0 ? &next : NULL, "pqrst",
                                      &got, &line, &err),
                         0);
        if (got.hash < 4)
            assert_memory_equal(line, lines[got.hash], (size_t)got.length);
        else
            assert_null(line); /* came while there was no room */
        free(line);
    }
    assert_int_equal(s.n, 0);
    assert_int_equal(s.line_bytes, 0);
    shuffle_release(&s);
    journal_release(&j);
}

/* ---- padding ---- */

static void padding_follows_the_policy_from_the_next_step_on(void **state)
{
    CLEANUP(folder_release) struct folder dir;
    folder_init(&dir);
    AUTO_JSON json_t *data = shards_with(&dir, 40, 1);
    struct spec_in in = {.epochs = 1, .effective = 8, .micro = 4};
    CLEANUP(spec_release) struct spec spec = {0};
    make_spec(&in, &spec);
    int s = record_desc_dim(&spec.record, "S");
    struct feed *f = open_feed(&spec, data, NULL);
    struct err err = {0};
    struct feed_batch *b;
    assert_int_equal(feed_next(f, &b, &err), 1);
    assert_int_equal(b->batch.padded[s], 4); /* the longest of records 0 … 3 */
    assert_int_equal(b->batch.lengths[s][0], 1);
    assert_int_equal(b->batch.ints[record_desc_field(&spec.record, "x")][1],
                     0); /* padding */
    assert_true(b->new_shape);
    struct runtime_policy wide = spec.runtime;
    int minimum[2] = {30, 30};
    wide.padding.mode = PADDING_STABLE;
    wide.padding.minimum = minimum;
    wide.micro_batch = 8;
    assert_int_equal(feed_set_runtime(f, &wide, &err), 0);
    assert_int_equal(feed_next(f, &b, &err), 1);
    assert_int_equal(b->batch.records, 4); /* this step goes on as it began */
    assert_int_equal(b->batch.padded[s], 8);
    feed_trained(f);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(feed_next(f, &b, &err), 1);
        assert_int_equal(b->batch.records, 8);
        assert_int_equal(b->batch.padded[s], 30);
        assert_int_equal(b->new_shape, i == 0);
        feed_trained(f);
    }
    feed_close(f);
}

/* ---- data that changed ---- */

#define CHANGING "changing.jsonl"

/* Freeze a shard, train half of it, save, change it by `change`, go on. The
 * error met, or code 0. */
static struct err after(void (*change)(const struct folder *dir, struct buf *b))
{
    CLEANUP(folder_release) struct folder dir;
    folder_init(&dir);
    CLEANUP(buf_release) struct buf b = {0};
    for (int i = 0; i < 400; i++)
        add_record(&b, i);
    put_file(&dir, CHANGING, b.data, b.len);
    AUTO_JSON json_t *data = freeze_all(&dir, CHANGING, NULL);
    struct spec_in in = {
        .epochs = 1, .effective = 20, .micro = 20, .shuffle = 10};
    CLEANUP(spec_release) struct spec spec = {0};
    make_spec(&in, &spec);
    CLEANUP(log_release) struct log l = {0};
    CLEANUP(saved_release) struct saved at = {0};
    struct err err = {0};
    struct feed *f = open_feed(&spec, data, NULL);
    for (int i = 0; i < 10; i++)
        assert_int_equal(one_step(f, &spec, true, &l, &err), 1);
    save_feed(f, &at);
    feed_close(f);
    f = NULL;
    change(&dir, &b);
    int r = feed_open(&spec, &spec.runtime, data, NULL, 3, &f, &err);
    if (r == 0)
        r = feed_resume(f, at.position, at.buffer, at.n, &err);
    while (r == 0 && (r = one_step(f, &spec, true, &l, &err)) > 0)
        r = 0;
    feed_close(f);
    if (r == 0) {
        check_each_once(&l, 400, 1);
        err.code = 0;
    }
    return err;
}

static void nothing(const struct folder *dir, struct buf *b)
{
}

static void grow(const struct folder *dir, struct buf *b)
{
    for (int i = 400; i < 500; i++)
        add_record(b, i);
    char path[256];
    in_folder(dir, CHANGING, path, sizeof path);
    AUTO_FD int fd = open(path, O_WRONLY | O_APPEND);
    assert_true(write(fd, b->data + b->len / 2, b->len / 2) > 0);
}

static void touch(const struct folder *dir, struct buf *b)
{
    put_file(dir, CHANGING, b->data, b->len);
}

static void copy_over(const struct folder *dir, struct buf *b)
{
    char from[256], to[256];
    put_file(dir, "copy", b->data, b->len);
    in_folder(dir, "copy", from, sizeof from);
    in_folder(dir, CHANGING, to, sizeof to);
    assert_int_equal(rename(from, to), 0);
}

static void edit_passed(const struct folder *dir, struct buf *b)
{
    *strstr(b->data + BLOCK + 10, "\"z\":0") = ' '; /* in the second block */
    put_file(dir, CHANGING, b->data, b->len);
}

static void edit_ahead(const struct folder *dir, struct buf *b)
{
    b->data[b->len - 3] ^= 1;
    put_file(dir, CHANGING, b->data, b->len);
}

static void shrink(const struct folder *dir, struct buf *b)
{
    put_file(dir, CHANGING, b->data, 3000);
}

static void replace(const struct folder *dir, struct buf *b)
{
    b->data[20] ^= 1;
    copy_over(dir, b);
}

static void link_away(const struct folder *dir, struct buf *b)
{
    char path[256], other[256];
    in_folder(dir, CHANGING, path, sizeof path);
    in_folder(dir, "other", other, sizeof other);
    assert_int_equal(rename(path, other), 0);
    assert_int_equal(symlink(other, path), 0);
}

static void pipe_instead(const struct folder *dir, struct buf *b)
{
    char path[256];
    in_folder(dir, CHANGING, path, sizeof path);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
}

static void delete (const struct folder *dir, struct buf *b)
{
    char path[256];
    in_folder(dir, CHANGING, path, sizeof path);
    assert_int_equal(unlink(path), 0);
}

static void changed_data_is_refused_with_its_own_reason(void **state)
{
    static const struct {
        void (*change)(const struct folder *dir, struct buf *b);
        const char *says; /* NULL: trains on */
        int64_t offset;   /* -1: any */
    } cases[] = {
        {nothing, NULL, 0},
        {grow, NULL, 0},
        {touch, NULL, 0},
        {copy_over, NULL, 0},
        {edit_passed, "was edited", BLOCK},
        {edit_ahead, "was edited", -1},
        {shrink, "has shrunk: it ends at offset 3000", 3000},
        {replace, "was replaced", 0},
        {link_away, "is a symbolic link", 0},
        {pipe_instead, "is not a regular file", 0},
        {delete, "is missing", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err err = after(cases[i].change);
        if (!cases[i].says) {
            if (err.code)
                fail_msg("case %zu: %s", i, err.text);
            continue;
        }
        assert_int_equal(err.code, ERR_DATA);
        assert_non_null(strstr(err.text, cases[i].says));
        assert_non_null(strstr(err.text, CHANGING));
        assert_string_equal(err.shard, CHANGING);
        if (cases[i].offset >= 0)
            assert_int_equal(err.offset, cases[i].offset);
    }
}

static void an_edit_during_the_run_is_found_when_it_is_drawn(void **state)
{
    CLEANUP(folder_release) struct folder dir;
    folder_init(&dir);
    CLEANUP(buf_release) struct buf b = {0};
    for (int i = 0; i < 40; i++)
        add_record(&b, i);
    put_file(&dir, "a.jsonl", b.data, b.len);
    AUTO_JSON json_t *data = freeze_all(&dir, "a.jsonl", NULL);
    struct err err = {0};
    struct shards *s;
    assert_int_equal(shards_open(data, NULL, &s, &err), 0);
    struct scanner scan;
    assert_int_equal(scanner_init(&scan, s, &err), 0);
    struct ref ref;
    for (int i = 0; i < 3; i++)
        assert_int_equal(scanner_next(&scan, &ref, NULL, &err), 1);
    CLEANUP(buf_release) struct buf line = {0};
    assert_int_equal(shards_line(s, &ref, &line, &err), 0);
    b.data[ref.offset + 5] ^= 1;
    put_file(&dir, "a.jsonl", b.data, b.len);
    assert_int_equal(shards_line(s, &ref, &line, &err), ERR_DATA);
    assert_int_equal(err.line, 3);
    assert_int_equal(err.offset, ref.offset);
    scanner_release(&scan);
    shards_close(s);
}

/* ---- lines ---- */

static void blank_lines_marks_and_line_ends_do_not_matter(void **state)
{
    CLEANUP(folder_release) struct folder dir;
    folder_init(&dir);
    CLEANUP(buf_release) struct buf clean = {0}, odd = {0};
    buf_adds(&odd, "\xef\xbb\xbf");
    for (int i = 0; i < 30; i++) {
        size_t at = clean.len;
        add_record(&clean, i);
        buf_add(&odd, clean.data + at, clean.len - at - 1);
        if (i < 29)
            buf_adds(&odd, i % 3 == 0   ? "\r\n"
                           : i % 3 == 1 ? "\n \t\n"
                                        : "\n\n");
    }
    put_file(&dir, "clean.jsonl", clean.data, clean.len);
    put_file(&dir, "odd.jsonl", odd.data, odd.len);
    struct spec_in in = {
        .epochs = 2, .effective = 7, .micro = 7, .shuffle = 12};
    CLEANUP(spec_release) struct spec spec = {0};
    make_spec(&in, &spec);
    AUTO_JSON json_t *one = freeze_all(&dir, "clean.jsonl", NULL);
    AUTO_JSON json_t *two = freeze_all(&dir, "odd.jsonl", NULL);
    static struct log a, b;
    int stops;
    run_all(&spec, one, 0, 0, &a, &stops);
    run_all(&spec, two, 3, 1, &b, &stops);
    assert_int_equal(a.n_ids, b.n_ids);
    assert_memory_equal(a.ids, b.ids, sizeof(int) * (size_t)a.n_ids);
    log_release(&a);
    log_release(&b);
}

static void a_shard_without_records_is_refused(void **state)
{
    CLEANUP(folder_release) struct folder dir;
    folder_init(&dir);
    put_file(&dir, "empty.jsonl", "", 0);
    put_file(&dir, "lines.jsonl", "\n\n\n", 3);
    put_file(&dir, "mark.jsonl", "\xef\xbb\xbf", 3);
    CLEANUP(buf_release) struct buf b = {0};
    add_record(&b, 0);
    put_file(&dir, "one.jsonl", b.data, b.len);
    struct spec_in in = {.epochs = 1, .effective = 32, .micro = 8};
    CLEANUP(spec_release) struct spec spec = {0};
    make_spec(&in, &spec);
    AUTO_JSON json_t *none =
        freeze_all(&dir, "empty.jsonl", "lines.jsonl", "mark.jsonl", NULL);
    struct feed *f = NULL;
    struct err err = {0};
    assert_int_equal(feed_open(&spec, &spec.runtime, none, NULL, 1, &f, &err),
                     ERR_DATA);
    assert_string_equal(err.text, "no records: 'empty.jsonl', 'lines.jsonl', "
                                  "'mark.jsonl' hold none");
    AUTO_JSON json_t *some = freeze_all(&dir, "empty.jsonl", "one.jsonl", NULL);
    assert_int_equal(feed_open(&spec, &spec.runtime, some, NULL, 1, &f, &err),
                     ERR_DATA);
    assert_string_equal(err.shard, "empty.jsonl");
    AUTO_JSON json_t *one = freeze_all(&dir, "one.jsonl", NULL);
    CLEANUP(log_release) struct log l = {0};
    int stops;
    run_all(&spec, one, 0, 0, &l, &stops);
    assert_int_equal(l.steps, 1); /* one smaller batch */
}

/* ---- bad records ---- */

/* 30 records, of which every fifth from the third on is none. */
static void put_with_bad(const struct folder *dir, struct buf *b)
{
    for (int i = 0; i < 30; i++) {
        if (i % 5 == 2)
            buf_addf(b, "{\"x\":[%d],\"moves\":[[1]],\"pi\":[0.5],\"z\":0}\n",
                     i);
        else
            add_record(b, i);
    }
    put_file(dir, "bad.jsonl", b->data, b->len);
}

static void a_bad_record_fails_where_it_stands(void **state)
{
    CLEANUP(folder_release) struct folder dir;
    folder_init(&dir);
    CLEANUP(buf_release) struct buf b = {0};
    put_with_bad(&dir, &b);
    AUTO_JSON json_t *data = freeze_all(&dir, "bad.jsonl", NULL);
    struct spec_in in = {.epochs = 1, .effective = 2, .micro = 1};
    CLEANUP(spec_release) struct spec spec = {0};
    make_spec(&in, &spec);
    CLEANUP(log_release) struct log l = {0};
    struct feed *f = open_feed(&spec, data, NULL);
    struct err err = {0};
    assert_int_equal(one_step(f, &spec, true, &l, &err), 1); /* before it */
    assert_int_equal(one_step(f, &spec, true, &l, &err), ERR_DATA);
    assert_string_equal(err.shard, "bad.jsonl");
    assert_int_equal(err.line, 3);
    assert_int_equal(err.offset, strstr(b.data, "{\"x\":[2]") - b.data);
    assert_string_equal(err.field, "pi");
    assert_non_null(strstr(err.text, "shard 'bad.jsonl', line 3 (offset "));
    CLEANUP(saved_release) struct saved at = {0};
    save_feed(f, &at); /* the good state before it can still be kept */
    assert_int_equal(
        json_integer_value(json_object_get(at.position, "records")), 2);
    feed_close(f);
}

static void skipped_records_are_counted_and_shown(void **state)
{
    CLEANUP(folder_release) struct folder dir;
    folder_init(&dir);
    CLEANUP(buf_release) struct buf b = {0};
    put_with_bad(&dir, &b);
    AUTO_JSON json_t *data = freeze_all(&dir, "bad.jsonl", NULL);
    for (int shuffle = 0; shuffle < 100; shuffle = 3 * shuffle + 1) {
        struct spec_in in = {.epochs = 5,
                             .effective = 3,
                             .micro = 2,
                             .shuffle = shuffle,
                             .seed = shuffle,
                             .skip = true};
        CLEANUP(spec_release) struct spec spec = {0};
        make_spec(&in, &spec);
        CLEANUP(log_release) struct log whole = {0}, cut = {0};
        int stops;
        run_all(&spec, data, 0, 0, &whole, &stops);
        assert_int_equal(whole.n_ids, 24 * 5);
        assert_int_equal(whole.steps, 8 * 5); /* fewer than planned */
        run_all(&spec, data, 2, (unsigned)shuffle, &cut, &stops);
        assert_string_equal(whole.text.data, cut.text.data);
        CLEANUP(saved_release) struct saved at = {0};
        CLEANUP(log_release) struct log l = {0};
        struct feed *f = open_feed(&spec, data, NULL);
        struct err err = {0};
        while (one_step(f, &spec, true, &l, &err) > 0) {
            save_feed(f, &at);
            feed_close(f);
            f = open_feed(&spec, data, &at);
        }
        struct feed_stats stats;
        feed_stats(f, &stats);
        assert_int_equal(stats.skipped, 30);
        assert_int_equal(json_array_size(stats.bad), 20);
        const json_t *first = json_array_get(stats.bad, 0);
        assert_int_equal(json_integer_value(json_object_get(first, "line")) % 5,
                         3);
        assert_string_equal(json_string_value(json_object_get(first, "field")),
                            "pi");
        json_decref(stats.bad);
        feed_close(f);
    }
}

static void nothing_but_bad_records_is_an_error(void **state)
{
    CLEANUP(folder_release) struct folder dir;
    folder_init(&dir);
    put_file(&dir, "bad.jsonl", "{}\n[]\nx\n", 8);
    AUTO_JSON json_t *data = freeze_all(&dir, "bad.jsonl", NULL);
    struct spec_in in = {
        .epochs = 2, .effective = 3, .micro = 2, .shuffle = 2, .skip = true};
    CLEANUP(spec_release) struct spec spec = {0};
    make_spec(&in, &spec);
    CLEANUP(log_release) struct log l = {0};
    struct feed *f = open_feed(&spec, data, NULL);
    struct err err = {0};
    assert_int_equal(one_step(f, &spec, true, &l, &err), ERR_DATA);
    assert_non_null(strstr(err.text, "no records"));
    feed_close(f);
}

static void a_position_outside_the_data_is_refused(void **state)
{
    CLEANUP(folder_release) struct folder dir;
    folder_init(&dir);
    AUTO_JSON json_t *data = shards_with(&dir, 30, 2);
    struct spec_in in = {.epochs = 2, .effective = 3, .micro = 2, .shuffle = 8};
    CLEANUP(spec_release) struct spec spec = {0};
    make_spec(&in, &spec);
    CLEANUP(log_release) struct log l = {0};
    CLEANUP(saved_release) struct saved at = {0};
    struct err err = {0};
    struct feed *f = open_feed(&spec, data, NULL);
    assert_int_equal(one_step(f, &spec, true, &l, &err), 1);
    save_feed(f, &at);
    feed_close(f);
    static const char *const fields[] = {"shard", "offset", "epoch"};
    for (int i = 0; i < 3; i++) {
        AUTO_JSON json_t *bad = json_deep_copy(at.position);
        json_object_set_new(bad, fields[i], json_integer(1000000));
        assert_int_equal(
            feed_open(&spec, &spec.runtime, data, NULL, 3, &f, &err), 0);
        assert_int_equal(feed_resume(f, bad, at.buffer, at.n, &err),
                         ERR_CORRUPT);
        feed_close(f);
    }
    at.buffer[1] = 1 << 30;
    assert_int_equal(feed_open(&spec, &spec.runtime, data, NULL, 3, &f, &err),
                     0);
    assert_int_equal(feed_resume(f, at.position, at.buffer, at.n, &err),
                     ERR_CORRUPT);
    feed_close(f);
}

static void the_hash_is_xxh64(void **state)
{
    /* published test vectors, seed 0 */
    assert_true(line_hash("", 0) == 0xEF46DB3751D8E999u);
    assert_true(line_hash("a", 1) == 0xD24EC4F1A98C6E5Bu);
    assert_true(line_hash("abc", 3) == 0x44BC2CF5AD770999u);
    assert_true(line_hash("Nobody inspects the spammish repetition", 39) ==
                0xFBCEA83C8A378BF1u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_stops_give_the_same_order),
        cmocka_unit_test(a_stop_after_every_step_gives_the_same_order),
        cmocka_unit_test(order_depends_on_seed_cycle_and_epoch),
        cmocka_unit_test(no_shuffle_keeps_the_files_order),
        cmocka_unit_test(resuming_reads_a_buffer_not_the_prefix),
        cmocka_unit_test(a_cycle_ends_with_the_last_record_it_may_take),
        cmocka_unit_test(the_buffer_keeps_no_more_lines_than_fit),
        cmocka_unit_test(padding_follows_the_policy_from_the_next_step_on),
        cmocka_unit_test(changed_data_is_refused_with_its_own_reason),
        cmocka_unit_test(an_edit_during_the_run_is_found_when_it_is_drawn),
        cmocka_unit_test(blank_lines_marks_and_line_ends_do_not_matter),
        cmocka_unit_test(a_shard_without_records_is_refused),
        cmocka_unit_test(a_bad_record_fails_where_it_stands),
        cmocka_unit_test(skipped_records_are_counted_and_shown),
        cmocka_unit_test(nothing_but_bad_records_is_an_error),
        cmocka_unit_test(a_position_outside_the_data_is_refused),
        cmocka_unit_test(the_hash_is_xxh64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
