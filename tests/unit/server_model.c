/* Thousands of random operations, by clients and workers whose messages are
 * lost, repeated, late and out of order, on a server that crashes, restarts and
 * whose clocks jump, next to a model (queue_model.h, model_moves.h) that says
 * what should come of each. After each one the files are read behind the
 * server's back:
 *
 *   every row is as the model has it: states, tokens, budgets, checkpoints
 *   a cycle has one live lease when it is leased, and none else; the newest
 *   token is that lease's; no ended job has an open cycle
 *   of the state that a cycle goes on from, each step was trained once, by the
 *   lease that the model says, and its loss is that lease's
 *   checkpoints that are needed are there, and their chunks
 *   each transition has its event, each job that waits its reason
 *
 * and a message that comes again gets the first answer, or is refused, and
 * changes nothing. PAWL_SEED=n tells one story again, PAWL_OPS=n makes it
 * shorter or longer; TEST_LONG=1 tells many. */
#include "model_moves.h"
#include "schema/rfc3339.h"
#include "server/chunk.h"
#include "server/options.h"
#include "server/owner.h"
#include "server/retention.h"
#include "server/room.h"
#include "server_fixture.h"
#include <sqlite3.h>
#include <sys/statvfs.h>
#include <time.h>

#define SLOTS 6
#define LATE 48
#define TRAIL 40

enum kind { CLAIM, BEAT, CHUNK, STATE, RELEASE };
static const char *const kind_word[] = {"claim", "beat", "chunk", "state",
                                        "release"};

struct msg {
    enum kind kind;
    int slot, worker; /* who sent it */
    int64_t lease, token;
    int seq, step;
    bool loading, final, set_aside;
    enum m_outcome outcome; /* of the release in it; LIVE: none */
    char code[16], digest[DIGEST_HEX], previous[DIGEST_HEX], sha[DIGEST_HEX];
    float value;
    json_t *body;   /* as it travels */
    json_t *answer; /* the first one */
};

/* A process on its way from claim to release. */
struct proc {
    int worker; /* its number: claim id, start time */
    bool known, drained;
    int64_t lease, token, job, number;
    int steps, step, saved, seq, reported;
    bool loading, asked, stop;
    int64_t from;
    char digest[DIGEST_HEX];
    json_t *claim;
    struct msg pending; /* not answered yet; body NULL: none */
    json_t *manifest;   /* being saved: its chunk is stored */
    /* its body has been looked at (READ lane), the rest is to come (WRITE) */
    bool prepared;
    int prepared_r;
    struct checkpoint_in in;
};

static struct {
    struct world *w;
    sqlite3 *db;
    struct model m, before;
    struct proc slot[SLOTS];
    struct msg late[LATE];
    int n_late, workers;
    int64_t prune_after;
    struct room *room;
    bool sweeping;
    struct chunk_sweep sweep;
    int64_t ids[64]; /* jobs, also those that are gone */
    int n_ids;
    uint64_t seed, random;
    int op, last;
    bool aloud; /* PAWL_ALOUD=1: each operation as it comes */
    char trail[TRAIL][200];
    int n_trail;
    int64_t count[32];
} g;

/* ---- telling ---- */

static void note(const char *fmt, ...)
{
    va_list ap;
    char *line = g.trail[g.n_trail++ % TRAIL];
    int n = snprintf(line, 200, "%d: ", g.op);
    va_start(ap, fmt);
    vsnprintf(line + n, (size_t)(200 - n), fmt, ap);
    va_end(ap);
    if (g.aloud)
        print_message("%s\n", line);
}

static void tell(void)
{
    for (int i = g.n_trail > TRAIL ? g.n_trail - TRAIL : 0; i < g.n_trail; i++)
        print_message("#   %s\n", g.trail[i % TRAIL]);
    print_message("# again with: PAWL_SEED=%llu PAWL_OPS=%d\n",
                  (unsigned long long)g.seed, g.op);
}

#define broken(...)                                                            \
    do {                                                                       \
        tell();                                                                \
        fail_msg(__VA_ARGS__);                                                 \
    } while (0)

