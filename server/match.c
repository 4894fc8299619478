#include "server/match.h"
#include <stdio.h>
#include <string.h>
#include "schema/buf.h"
#include "schema/json_read.h"
#include "server/job.h"

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

/* Can the worker train it? 1, or 0 with the job's reason set. */
int match_cycle(struct store *st, int64_t cycle, const struct worker_claim *w,
                struct fit *f, struct err *err)
{
    CLEANUP(job_release) struct job j = {0};
    int r = cycle_load(st, cycle, &f->c, err);
    if (r >= 0)
        r = job_load_part(st, f->c.job, JOB_RUNTIME, &j, err);
    if (r < 0)
        return r;
    const char *wanted = policy_text(j.runtime, "device");
    char why[1200];
    f->device = worker_device(w, wanted);
    if (!f->device) {
        snprintf(why, sizeof(why), "waits for a worker with a %s device",
                 wanted);
        r = job_say_why(st, j.id, why, err);
        return r < 0 ? r : 0;
    }
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
    if (f->changed && !strcmp(policy_text(j.runtime, "exact"), "require")) {
        snprintf(why, sizeof(why),
                 "waits for a worker with the fingerprint of its state "
                 "(\"exact\": \"require\"); worker %s differs: %.900s",
                 w->name, f->diff);
        r = job_say_why(st, j.id, why, err);
        return r < 0 ? r : 0;
    }
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
