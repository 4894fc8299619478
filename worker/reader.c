#include "worker/reader.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "schema/buf.h"
#include "schema/cleanup.h"
#include "worker/scanner.h"

#define PAGE_BYTES_FIRST (16 * 1024) /* of text; then twice as much each time */
#define PAGE_BYTES (256 * 1024)
#define PAGE_LINES_FIRST 16 /* of a plan, whose lines lie anywhere */
#define PAGE_LINES 512
#define AHEAD 4                   /* pages */
#define AHEAD_BYTES (1024 * 1024) /* and their text, but for one */

struct line {
    struct ref ref;
    size_t at;             /* in the page's text */
    int64_t shard, offset; /* of what follows */
};

struct page {
    struct line *v;
    int n, cap;
    struct buf text;
    int result; /* 1: another page follows; 0: the epoch ends; or an error */
    struct err err;
    struct page *next;
};

struct reader {
    struct shards *shards;
    struct plan *plan;
    double fraction;
    int64_t epochs;

    /* The thread's, once it runs. */
    struct scanner scanner;
    int64_t epoch, draw;
    size_t page_bytes;
    int page_lines;
    struct ref *refs; /* PAGE_LINES of a plan */

    pthread_mutex_t lock;
    pthread_cond_t made, taken;
    struct page *head, *tail;
    int queued;
    size_t queued_bytes;
    struct page *spare; /* read through, for the next ones */
    bool stop, started;
    pthread_t thread;

    /* The caller's. */
    struct page *cur;
    int cur_at;
};

static void page_free(struct page *p)
{
    if (!p)
        return;
    buf_release(&p->text);
    free(p->v);
    free(p);
}

/* An empty one. Under the lock. */
static struct page *page_take(struct reader *r)
{
    struct page *p = r->spare;
    if (!p)
        return calloc(1, sizeof *p);
    r->spare = p->next;
    buf_clear(&p->text);
    *p = (struct page){.v = p->v, .cap = p->cap, .text = p->text};
    return p;
}

/* Memory is kept for as many as are ahead, but not that of long lines. Under
 * the lock. */
static void page_give(struct reader *r, struct page *p)
{
    if (p && p->text.cap > 4 * PAGE_BYTES) {
        page_free(p);
    } else if (p) {
        p->next = r->spare;
        r->spare = p;
    }
}

/* ---- the thread ---- */

static int page_add(struct page *p, const struct line *line, struct err *err)
{
    if (p->n == p->cap) {
        int cap = p->cap ? 2 * p->cap : 64;
        struct line *v = realloc(p->v, (size_t)cap * sizeof *v);
        if (!v)
            return err_set(err, ERR_NOMEM, "no memory to read lines");
        p->v = v;
        p->cap = cap;
    }
    p->v[p->n++] = *line;
    return 0;
}

/* Lines of the text that follow: 1, or 0 at its end. */
static int read_on(struct reader *r, struct page *p, struct err *err)
{
    while (p->text.len < r->page_bytes) {
        struct line line = {.at = p->text.len};
        const char *text = NULL;
        int got = scanner_next(&r->scanner, &line.ref, &text, err);
        if (got <= 0)
            return got;
        if (r->fraction > 0 &&
            line_is_held_out((uint64_t)line.ref.hash, r->fraction))
            continue;
        line.shard = r->scanner.shard;
        line.offset = r->scanner.offset;
        if (text && buf_add(&p->text, text, (size_t)line.ref.length) < 0)
            return err_set(err, ERR_NOMEM, "no memory to read lines");
        int e = page_add(p, &line, err);
        if (e < 0)
            return e;
    }
    return 1;
}

static int read_refs(struct reader *r, struct page *p, int n, struct err *err)
{
    size_t at = p->text.len;
    int e = shards_lines(r->shards, r->refs, n, &p->text, err);
    for (int i = 0; i < n && e == 0; i++) {
        struct line line = {.ref = r->refs[i], .at = at};
        e = page_add(p, &line, err);
        at += line.ref.length <= LINE_MAX_BYTES ? (size_t)line.ref.length : 0;
        at++; /* the newline */
    }
    return e;
}

/* One by one: what is wrong with a later one must not hide those before it. */
static int read_each(struct reader *r, struct page *p, int n, struct err *err)
{
    struct ref *all = r->refs;
    int e = 0;
    for (int i = 0; i < n && e == 0; i++) {
        r->refs = all + i;
        e = read_refs(r, p, 1, err);
    }
    r->refs = all;
    return e;
}

/* The records of the draws that follow: 1, or 0 at the epoch's end. */
static int read_drawn(struct reader *r, struct page *p, struct err *err)
{
    int64_t left = plan_draws(r->plan) - r->draw;
    int n = 0, e = 0;
    for (size_t bytes = 0;
         n < r->page_lines && n < left && bytes < r->page_bytes; n++) {
        e = plan_ref(r->plan, r->draw + n, &r->refs[n], err);
        if (e < 0)
            break;
        if (r->refs[n].length <= LINE_MAX_BYTES)
            bytes += (size_t)r->refs[n].length;
    }
    r->draw += n;
    struct err why = {0};
    int e2 = read_refs(r, p, n, &why);
    if ((e2 == ERR_DATA || e2 == ERR_CORRUPT) && n > 1) {
        p->n = 0;
        buf_clear(&p->text);
        e2 = read_each(r, p, n, &why);
    }
    if (e2 < 0) {
        if (err)
            *err = why;
        return e2;
    }
    return e < 0 ? e : r->draw < plan_draws(r->plan);
}

