/* bench_feed: MB/s of the feed, and of simdjson alone on the same bytes.
 *
 *     bench_feed JOB.json MB ROUNDS SHARD.jsonl…        speeds
 *     bench_feed JOB.json --train STEPS SHARD.jsonl…    how long training waits
 *
 * The shards are repeated to MB (10^6 bytes), each record with an id of its own.
 * What is measured takes turns, the best of ROUNDS counts. Prints one JSON line.
 * feed.py runs it beside the same in Python. */
#include "tests/unit/worker_text.h"
#include <time.h>
#include "schema/record.h"
#include "tests/bench/feed_simdjson.h"
#include "tests/unit/torch_batch.h"
#include "worker/collate.h"
#include "worker/feed.h"
#include "worker/shuffle.h"

static struct spec spec;
static struct buf text;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Of all threads: what one of them would need to do it all. */
static double cpu_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void must(int r, const struct err *err)
{
    if (r >= 0)
        return;
    fprintf(stderr, "%s\n", err->text);
    exit(1);
}

/* ---- one thread, lines in memory ---- */

struct lines {
    struct ref *v;
    int64_t n;
};

static struct lines split(void)
{
    struct lines l = {0};
    int64_t cap = 0;
    for (size_t at = 0; at < text.len;) {
        const char *p = text.data + at;
        size_t len = (size_t)((char *)memchr(p, '\n', text.len - at) - p);
        if (l.n == cap)
            l.v = realloc(l.v,
                          (size_t)(cap = cap ? 2 * cap : 4096) * sizeof *l.v);
        l.v[l.n++] = (struct ref){0, (int64_t)at, (int64_t)len, 0};
        at += len + 1;
    }
    return l;
}

static void run_bare(const struct lines *l, long (*f)(const char *, size_t))
{
    long sum = 0;
    for (int64_t i = 0; i < l->n; i++)
        sum += f(text.data + l->v[i].offset, (size_t)l->v[i].length);
    if (sum < l->n)
        abort();
}

static void run_decode(const struct lines *l, struct record_decoder *d)
{
    struct err err;
    const struct record *r;
    for (int64_t i = 0; i < l->n; i++)
        must(record_decode(d, text.data + l->v[i].offset,
                           (size_t)l->v[i].length, &r, &err),
             &err);
}

/* Decode, shuffle and collate, as the producer and the feed do. */
static void run_all(const struct lines *l, struct record_decoder *d)
{
    struct err err;
    struct shuffle s;
    struct journal j = {0};
    struct arena arena = {0};
    struct collator c;
    int micro = spec.runtime.micro_batch, n = 0;
    struct sample **v = calloc((size_t)micro, sizeof *v);
    must(collator_init(&c, &spec.record, &err), &err);
    shuffle_init(&s, spec.training.shuffle.size, 1, 1);
    int64_t in = 0;
    for (; in < l->n && s.n < s.cap; in++)
        must(shuffle_push(&s, &j, &l->v[in], text.data + l->v[in].offset, &err),
             &err);
    while (s.n) {
        const struct ref *next = in < l->n ? &l->v[in] : NULL;
        struct ref ref;
        AUTO_FREE char *line = NULL;
        must(shuffle_take(&s, &j, shuffle_pick(&s, s.draws, s.n), next,
                          next ? text.data + next->offset : NULL, &ref, &line,
                          &err),
             &err);
        in += next != NULL;
        const struct record *r;
        must(record_decode(d, line, (size_t)ref.length, &r, &err), &err);
        must(sample_new(&spec.record, r, &ref, &arena, &v[n++], &err), &err);
        if (n < micro && s.n)
            continue;
        must(collator_fill(&c, v, n, 0, &spec.runtime.padding, &err), &err);
        arena_reset(&arena);
        j.n = n = 0;
    }
    journal_release(&j);
    arena_release(&arena);
    collator_release(&c);
    shuffle_release(&s);
    free(v);
}

/* ---- the feed itself ---- */

static void run_feed(const json_t *data, enum shuffle_mode mode)
{
    struct err err;
    struct feed *f;
    struct feed_batch *b;
    int r;
    spec.training.shuffle.mode = mode;
    must(feed_open(&spec, &spec.runtime, data, NULL, 1, &f, &err), &err);
    while ((r = feed_next(f, &b, &err)) > 0)
        if (b->last)
            feed_trained(f);
    must(r, &err);
    feed_close(f);
}

static json_t *make_data(const struct folder *dir)
{
    struct made how = {.index = true, .block_bytes = 1024 * 1024};
    json_t *shard = freeze_text(dir, "all.jsonl", &text, &how);
    return json_pack("{s:o}", "shards", json_pack("[o]", shard));
}

enum { ONDEMAND, DOM, DECODE, ALL, FEED, GLOBAL, KINDS };
static const char *const kinds[] = {
    "simdjson_ondemand",      "simdjson_dom", "decode",
    "decode_shuffle_collate", "feed",         "feed_global"};

