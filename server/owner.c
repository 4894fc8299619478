#include "server/owner.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "schema/json_read.h"
#include "server/match.h"
#include "server/options.h"

#define HALF_LIFE_MS (24 * 3600 * 1000.0)
#define NEEDS_KNOWN 64 /* judged once; further ones each time */

struct owner_policy owner_policy = {.age_ms = OPTIONS_AGE_S * 1000};

/* ---- place ---- */

static int move_use(struct store *st, int64_t cycle, int64_t now_ms,
                    struct err *err)
{
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_OWNER_MOVES);
        stmt_int(&q, ":id", cycle);
        int r = stmt_row(&q, err);
        if (r <= 0)
            return r;
    }
    int r = owner_ended(st, cycle, now_ms, err);
    return r < 0 ? r : 1;
}

int owner_place(struct store *st, int64_t cycle, int64_t now_ms,
                struct err *err)
{
    /* of a leased one whose job got another owner the use moves, too */
    int moves = move_use(st, cycle, now_ms, err);
    if (moves < 0)
        return moves;
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_PLACE);
        stmt_int(&q, ":id", cycle);
        stmt_int(&q, ":now", now_ms);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    return moves ? owner_started(st, cycle, now_ms, err) : 0;
}

/* ---- use ---- */

double owner_use(double use_ms, int64_t running, int64_t passed_ms)
{
    double passed = passed_ms > 0 ? (double)passed_ms : 0;
    double left = exp2(-passed / HALF_LIFE_MS);
    return use_ms * left +
           (double)running * (HALF_LIFE_MS / M_LN2) * (1 - left);
}

double owner_weight(const char *owner)
{
    for (size_t i = 0; i < owner_policy.n_shares; i++)
        if (!strcmp(owner_policy.shares[i].owner, owner))
            return owner_policy.shares[i].weight;
    return 1;
}

static int count(struct store *st, int64_t cycle, int more, int64_t now_ms,
                 struct err *err)
{
    double use = 0;
    int64_t running = 0;
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_OWNER_OF);
        stmt_int(&q, ":cycle", cycle);
        int r = stmt_row(&q, err);
        if (r < 0)
            return r;
        if (r > 0) {
            running = col_int(&q, 1);
            use = owner_use(col_real(&q, 0), running, now_ms - col_int(&q, 2));
        }
    }
    running += more;
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_OWNER_SET);
    stmt_int(&q, ":cycle", cycle);
    stmt_real(&q, ":use", use);
    stmt_int(&q, ":running", running > 0 ? running : 0);
    stmt_int(&q, ":now", now_ms);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

int owner_started(struct store *st, int64_t cycle, int64_t now_ms,
                  struct err *err)
{
    return count(st, cycle, 1, now_ms, err);
}

int owner_ended(struct store *st, int64_t cycle, int64_t now_ms,
                struct err *err)
{
    return count(st, cycle, -1, now_ms, err);
}

int owner_served(struct store *st, int64_t cycle, int64_t now_ms,
                 struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_SERVED_SET);
    stmt_int(&q, ":cycle", cycle);
    stmt_int(&q, ":now", now_ms);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

int owner_recount(struct store *st, struct err *err)
{
    {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_OWNER_ADD_RUNNING);
        int64_t n = stmt_run(&q, err);
        if (n < 0)
            return (int)n;
    }
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_OWNER_RECOUNT);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

/* ---- turns ---- */

void turns_release(struct turns *t)
{
    for (size_t i = 0; i < t->n; i++) {
        free(t->all[i].owner);
        free(t->all[i].need);
    }
    free(t->all);
    *t = (struct turns){0};
}

/* Which needs the worker meets; each is judged once. */
struct judged {
    char *need;
    bool fits;
};
struct judge {
    const struct worker_claim *w;
    struct judged all[NEEDS_KNOWN];
    size_t n;
};

static void judge_release(struct judge *j)
{
    for (size_t i = 0; i < j->n; i++)
        free(j->all[i].need);
}

static bool judge(struct judge *j, const char *need)
{
    for (size_t i = 0; i < j->n; i++)
        if (!strcmp(j->all[i].need, need))
            return j->all[i].fits;
    char why[256];
    struct err none;
    AUTO_JSON json_t *want = NULL;
    bool fits = json_parse_strict(need, strlen(need), &want, &none) >= 0 &&
                match_worker(want, j->w, why, sizeof(why));
    char *copy = j->n < NEEDS_KNOWN ? strdup(need) : NULL;
    if (copy)
        j->all[j->n++] = (struct judged){copy, fits};
    return fits;
}

static struct turn *turns_room(struct turns *t)
{
    if (t->n == t->cap) {
        size_t cap = t->cap ? 2 * t->cap : 16;
        void *more = realloc(t->all, cap * sizeof(*t->all));
        if (!more)
            return NULL;
        t->all = more;
        t->cap = cap;
    }
    return &t->all[t->n];
}

/* Where the walk over the index stands. */
struct walk {
    char *owner, *need;
    int64_t priority;
    size_t group;
    bool begun;
};

static void walk_release(struct walk *at)
{
    free(at->owner);
    free(at->need);
}

static int walk_to(struct walk *at, const struct stmt *q)
{
    const char *owner = col_text(q, 1), *need = col_text(q, 3);
    int64_t priority = col_int(q, 2);
    if (at->begun &&
        (priority != at->priority || strcmp(owner, at->owner) != 0))
        at->group++;
    char *own = strdup(owner), *wants = strdup(need);
    walk_release(at);
    at->owner = own;
    at->need = wants;
    at->priority = priority;
    at->begun = true;
    return own && wants ? 0 : -1;
}