static void next_epoch(struct reader *r)
{
    r->epoch++;
    r->draw = 0;
    if (r->plan)
        plan_epoch(r->plan, r->epoch);
    else
        scanner_seek(&r->scanner, 0, 0);
}

/* Hand over; false: the reader is being freed. */
static bool hand_over(struct reader *r, struct page *p)
{
    pthread_mutex_lock(&r->lock);
    while (!r->stop && r->queued &&
           (r->queued >= AHEAD || r->queued_bytes >= AHEAD_BYTES))
        pthread_cond_wait(&r->taken, &r->lock);
    bool go_on = !r->stop;
    if (r->tail)
        r->tail->next = p;
    else
        r->head = p;
    r->tail = p;
    r->queued++;
    r->queued_bytes += p->text.len;
    pthread_cond_signal(&r->made);
    pthread_mutex_unlock(&r->lock);
    return go_on;
}

static void *reader_main(void *arg)
{
    struct reader *r = arg;
    for (bool more = r->epoch < r->epochs; more;) {
        pthread_mutex_lock(&r->lock);
        struct page *p = page_take(r);
        pthread_mutex_unlock(&r->lock);
        if (!p)
            abort(); /* not even room to say so */
        p->result =
            r->plan ? read_drawn(r, p, &p->err) : read_on(r, p, &p->err);
        if (buf_reserve(&p->text, SCANNER_PAD) < 0)
            p->result = err_set(&p->err, ERR_NOMEM, "no memory to read lines");
        if (p->result == 0)
            next_epoch(r);
        if (r->page_bytes < PAGE_BYTES)
            r->page_bytes *= 2;
        if (r->page_lines < PAGE_LINES)
            r->page_lines *= 2;
        more = p->result >= 0 && r->epoch < r->epochs;
        more = hand_over(r, p) && more;
    }
    return NULL;
}

/* ---- the caller's side ---- */

int reader_new(struct shards *shards, struct plan *plan, double fraction,
               int64_t epochs, struct reader **ret, struct err *err)
{
    struct reader *r = calloc(1, sizeof *r);
    if (!r)
        return err_set(err, ERR_NOMEM, "no memory to read lines");
    r->shards = shards;
    r->plan = plan;
    r->fraction = fraction;
    r->epochs = epochs;
    r->page_bytes = PAGE_BYTES_FIRST;
    r->page_lines = PAGE_LINES_FIRST;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->made, NULL);
    pthread_cond_init(&r->taken, NULL);
    int e = 0;
    if (!plan) {
        e = scanner_init(&r->scanner, shards, err);
    } else {
        r->refs = calloc(PAGE_LINES, sizeof *r->refs);
        if (!r->refs)
            e = err_set(err, ERR_NOMEM, "no memory to read lines");
    }
    if (e < 0) {
        reader_free(r);
        return e;
    }
    *ret = r;
    return 0;
}

void reader_seek(struct reader *r, int64_t epoch, int64_t draw, int64_t shard,
                 int64_t offset)
{
    r->epoch = epoch;
    r->draw = draw;
    if (r->plan)
        plan_epoch(r->plan, epoch);
    else
        scanner_seek(&r->scanner, (int)shard, offset);
}

static int next_page(struct reader *r, struct err *err)
{
    if (!r->started) {
        int e = pthread_create(&r->thread, NULL, reader_main, r);
        if (e)
            return err_set(err, ERR_NOMEM, "cannot start a thread: %s",
                           strerror(e));
        r->started = true;
    }
    pthread_mutex_lock(&r->lock);
    page_give(r, r->cur);
    r->cur = NULL;
    while (!r->head)
        pthread_cond_wait(&r->made, &r->lock);
    r->cur = r->head;
    r->head = r->cur->next;
    if (!r->head)
        r->tail = NULL;
    r->queued--;
    r->queued_bytes -= r->cur->text.len;
    if (r->queued <= AHEAD / 2) /* not a wake-up for each page */
        pthread_cond_signal(&r->taken);
    pthread_mutex_unlock(&r->lock);
    r->cur_at = 0;
    return 0;
}

int reader_next(struct reader *r, struct reader_line *ret, struct err *err)
{
    while (!r->cur || r->cur_at == r->cur->n) {
        if (r->cur && r->cur->result < 0) {
            if (err)
                *err = r->cur->err;
            return r->cur->result;
        }
        if (r->cur && r->cur->result == 0 && r->cur_at == r->cur->n) {
            r->cur->result = 1; /* told */
            return 0;
        }
        int e = next_page(r, err);
        if (e < 0)
            return e;
    }
    const struct line *line = &r->cur->v[r->cur_at++];
    *ret = (struct reader_line){
        .ref = line->ref,
        .text = line->ref.length <= LINE_MAX_BYTES
                    ? r->cur->text.data + line->at
                    : NULL,
        .shard = line->shard,
        .offset = line->offset,
    };
    return 1;
}

void reader_free(struct reader *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_broadcast(&r->taken);
    pthread_mutex_unlock(&r->lock);
    if (r->started)
        pthread_join(r->thread, NULL);
    while (r->head) {
        struct page *next = r->head->next;
        page_free(r->head);
        r->head = next;
    }
    while (r->spare) {
        struct page *next = r->spare->next;
        page_free(r->spare);
        r->spare = next;
    }
    page_free(r->cur);
    scanner_release(&r->scanner);
    free(r->refs);
    pthread_cond_destroy(&r->made);
    pthread_cond_destroy(&r->taken);
    pthread_mutex_destroy(&r->lock);
    free(r);
}
