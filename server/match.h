/* match.h - which worker can train which cycle, and how exactly.
 *
 * A worker fits when it has what the job's policy asks for: the device, so much
 * memory, the labels. Memory is that of the device where it has its own, else
 * the host's. How it would compute - device, threads, micro-batch, padding, and
 * the versions of its library - is its fingerprint. Equal fingerprints give
 * equal bits. When a cycle goes on from a state that another fingerprint saved,
 * the job is order-exact from that step on; with "exact": "require" it waits
 * for a worker that has the same one.
 *
 * What a cycle asks for is its `need`, one text for all cycles that ask for the
 * same (SQL_CYCLE_PLACE composes it): {"device", "resources"}, and where the
 * fingerprint of a state is required {"fingerprint", "threads", "micro_batch",
 * "padding"} as well. So a claim judges each need once, not each cycle. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "schema/err.h"
#include "server/cycle.h"
#include "server/start.h"
#include "server/store.h"
#include "server/worker.h"

/* Does this worker have what `want` asks for, a runtime policy or a need? Of a
 * claim it looks at devices, labels, memory_bytes, cpus and library. 1; or 0,
 * and `why` says it of the worker: "has no cuda device", "lacks the label
 * gpu=h200". Reads nothing but its arguments. */
int match_worker(const json_t *want, const struct worker_claim *w, char *why,
                 size_t cap);
/* What `want` asks for, to stand behind "a worker": " with a cuda device and
 * 8192 MB of memory"; "" when any will do. */
void match_wanted(const json_t *want, char *ret, size_t cap);

struct fit { /* a cycle that this worker can train, and how */
    struct cycle c;
    struct start start;
    const char *device; /* the claim's */
    int64_t threads;
    bool threads_auto, changed; /* changed: diff says how */
    int64_t exact_since, exact_cycle;
    char exact_why[512], diff[1024];
    json_t *fingerprint;
    int64_t runtime_version;
};
/* Can the worker train it? 1, or 0. */
int match_cycle(struct store *st, int64_t cycle, const struct worker_claim *w,
                struct fit *ret, struct err *err);
void fit_release(struct fit *f); /* whatever match_cycle returned */

/* ---- fingerprints ---- */

/* What the server adds to a worker's library object. Caller owns. */
json_t *fingerprint_compose(const json_t *library, const char *device,
                            int64_t threads, const json_t *runtime);
/* First difference of two fingerprints as "threads: 1 → 2"; 0: none. */
int fingerprint_diff(const json_t *a, const json_t *b, char *ret, size_t cap);
/* Would this policy give the worker another fingerprint? Then it must not
 * change under way: a lease has one fingerprint. */
bool fingerprint_moves(const json_t *fingerprint, const json_t *runtime);

/* A word of a policy; "" when there is none. */
const char *policy_text(const json_t *runtime, const char *name);