/* Of the row's cycle; its group is looked at as a whole later. */
static int take(struct turns *t, const struct walk *at, const struct stmt *q,
                int64_t now_ms)
{
    struct turn *one = turns_room(t);
    if (!one)
        return -1;
    *one = (struct turn){.cycle = col_int(q, 0),
                         .priority = at->priority,
                         .owner = strdup(at->owner),
                         .need = strdup(at->need),
                         .front = col_int(q, 4) != 0,
                         .since_ms = col_int(q, 5),
                         .group = at->group};
    int64_t served = col_null(q, 6) ? 0 : col_int(q, 6);
    if (served > one->since_ms)
        one->since_ms = served;
    if (one->since_ms > now_ms)
        one->since_ms = now_ms;
    if (!col_null(q, 7)) {
        one->running = (double)col_int(q, 8) / owner_weight(at->owner);
        one->use =
            owner_use(col_real(q, 7), col_int(q, 8), now_ms - col_int(q, 9)) /
            owner_weight(at->owner);
    }
    t->n++;
    return one->owner && one->need ? 0 : -1;
}

static bool before_in_group(const struct turn *a, const struct turn *b)
{
    return a->front != b->front ? a->front : a->cycle < b->cycle;
}

/* A group waits as long as the first of its cycles that fit. */
static void level_groups(struct turns *t, int64_t now_ms)
{
    for (size_t i = 0, end; i < t->n; i = end) {
        const struct turn *first = &t->all[i];
        for (end = i + 1; end < t->n && t->all[end].group == first->group;
             end++)
            ;
        for (size_t k = i + 1; k < end; k++)
            if (before_in_group(&t->all[k], first))
                first = &t->all[k];
        int64_t since = first->since_ms;
        int64_t level =
            first->priority + (now_ms - since) / owner_policy.age_ms;
        for (size_t k = i; k < end; k++) {
            t->all[k].since_ms = since;
            t->all[k].level = level;
        }
    }
}

static int by_turn(const void *x, const void *y)
{
    const struct turn *a = x, *b = y;
    if (a->level != b->level)
        return a->level > b->level ? -1 : 1;
    if (a->use < b->use || a->use > b->use)
        return a->use < b->use ? -1 : 1;
    if (a->running < b->running || a->running > b->running)
        return a->running < b->running ? -1 : 1;
    if (a->since_ms != b->since_ms)
        return a->since_ms < b->since_ms ? -1 : 1;
    if (a->group != b->group) /* the higher priority stands behind: index */
        return a->priority != b->priority ? (a->priority > b->priority ? -1 : 1)
                                          : (a->group < b->group ? -1 : 1);
    return before_in_group(a, b) ? -1 : 1;
}

/* The wall clock was set back: what lies ahead of it begins now. */
static int mend_clock(struct store *st, int64_t now_ms, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_CYCLE_SINCE_MEND);
    stmt_int(&q, ":now", now_ms);
    int64_t n = stmt_run(&q, err);
    if (n < 0)
        return (int)n;
    CLEANUP(stmt_end) struct stmt s = stmt_use(st, SQL_SERVED_MEND);
    stmt_int(&s, ":now", now_ms);
    n = stmt_run(&s, err);
    return n < 0 ? (int)n : 0;
}

int owner_turns(struct store *st, const struct worker_claim *w, int64_t now_ms,
                struct turns *ret, struct err *err)
{
    CLEANUP(turns_release) struct turns t = {0};
    CLEANUP(walk_release) struct walk at = {.priority = INT64_MIN};
    CLEANUP(judge_release) struct judge who = {.w = w};
    bool ahead = false;
    for (;;) {
        CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_TURN_NEXT);
        stmt_text(&q, ":owner", at.begun ? at.owner : "");
        stmt_int(&q, ":priority", at.priority);
        stmt_text(&q, ":need", at.begun ? at.need : "");
        int r = stmt_row(&q, err);
        if (r < 0)
            return r;
        if (r == 0)
            break;
        if (walk_to(&at, &q) < 0 ||
            (judge(&who, at.need) && take(&t, &at, &q, now_ms) < 0))
            return err_set(err, ERR_NOMEM, "no memory for the queue");
        ahead |= col_int(&q, 5) > now_ms ||
                 (!col_null(&q, 6) && col_int(&q, 6) > now_ms);
    }
    if (ahead) {
        int r = mend_clock(st, now_ms, err);
        if (r < 0)
            return r;
    }
    level_groups(&t, now_ms);
    if (t.n)
        qsort(t.all, t.n, sizeof(*t.all), by_turn);
    *ret = t;
    t = (struct turns){0};
    return 0;
}

int owner_behind(struct store *st, struct turn *t, struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_TURN_BEHIND);
    stmt_text(&q, ":owner", t->owner);
    stmt_int(&q, ":priority", t->priority);
    stmt_text(&q, ":need", t->need);
    stmt_int(&q, ":front", t->front);
    stmt_int(&q, ":id", t->cycle);
    int r = stmt_row(&q, err);
    if (r > 0) {
        t->cycle = col_int(&q, 0);
        t->front = col_int(&q, 1) != 0;
    }
    return r;
}
