/* job_json.c - a job as its readers see it (DESIGN 7): one row of JOB_SHOWN,
 * which joins the job with the cycle that it is at and that cycle's lease. */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <string.h>
#include "schema/json_read.h"
#include "server/event.h"
#include "server/job.h"
#include "server/page.h"
#include "server/when.h"

enum { /* of JOB_SHOWN */
       C_NUMBER = 24,
       C_STEP,
       C_STEPS,
       C_EPOCH,
       C_RECORDS_DONE,
       C_RECORDS,
       C_EPOCHS,
       C_SPEED,
       C_STATE,
       C_FAILURES,
       C_LOST,
       C_NO_PROGRESS,
       C_SKIPPED,
       C_BAD,
       L_ID,
       L_WORKER,
       L_STAGE,
       L_STARTED,
       C_DONE,
       J_SWEEP,
       J_VALUES,
       J_NOT_BEFORE,
       J_EDIT,
       C_PARKED,
       C_MISSING,
       L_STALLED,
       C_RENORMALISED,
       C_EXCEEDED,
};

static json_t *progress(const struct stmt *q)
{
    json_t *p = json_object();
    int64_t cycles = col_int(q, 6), step = col_int(q, C_STEP);
    int64_t steps = col_int(q, C_STEPS), done = col_int(q, C_RECORDS_DONE);
    int64_t total = col_int(q, C_RECORDS) * col_int(q, C_EPOCHS);
    bool frozen = !col_null(q, C_STEPS) && steps > 0;
    double fraction = frozen ? (double)step / (double)steps : 0;
    double speed = col_null(q, C_SPEED) ? 0 : col_real(q, C_SPEED);
    double left = (double)(total - done); /* records to go */
    if (cycles > 1) {
        double n = (double)col_int(q, C_DONE);
        bool open = col_null(q, C_NUMBER) || n < (double)col_int(q, C_NUMBER);
        fraction = (n + (open ? fraction : 0)) / (double)cycles;
        left += (double)total * ((double)cycles - n - 1);
    }
    json_object_set_new(p, "cycle", col_int_or_null(q, C_NUMBER));
    json_object_set_new(p, "cycles", json_integer(cycles));
    json_object_set_new(p, "epoch", json_integer(col_int(q, C_EPOCH)));
    json_object_set_new(p, "step", json_integer(step));
    json_object_set_new(p, "steps", col_int_or_null(q, C_STEPS));
    json_object_set_new(p, "records", json_integer(done));
    json_object_set_new(p, "records_total",
                        frozen ? json_integer(total) : json_null());
    json_object_set_new(p, "fraction", json_real(fraction));
    json_object_set_new(p, "records_per_s",
                        speed > 0 ? json_real(speed) : json_null());
    json_object_set_new(p, "eta_s",
                        speed > 0 && left >= 0 ? json_real(left / speed)
                                               : json_null());
    return p;
}