/* splitmix64 */
static uint64_t draw(void)
{
    uint64_t x = (g.random += 0x9e3779b97f4a7c15u);
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static int below(int n)
{
    return (int)(draw() % (uint64_t)n);
}

static bool chance(int percent)
{
    return below(100) < percent;
}

/* ---- a request ---- */

/* Everything runs in a transaction of its lane. At times the power goes before
 * the commit: then nothing has happened, and nobody was answered. */
struct lane {
    struct txn txn;
    bool cut;
};

static void lane_begin(struct lane *l, struct store *st)
{
    struct world *w = g.w;
    g.before = g.m;
    l->txn = (struct txn)TXN_INIT;
    l->cut = chance(3);
    must(txn_begin(&l->txn, st, &w->err));
}

/* r: what came of it. True when it was committed. */
static bool lane_end(struct lane *l, int r)
{
    struct world *w = g.w;
    if (r < 0 || l->cut) {
        txn_end(&l->txn);
        g.m = g.before;
        if (l->cut)
            note("  … the power went before the commit");
        return false;
    }
    must(txn_commit(&l->txn, &w->err));
    return true;
}

static void expect(const char *what, int r, int wanted)
{
    if ((r < 0 ? r : 0) != (wanted < 0 ? wanted : 0))
        broken("%s: %d (%s) instead of %d", what, r,
               r < 0 ? g.w->err.text : "done", wanted);
}

#include "model_checks.h"

#include "model_message.h"

#include "model_worker.h"

#include "model_client.h"

/* ---- the run ---- */

static void begin(struct world *w, uint64_t seed)
{
    memset(&g, 0, sizeof(g));
    g.w = w;
    g.aloud = getenv("PAWL_ALOUD") != NULL;
    g.seed = g.random = seed;
    g.m.now = w->now;
    g.m.mono = w->mono;
    must(room_new(&g.room, &w->err));
    put_records(w);
    must(lease_listening(w->st, w->mono, &w->err));
    db_open();
}

static void run(struct world *w, uint64_t seed, int ops)
{
    begin(w, seed);
    g.last = ops;
    for (g.op = 1; g.op <= ops; g.op++) {
        time_passes();
        int dice = below(100);
        if (dice < 66)
            worker_acts(&g.slot[below(SLOTS)]);
        else if (dice < 75)
            late_message();
        else if (dice < 90)
            client_acts();
        else
            server_acts();
        check_all();
    }
    for (int i = 0; i < SLOTS; i++)
        proc_end(&g.slot[i]);
    for (int i = 0; i < g.n_late; i++)
        msg_release(&g.late[i]);
    chunk_sweep_release(&g.sweep);
    room_free(g.room);
    db_close();
}

static int64_t of_env(const char *name, int64_t otherwise)
{
    const char *value = getenv(name);
    return value && *value ? strtoll(value, NULL, 10) : otherwise;
}

static void whatever_comes_the_queue_does_as_the_model(void **state)
{
    bool thorough = of_env("TEST_LONG", 0) != 0;
    int64_t seed = of_env("PAWL_SEED", -1);
    int stories = seed >= 0 ? 1 : thorough ? 300 : 4;
    int ops = (int)of_env("PAWL_OPS", thorough ? 5000 : 1500);
    if (seed < 0)
        seed = (int64_t)time(NULL) % 1000000 * 1000;
    print_message("# PAWL_SEED=%lld PAWL_OPS=%d, %d stories\n", (long long)seed,
                  ops, stories);
    static struct share share = {(char *)"ann", 2};
    owner_policy = (struct owner_policy){M_AGE_MS, &share, 1};
    store_statvfs = disk;
    int64_t did[8] = {0};
    for (int i = 0; i < stories; i++) {
        void *w = NULL;
        if (thorough)
            print_message("# PAWL_SEED=%lld\n", (long long)(seed + i));
        assert_int_equal(setup(&w), 0);
        run(w, (uint64_t)(seed + i), ops);
        for (int k = 0; k < 8; k++)
            did[k] += g.count[k];
        teardown(&w);
    }
    print_message("# %lld claims, %lld saves, %lld cycles finished, %lld late"
                  " messages, %lld leases lost, %lld restarts, %lld cuts\n",
                  (long long)did[DID_CLAIM], (long long)did[DID_SAVE],
                  (long long)did[DID_FINISH], (long long)did[DID_LATE],
                  (long long)did[DID_LOSE], (long long)did[DID_RESTART],
                  (long long)did[DID_CUT]);
    assert_true(did[DID_FINISH] > 0 && did[DID_LATE] > 0 && did[DID_LOSE] > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_comes_the_queue_does_as_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
