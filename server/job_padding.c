/* job_padding.c - the sizes of a ladder, once its job's data is known (job.h). */
#include <stdio.h>
#include "schema/buf.h"
#include "schema/json_read.h"
#include "server/event.h"
#include "server/job.h"
#include "server/sample.h"

static int keep(struct store *st, int64_t id, const json_t *runtime,
                struct err *err)
{
    CLEANUP(stmt_end) struct stmt q = stmt_use(st, SQL_JOB_RUNTIME);
    stmt_int(&q, ":id", id);
    stmt_json(&q, ":runtime", runtime);
    int64_t n = stmt_run(&q, err);
    return n < 0 ? (int)n : 0;
}

static int say(struct store *st, int64_t id, const struct spec *spec,
               const struct padding *p, const struct sample *s, int64_t now_ms,
               struct err *err)
{
    CLEANUP(buf_release) struct buf text = {0};
    for (int d = 0; d < p->n_dims; d++) {
        buf_addf(&text, "%s%s", d ? "; " : "", spec->record.dims[d]);
        for (int i = 0; i < p->sizes[d].n; i++)
            buf_addf(&text, "%s%d", i ? ", " : " ", p->sizes[d].v[i]);
    }
    return event_add(
        st,
        &(struct event){
            .job = id, .step = -1, .kind = "padding", .actor = "server"},
        now_ms, err, "sizes that waste least, from %lld records: %.800s",
        (long long)s->records, text.data ? text.data : "");
}

int job_choose_sizes(struct store *st, int64_t id, const json_t *data,
                     int64_t now_ms, struct err *err)
{
    CLEANUP(job_release) struct job j = {0};
    int r = job_load_part(st, id, JOB_RUNTIME, &j, err);
    if (r < 0 ||
        !json_object_get(json_object_get(j.runtime, "padding"), "count"))
        return r;
    CLEANUP(job_release) struct job whole = {0};
    CLEANUP(spec_release) struct spec spec = {0};
    CLEANUP(runtime_release) struct runtime_policy p = {0};
    CLEANUP(sample_release) struct sample s = {0};
    r = job_load_part(st, id, JOB_SPEC, &whole, err);
    if (r >= 0)
        r = spec_parse(whole.spec, &spec, err);
    if (r >= 0)
        r = runtime_parse(j.runtime, &spec.record,
                          spec.training.effective_batch, &p, err);
    if (r >= 0)
        r = sample_read(&spec, data, &s, err);
    if (r >= 0)
        r = sample_choose(&s, p.micro_batch, &p.padding, err);
    if (r < 0 || p.padding.count) /* nothing to choose from: another time */
        return r;
    AUTO_JSON json_t *runtime = runtime_json(&p, &spec.record);
    if (!runtime)
        return err_set(err, ERR_NOMEM, "no memory for a runtime policy");
    r = keep(st, id, runtime, err);
    return r < 0 ? r : say(st, id, &spec, &p.padding, &s, now_ms, err);
}