static void run_kind(int k, const struct lines *l, struct record_decoder *d,
                     const json_t *data)
{
    switch (k) {
    case ONDEMAND:
        run_bare(l, bare_ondemand);
        break;
    case DOM:
        run_bare(l, bare_dom);
        break;
    case DECODE:
        run_decode(l, d);
        break;
    case ALL:
        run_all(l, d);
        break;
    default:
        run_feed(data, k == GLOBAL ? SHUFFLE_GLOBAL : SHUFFLE_BUFFER);
    }
}

static void speeds(const json_t *data, int rounds)
{
    struct err err;
    struct lines l = split();
    struct record_decoder *d;
    must(record_decoder_new(&spec.record, 0.01, &d, &err), &err);
    double cpu[KINDS], wall[KINDS];
    for (int k = 0; k < KINDS; k++)
        cpu[k] = wall[k] = 1e9;
    for (int round = 0; round < rounds; round++)
        for (int k = 0; k < KINDS; k++) {
            double w = now(), c = cpu_now();
            run_kind(k, &l, d, data);
            c = cpu_now() - c;
            w = now() - w;
            cpu[k] = c < cpu[k] ? c : cpu[k];
            wall[k] = w < wall[k] ? w : wall[k];
        }
    double mb = (double)text.len * 1e-6;
    printf("{\"mb\": %.1f, \"records\": %lld", mb, (long long)l.n);
    for (int k = 0; k < KINDS; k++)
        printf(", \"%s\": {\"mb_per_s\": %.1f, \"mb_per_cpu_s\": %.1f}",
               kinds[k], mb / wall[k], mb / cpu[k]);
    printf("}\n");
    record_decoder_free(d);
    free(l.v);
}

/* ---- training ---- */

static void train(const json_t *data, int64_t steps)
{
    struct err err;
    struct trainer *t;
    struct feed *f;
    struct feed_batch *b;
    must(trainer_new(&spec, "cpu", spec.runtime.threads, &t, &err), &err);
    spec.training.epochs = 1000000;
    double begin = now(), in_next = 0, first = 0, norm;
    must(feed_open(&spec, &spec.runtime, data, NULL, 1, &f, &err), &err);
    int64_t done = 0;
    while (done < steps) {
        double asked = now();
        must(feed_next(f, &b, &err), &err);
        in_next += now() - asked;
        first = first ? first : in_next;
        struct losses sum = {0};
        must(trainer_micro(t, &b->batch, b->step, b->effective, &sum, &err),
             &err);
        if (!b->last)
            continue;
        must(trainer_step(t, 1e-3, &norm, &err), &err);
        feed_trained(f);
        done++;
    }
    double wall = now() - begin;
    struct feed_stats stats;
    feed_stats(f, &stats);
    json_decref(stats.bad);
    printf("{\"steps\": %lld, \"wall_s\": %.3f, \"waited_s\": %.5f, "
           "\"first_s\": %.5f, \"waited_share\": %.6f, "
           "\"waited_and_collated_share\": %.6f}\n",
           (long long)done, wall, stats.wait_s, first, stats.wait_s / wall,
           in_next / wall);
    feed_close(f);
    trainer_free(t);
}

/* ---- what is read ---- */

/* The shards' records again and again, each with an id of its own. */
static void make_text(char **names, int n, double mb)
{
    struct buf once = {0};
    for (int i = 0; i < n; i++) {
        FILE *f = fopen(names[i], "r");
        char part[65536];
        for (size_t got; f && (got = fread(part, 1, sizeof part, f)) > 0;)
            buf_add(&once, part, got);
        if (!f) {
            fprintf(stderr, "cannot open %s\n", names[i]);
            exit(1);
        }
        fclose(f);
    }
    for (int64_t id = 0, at = 0; (double)text.len < mb * 1e6 || at; id++) {
        const char *p = once.data + at;
        size_t len =
            (size_t)((char *)memchr(p, '\n', once.len - (size_t)at) - p);
        const char *rest = strchr(p, ','); /* behind its own id */
        buf_addf(&text, "{\"id\":\"r%lld\"", (long long)id);
        buf_add(&text, rest, len + 1 - (size_t)(rest - p));
        at += (int64_t)len + 1;
        if ((size_t)at >= once.len)
            at = 0;
    }
    buf_reserve(&text, 64);
    buf_release(&once);
}

int main(int argc, char **argv)
{
    bool training = argc > 2 && !strcmp(argv[2], "--train");
    if (argc < 5) {
        fprintf(stderr,
                "usage: %s JOB.json MB ROUNDS SHARD.jsonl...\n"
                "       %s JOB.json --train STEPS SHARD.jsonl...\n",
                argv[0], argv[0]);
        return 2;
    }
    struct err err;
    json_error_t e;
    AUTO_JSON json_t *job = json_load_file(argv[1], 0, &e);
    if (!job || spec_parse(job, &spec, &err) < 0) {
        fprintf(stderr, "%s: %s\n", argv[1], job ? err.text : e.text);
        return 1;
    }
    CLEANUP(folder_release) struct folder dir;
    folder_init(&dir);
    make_text(argv + 4, argc - 4, training ? 1e-6 : atof(argv[2]));
    AUTO_JSON json_t *data = make_data(&dir);
    if (training)
        train(data, atoll(argv[3]));
    else
        speeds(data, atoi(argv[3]));
    spec_release(&spec);
    buf_release(&text);
    return 0;
}
