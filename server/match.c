#include "server/match.h"
#include <stdio.h>
#include <string.h>
#include "schema/buf.h"
#include "schema/json_read.h"
#include "server/job.h"

#define MB 1048576.0

void fit_release(struct fit *f)
{
    start_release(&f->start);
    json_decref(f->fingerprint);
    f->fingerprint = NULL;
}

const char *policy_text(const json_t *o, const char *name)
{
    const char *s = json_string_value(json_object_get(o, name));
    return s ? s : "";
}

/* ---- what is asked for, what there is ---- */

static const json_t *resource(const json_t *want, const char *name)
{
    return json_object_get(json_object_get(want, "resources"), name);
}

/* The memory that training on this device takes up: its own, or the host's. */
static int64_t memory_of(const struct worker_claim *w, const json_t *device)
{
    int64_t own = json_integer_value(json_object_get(device, "memory_bytes"));
    bool apart = !strcmp(policy_text(device, "kind"), "cuda");
    return own > 0 || apart ? own : w->memory_bytes;
}

/* The first device of the kind asked for that has the memory asked for; or
 * NULL, and why. */
static const char *find_device(const json_t *want, const struct worker_claim *w,
                               char *why, size_t cap)
{
    const char *wanted = policy_text(want, "device");
    bool any = !*wanted || !strcmp(wanted, "auto"), none = true;
    double mb = json_number_value(resource(want, "memory_mb"));
    size_t i;
    json_t *d;
    json_array_foreach((json_t *)w->devices, i, d)
    {
        const char *kind = policy_text(d, "kind");
        if (!any && strcmp(wanted, kind))
            continue;
        int64_t has = memory_of(w, d);
        if (mb <= 0 || (double)has >= mb * MB)
            return kind;
        if (!none)
            continue; /* of several the first is told of */
        none = false;
        if (has > 0)
            snprintf(why, cap, "has %.0f MB of %s memory, of %.0f asked for",
                     (double)has / MB, kind, mb);
        else
            snprintf(why, cap, "does not say how much %s memory it has", kind);
    }
    if (none)
        snprintf(why, cap, "has no %s device", wanted);
    return NULL;
}

static bool has_labels(const json_t *want, const struct worker_claim *w,
                       char *why, size_t cap)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)resource(want, "labels"), key, value)
    {
        const json_t *own = json_object_get(w->labels, key);
        if (json_equal((json_t *)own, value))
            continue;
        int n = snprintf(why, cap, "lacks the label %s=%.100s", key,
                         json_string_value(value));
        if (own && n > 0 && (size_t)n < cap)
            snprintf(why + n, cap - (size_t)n, " (it has %s=%.100s)", key,
                     json_string_value(own));
        return false;
    }
    return true;
}

static int64_t threads_of(const json_t *want, const struct worker_claim *w)
{
    int64_t n = json_integer_value(json_object_get(want, "threads"));
    return n > 0 ? n : w->cpus;
}

int match_worker(const json_t *want, const struct worker_claim *w, char *why,
                 size_t cap)
{
    const char *device = find_device(want, w, why, cap);
    if (!device || !has_labels(want, w, why, cap))
        return 0;
    const json_t *state = json_object_get(want, "fingerprint");
    *why = '\0'; /* what a device lacked that is not taken */
    if (!json_is_object(state))
        return 1;
    char diff[1024];
    AUTO_JSON json_t *own =
        fingerprint_compose(w->library, device, threads_of(want, w), want);
    if (!fingerprint_diff(state, own, diff, sizeof(diff)))
        return 1;
    snprintf(why, cap, "differs: %s", diff);
    return 0;
}

void match_wanted(const json_t *want, char *ret, size_t cap)
{
    CLEANUP(buf_release) struct buf b = {0};
    const char *device = policy_text(want, "device"), *link = " with ";
    double mb = json_number_value(resource(want, "memory_mb"));
    if (*device && strcmp(device, "auto")) {
        buf_addf(&b, "%sa %s device", link, device);
        link = ", ";
    }
    if (mb > 0) {
        buf_addf(&b, "%s%.0f MB of memory", link, mb);
        link = ", ";
    }
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)resource(want, "labels"), key, value)
    {
        buf_addf(&b, "%sthe label %s=%.100s", link, key,
                 json_string_value(value));
        link = ", ";
    }
    if (json_is_object(json_object_get(want, "fingerprint")))
        buf_addf(&b, "%sthe fingerprint of its state (\"exact\": \"require\")",
                 link);
    snprintf(ret, cap, "%s", b.data ? b.data : "");
}