static json_t *job_json(const struct stmt *q, bool whole)
{
    json_t *j = json_object();
    json_object_set_new(j, "id", json_integer(col_int(q, 0)));
    json_object_set_new(j, "name", json_string(col_text(q, 1)));
    json_object_set_new(j, "kind", json_string(col_text(q, 2)));
    json_object_set_new(j, "state", json_string(col_text(q, 3)));
    json_object_set_new(j, "reason", col_text_or_null(q, 4));
    json_object_set_new(j, "signature", json_string(col_text(q, 5)));
    json_object_set_new(j, "priority", json_integer(col_int(q, 7)));
    json_object_set_new(j, "labels", col_json(q, 8));
    json_object_set_new(j, "version", json_integer(col_int(q, 9)));
    json_object_set_new(j, "edit", json_integer(col_int(q, J_EDIT)));
    json_object_set_new(j, "not_before_at",
                        when_json(col_int(q, J_NOT_BEFORE)));
    if (!col_null(q, J_SWEEP))
        json_object_set_new(j, "sweep",
                            json_pack("{sI so}", "id", col_int(q, J_SWEEP),
                                      "values", col_json(q, J_VALUES)));
    json_object_set_new(j, "created_at", when_json(col_int(q, 10)));
    json_object_set_new(j, "started_at", when_json(col_int(q, 11)));
    json_object_set_new(j, "ended_at", when_json(col_int(q, 12)));
    json_object_set_new(j, "progress", progress(q));
    bool order = !col_null(q, 13);
    json_t *exact = json_pack("{ss so}", "tier", order ? "order" : "bit",
                              "since_step", col_int_or_null(q, 13));
    if (order) {
        json_object_set_new(exact, "cycle", col_int_or_null(q, 14));
        json_object_set_new(exact, "reason", col_text_or_null(q, 15));
    }
    json_object_set_new(exact, "inexact_steps", json_integer(col_int(q, 16)));
    json_object_set_new(j, "exact", exact);
    json_object_set_new(j, "runtime", col_json(q, 17));
    json_object_set_new(j, "runtime_version", json_integer(col_int(q, 18)));
    if (!col_null(q, 19))
        json_object_set_new(j, "model_sha256", json_string(col_text(q, 19)));
    json_object_set_new(j, "dataset",
                        col_text(q, 20)[0] ? json_string(col_text(q, 20))
                                           : json_null());
    json_object_set_new(j, "parameters", json_integer(col_int(q, 21)));
    if (!col_null(q, 22))
        json_object_set_new(j, "error", col_json(q, 22));
    if (!col_null(q, C_NUMBER)) {
        json_object_set_new(j, "cycle_state", col_text_or_null(q, C_STATE));
        json_object_set_new(j, "budgets",
                            json_pack("{sI sI sI}", "failures",
                                      col_int(q, C_FAILURES), "lost",
                                      col_int(q, C_LOST), "no_progress",
                                      col_int(q, C_NO_PROGRESS)));
        json_object_set_new(
            j, "data",
            json_pack("{sI so sI so}", "skipped", col_int(q, C_SKIPPED), "bad",
                      col_null(q, C_BAD) ? json_array() : col_json(q, C_BAD),
                      "renormalised", col_int(q, C_RENORMALISED), "exceeded",
                      col_null(q, C_EXCEEDED) ? json_object()
                                              : col_json(q, C_EXCEEDED)));
    }
    bool parked =
        !col_null(q, C_PARKED) && !strcmp(col_text(q, C_STATE), "waiting");
    json_object_set_new(j, "parked",
                        parked ? json_pack("{sI so}", "missing_bytes",
                                           col_int(q, C_MISSING), "since_at",
                                           when_json(col_int(q, C_PARKED)))
                               : json_null());
    json_object_set_new(j, "stalled_since", when_json(col_int(q, L_STALLED)));
    json_object_set_new(
        j, "lease",
        col_null(q, L_ID)
            ? json_null()
            : json_pack("{sI ss ss so}", "id", col_int(q, L_ID), "worker",
                        col_text(q, L_WORKER), "stage", col_text(q, L_STAGE),
                        "started_at", when_json(col_int(q, L_STARTED))));
    if (whole) {
        /* as it is now: priority, labels and policy may have changed since */
        json_t *spec = col_json(q, 23);
        json_object_set_new(spec, "priority", json_integer(col_int(q, 7)));
        json_object_set(spec, "labels", json_object_get(j, "labels"));
        json_object_set(spec, "runtime", json_object_get(j, "runtime"));
        json_object_set(j, "after", json_object_get(spec, "after"));
        json_object_set(j, "limits", json_object_get(spec, "limits"));
        json_object_set_new(j, "spec", spec);
    }
    return j;
}

int job_get(struct store *st, int64_t id, bool whole, json_t **ret,
            struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_GET);
    stmt_int(&q, ":id", id);
    int r = stmt_row(&q, err);
    if (r < 0)
        return r;
    if (r == 0)
        return err_set(err, ERR_NOT_FOUND, "there is no job %" PRId64, id);
    *ret = job_json(&q, whole);
    return 0;
}

static void ordinal(int64_t n, char *ret, size_t cap)
{
    int64_t tens = n % 100;
    const char *end = tens >= 11 && tens <= 13 ? "th"
                      : n % 10 == 1            ? "st"
                      : n % 10 == 2            ? "nd"
                      : n % 10 == 3            ? "rd"
                                               : "th";
    if (n == 1)
        snprintf(ret, cap, "next");
    else
        snprintf(ret, cap, "%" PRId64 "%s", n, end);
}

int job_add_place(struct store *st, json_t *job, struct err *err)
{
    const char *state = json_string_value(json_object_get(job, "state"));
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_PLACE);
    stmt_int(&q, ":id", json_integer_value(json_object_get(job, "id")));
    int r = strcmp(state, "queued") ? 0 : stmt_row(&q, err);
    if (r < 0)
        return r;
    json_object_set_new(job, "place", json_null());
    if (r == 0)
        return 0;
    int64_t place = col_int(&q, 0) + 1;
    const char *reason = json_string_value(json_object_get(job, "reason"));
    char nth[32];
    ordinal(place, nth, sizeof(nth));
    json_object_set_new(job, "place", json_integer(place));
    json_object_set_new(job, "reason",
                        json_sprintf("%s in line; %s", nth, reason));
    return 0;
}

int job_list(struct store *st, const struct job_filter *f, json_t **ret,
             struct err *err)
{
    CLEANUP(stmt_end)
    struct stmt q = stmt_use(st, f->sweep ? SQL_JOB_LIST_SWEEP : SQL_JOB_LIST);
    if (f->sweep)
        stmt_int(&q, ":sweep", f->sweep);
    stmt_text(&q, ":state", f->state);
    stmt_text(&q, ":kind", f->kind);
    stmt_text(&q, ":q", f->q);
    stmt_text(&q, ":label", f->label);
    stmt_text(&q, ":value", f->label_value);
    stmt_int(&q, ":before", f->before ? f->before : INT64_MAX);
    CLEANUP(page_release) struct page page = page_begin(&q, f->limit);
    int r;
    while ((r = page_row(&page, &q, 0, err)) > 0)
        page_add(&page, job_json(&q, false));
    return r < 0 ? r : page_end(&page, ret);
}