/* ---- one cycle ---- */

int match_cycle(struct store *st, int64_t cycle, const struct worker_claim *w,
                struct fit *f, struct err *err)
{
    CLEANUP(job_release) struct job j = {0};
    char why[1200];
    int r = cycle_load(st, cycle, &f->c, err);
    if (r >= 0)
        r = job_load_part(st, f->c.job, JOB_RUNTIME, &j, err);
    if (r < 0)
        return r;
    f->device = find_device(j.runtime, w, why, sizeof(why));
    if (!f->device || strcmp(f->c.state, "ready") || strcmp(j.state, "queued"))
        return 0;
    r = start_find(st, &f->c, &f->start, err);
    if (r < 0)
        return r;
    int64_t threads = json_integer_value(json_object_get(j.runtime, "threads"));
    f->threads_auto = threads == 0;
    f->threads = threads > 0 ? threads : j.threads > 0 ? j.threads : w->cpus;
    f->runtime_version = j.runtime_version;
    f->fingerprint =
        fingerprint_compose(w->library, f->device, f->threads, j.runtime);
    f->exact_since = -1;
    if (!f->start.from.id)
        return 1;

    /* exactness follows the state: what saved it, and how exact it was */
    const struct checkpoint *from = &f->start.from;
    f->exact_since = from->exact_since;
    f->exact_cycle = from->exact_cycle;
    snprintf(f->exact_why, sizeof(f->exact_why), "%s", from->exact_why);
    f->changed = fingerprint_diff(from->fingerprint, f->fingerprint, f->diff,
                                  sizeof(f->diff)) > 0;
    if (f->changed && !strcmp(policy_text(j.runtime, "exact"), "require"))
        return 0;
    if (f->changed && f->exact_since < 0) {
        f->exact_since = f->start.step;
        f->exact_cycle = f->c.number;
        snprintf(f->exact_why, sizeof(f->exact_why), "%.500s", f->diff);
    }
    return 1;
}

/* ---- fingerprints ---- */

json_t *fingerprint_compose(const json_t *library, const char *device,
                            int64_t threads, const json_t *runtime)
{
    json_t *f = json_deep_copy(library);
    if (!f)
        return NULL;
    json_object_set_new(f, "device", json_string(device));
    json_object_set_new(f, "threads", json_integer(threads));
    json_object_set(f, "micro_batch", json_object_get(runtime, "micro_batch"));
    json_object_set(f, "padding", json_object_get(runtime, "padding"));
    return f;
}

static void value_text(const json_t *v, char *ret, size_t cap)
{
    if (json_is_string(v)) {
        snprintf(ret, cap, "%s", json_string_value(v));
        return;
    }
    CLEANUP(buf_release) struct buf b = {0};
    if (!v || json_canonical(v, &b) < 0)
        snprintf(ret, cap, "none");
    else
        snprintf(ret, cap, "%s", b.data);
}

int fingerprint_diff(const json_t *a, const json_t *b, char *ret, size_t cap)
{
    AUTO_JSON json_t *both = json_object();
    json_object_update(both, (json_t *)a);
    json_object_update(both, (json_t *)b);
    int n = 0;
    const char *key;
    json_t *unused;
    CLEANUP(buf_release) struct buf text = {0};
    json_object_foreach(both, key, unused)
    {
        const json_t *x = json_object_get(a, key), *y = json_object_get(b, key);
        if (json_equal((json_t *)x, (json_t *)y))
            continue;
        char from[200], to[200];
        value_text(x, from, sizeof(from));
        value_text(y, to, sizeof(to));
        buf_addf(&text, "%s%s: %s → %s", n++ ? ", " : "", key, from, to);
    }
    if (n)
        snprintf(ret, cap, "%s", text.data ? text.data : "");
    return n;
}

bool fingerprint_moves(const json_t *fingerprint, const json_t *runtime)
{
    static const char *const same[] = {"micro_batch", "padding", NULL};
    const char *device = policy_text(runtime, "device");
    const json_t *threads = json_object_get(runtime, "threads");
    if (strcmp(device, "auto") &&
        strcmp(device, policy_text(fingerprint, "device")))
        return true;
    if (json_integer_value(threads) > 0 &&
        json_integer_value(threads) !=
            json_integer_value(json_object_get(fingerprint, "threads")))
        return true;
    for (int i = 0; same[i]; i++)
        if (!json_equal(json_object_get(runtime, same[i]),
                        json_object_get(fingerprint, same[i])))
            return true;
    return false;
}
