/* model_message.h - what the workers of server_model.c send, what the server
 * answers, and what the model says it should. */
#pragma once

enum {
    DID_CLAIM,
    DID_SAVE,
    DID_FINISH,
    DID_LATE,
    DID_LOSE,
    DID_RESTART,
    DID_CUT
};
#define CUT (-1000) /* nobody answered */

static void msg_release(struct msg *m)
{
    json_decref(m->body);
    json_decref(m->answer);
    m->body = m->answer = NULL;
}

static void proc_drop_save(struct proc *p)
{
    json_decref(p->manifest);
    p->manifest = NULL;
    p->prepared = false;
}

static void proc_end(struct proc *p)
{
    json_decref(p->claim);
    msg_release(&p->pending);
    proc_drop_save(p);
    *p = (struct proc){0};
}

/* ---- messages ---- */

static struct msg msg_of(struct proc *p, enum kind kind, json_t *body)
{
    struct msg m = {.kind = kind,
                    .slot = (int)(p - g.slot),
                    .worker = p->worker,
                    .lease = p->lease,
                    .token = p->token,
                    .step = p->step,
                    .body = body};
    assert_non_null(body);
    return m;
}

static struct msg msg_claim(struct proc *p)
{
    return msg_of(
        p, CLAIM,
        json_fmt("{\"worker\": {\"name\": \"w%d\", \"host\": \"h\", \"pid\":"
                 " %d, \"started\": %d, \"boot\": \"b\", \"local\": true,"
                 " \"devices\": [{\"kind\": \"cpu\"}], \"cpus\": 1,"
                 " \"version\": \"1\", \"library\": {\"libtorch\": \"1\"}},"
                 " \"claim\": \"claim-%d\"}",
                 (int)(p - g.slot), 100 + (int)(p - g.slot), p->worker,
                 p->worker));
}

static json_t *position(const struct proc *p)
{
    return json_pack("{sI sI}", "step", (json_int_t)p->step, "records",
                     (json_int_t)p->step * 4);
}

static struct msg msg_beat(struct proc *p)
{
    json_t *rows = json_array();
    for (int i = p->reported + 1; i <= p->step; i++)
        json_array_append_new(
            rows, json_pack("[i{sf}]", i, "loss", loss_of(p->number, i)));
    struct msg m = msg_of(
        p, BEAT,
        json_pack("{sI ss sI so so}", "token", (json_int_t)p->token, "stage",
                  p->loading ? "load" : "train", "seq", (json_int_t)++p->seq,
                  "position", position(p), "metrics", rows));
    m.seq = p->seq;
    m.loading = p->loading;
    return m;
}

static float value_of(const struct proc *p)
{
    return (float)loss_of(p->number, p->step);
}

static json_t *manifest_of(struct proc *p, char sha[DIGEST_HEX])
{
    struct world *w = g.w;
    float value = value_of(p);
    uint8_t sum[DIGEST_BYTES];
    char model[DIGEST_HEX];
    digest_of(&value, sizeof(value), sum);
    digest_hex(sum, sha);
    json_t *m = json_pack(
        "{ss si sO si si si sO sO s{} s{} s[{ss ss s[i] si si}] si s[s]}",
        "format", "pawl-state", "version", 1, "cycle",
        json_object_get(json_object_get(p->claim, "lease"), "cycle"), "step",
        p->step, "epoch", 0, "records", p->step * 4, "signature",
        json_object_get(p->claim, "signature"), "fingerprint",
        json_object_get(p->claim, "fingerprint"), "feed", "totals", "tensors",
        "name", "model.w", "dtype", "F32", "shape", 1, "begin", 0, "end", 4,
        "bytes", 4, "chunks", sha);
    json_object_set_new(m, "previous",
                        p->digest[0] ? json_string(p->digest) : json_null());
    CLEANUP(buf_release) struct buf file = {0};
    int64_t payload;
    must(state_model_header(m, json_object_get(p->claim, "spec"), &file,
                            &payload, &w->err));
    buf_add(&file, &value, sizeof(value));
    digest_of(file.data, file.len, sum);
    digest_hex(sum, model);
    json_object_set_new(m, "model_bytes", json_integer((json_int_t)file.len));
    json_object_set_new(m, "model_sha256", json_string(model));
    return m;
}

static struct msg msg_chunk(struct proc *p)
{
    char sha[DIGEST_HEX];
    json_decref(p->manifest);
    p->manifest = manifest_of(p, sha);
    struct msg m = msg_of(p, CHUNK, json_object());
    m.value = value_of(p);
    strcpy(m.sha, sha);
    return m;
}

/* How a lease is let go: a body, and what it says in the message. */
static json_t *release_body(struct proc *p, struct msg *m)
{
    json_t *b = json_pack("{ss so}", "outcome", m_outcome_word[m->outcome],
                          "position", position(p));
    if (m->outcome == O_YIELDED)
        json_object_set_new(b, "reason",
                            json_string(p->asked ? "drain" : "steps"));
    if (m->outcome == O_FAILED) {
        json_t *e = json_pack("{ss ss sb}", "code", m->code, "detail",
                              "it broke", "final", m->final);
        if (!strcmp(m->code, "no_space"))
            json_object_update_new(
                e, json_pack("{si si}", "bytes", 4, "missing_bytes", 1));
        if (m->set_aside)
            json_object_set_new(e, "checkpoint",
                                json_integer((json_int_t)p->from));
        json_object_set_new(b, "error", e);
    }
    return b;
}

static struct msg msg_state(struct proc *p, enum m_outcome outcome)
{
    struct msg m = msg_of(p, STATE, json_object());
    m.outcome = outcome;
    m.step = (int)int_of(p->manifest, "step");
    snprintf(m.previous, sizeof(m.previous), "%s",
             str_of(p->manifest, "previous"));
    digest_of_json(p->manifest, m.digest);
    json_object_set(m.body, "manifest", p->manifest);
    if (outcome != LIVE)
        json_object_set_new(m.body, "release", release_body(p, &m));
    return m;
}

static struct msg msg_let_go(struct proc *p, enum m_outcome outcome,
                             const char *code, bool final, bool set_aside)
{
    struct msg m = msg_of(p, RELEASE, json_object());
    m.outcome = outcome;
    m.final = final;
    m.set_aside = set_aside;
    snprintf(m.code, sizeof(m.code), "%s", code ? code : "");
    json_decref(m.body);
    m.body = release_body(p, &m);
    json_object_set_new(m.body, "token", json_integer((json_int_t)p->token));
    return m;
}

/* ---- delivery: the server's answer, and the model's ---- */

/* What the claim's answer must say of where the cycle goes on. */
static void check_start(const json_t *a, const struct m_lease *l)
{
    const json_t *c = json_object_get(a, "checkpoint");
    const json_t *i = json_object_get(a, "initial");
    struct m_saved *from =
        m_saved(m_job(&g.m, l->job), l->from_id ? l->from_id : l->initial);
    if (int_of(c, "id") != l->from_id || int_of(i, "id") != l->initial ||
        (from && strcmp(from->digest, str_of(c ? c : i, "digest"))))
        broken("lease %d starts from checkpoint %d or %d instead of %d or %d",
               (int)l->id, (int)int_of(c, "id"), (int)int_of(i, "id"),
               (int)l->from_id, (int)l->initial);
}

/* A job's place in the queue. */
static const char *said(int64_t id, int i)
{
    static char text[2][200];
    struct m_job *j = m_job(&g.m, id);
    struct m_cycle *c = j ? m_open(j) : NULL;
    if (!c)
        return id ? "a job without an open cycle" : "nothing";
    snprintf(text[i], sizeof(text[i]),
             "job %d (%s; cycle %d, %s%s, row %d, '%s', priority %d, level %d,"
             " used %g)",
             (int)id, m_job_word[j->state], c->number, m_state_word[c->state],
             c->front ? ", in front" : "", (int)c->id, m_owner_word[c->owner],
             (int)c->priority,
             (int)m_group(&g.m, c->owner, (int)c->priority).level,
             m_group(&g.m, c->owner, (int)c->priority).use);
    return text[i];
}

static int deliver_claim(struct msg *m, json_t **ret)
{
    struct world *w = g.w;
    struct worker_claim in = {0};
    struct lane lane;
    must(worker_claim_parse(m->body, &in, &w->err));
    lane_begin(&lane, w->st);
    json_t *a = NULL;
    int r = lease_claim(w->st, &in, w->now, w->mono, &a, &w->err);
    const json_t *la = json_object_get(a, "lease");
    struct m_lease *old = m_of_worker(&g.m, m->worker);
    int nth = m->worker % M_WORKERS;
    g.m.known[nth] = true;
    if (g.m.gone[nth]) {
        expect("a claim of a process that has ended", r, ERR_STALE);
    } else if (old) {
        int64_t from = old->from_id ? old->from_id : old->initial;
        int wanted = old->outcome == LIVE ? 0 : ERR_STALE;
        /* silence ended it, it came back, and where it began is pruned: who
         * has saved since then knows the answer */
        if (!wanted && from && !m_saved(m_job(&g.m, old->job), from))
            wanted = ERR_NOT_FOUND;
        expect("a claim that was made before", r, wanted);
        if (r > 0 && int_of(la, "id") != old->id)
            broken("a claim got lease %d, and then lease %d", (int)old->id,
                   (int)int_of(la, "id"));
    } else if (g.m.drained[nth]) {
        expect("a claim of a drained worker", r, ERR_STALE);
    } else {
        m_tick(&g.m);
        struct m_job *j = m_job(&g.m, int_of(la, "job"));
        expect("a claim", r, 0);
        if (r != m_any(&g.m))
            broken("a claim got %s", r ? "what nobody may have" : "nothing");
        struct m_job *ahead = m_ahead(&g.m, j);
        if (ahead)
            broken("a claim got %s before %s", said(j->id, 0),
                   said(ahead->id, 1));
        m_mend_clock(&g.m);
        if (j) {
            m_take(&g.m, j, m->worker, int_of(la, "id"));
            struct m_lease *l = m_lease(&g.m, int_of(la, "id"));
            if (int_of(la, "token") != l->token)
                broken("the newest token is %d instead of %d",
                       (int)int_of(la, "token"), (int)l->token);
            check_start(a, l);
            g.count[DID_CLAIM]++;
        }
    }
    *ret = a;
    if (!lane_end(&lane, r) && r >= 0) {
        json_decref(a);
        *ret = NULL;
        return CUT;
    }
    return r;
}

static int deliver_beat(struct msg *m, json_t **ret)
{
    struct world *w = g.w;
    static const char *const words[] = {"continue", "yield", "stop"};
    enum m_do what = CONTINUE;
    struct report in;
    int64_t token;
    struct lane lane;
    must(report_parse(m->body, &token, &in, &w->err));
    lane_begin(&lane, w->st);
    int r = lease_heartbeat(w->st, m->lease, token, &in, false, w->now, w->mono,
                            ret, &w->err);
    expect("a heartbeat", r,
           m_beat(&g.m, m->lease, m->seq, m->step, m->loading, &what));
    if (r >= 0 && strcmp(str_of(*ret, "do"), words[what]))
        broken("a heartbeat of lease %d is told to %s instead of %s",
               (int)m->lease, str_of(*ret, "do"), words[what]);
    return lane_end(&lane, r) || r < 0 ? r : CUT;
}

static int deliver_chunk(struct msg *m)
{
    struct world *w = g.w;
    struct lane lane;
    int r = lease_check(w->st, m->lease, m->token, &w->err);
    expect("a chunk", r, m_check(&g.m, m->lease));
    if (r < 0)
        return r;
    lane_begin(&lane, w->chunks);
    r = chunk_put(w->chunks, m->lease, m->sha, &m->value, sizeof(m->value),
                  &w->err);
    expect("a chunk", r, 0);
    return lane_end(&lane, r) ? r : CUT;
}

/* On the READ lane: is the body what it should be? */
static int state_prepare(struct msg *m, struct checkpoint_in *ret)
{
    struct world *w = g.w;
    const json_t *manifest = json_object_get(m->body, "manifest");
    int64_t id;
    static struct model copy;
    copy = g.m;
    int wanted =
        m_save(&copy, m->lease, m->step, m->digest, m->previous, false, &id);
    int r = checkpoint_prepare(w->st, w->chunks, m->lease, m->token, manifest,
                               m->outcome == O_FINISHED, ret, &w->err);
    /* that it does not follow is found out later */
    expect("a look at a state", r, wanted == ERR_CONFLICT ? 0 : wanted);
    return r;
}

static int state_apply(struct msg *m, const struct checkpoint_in *in,
                       json_t **ret)
{
    struct world *w = g.w;
    const json_t *body = json_object_get(m->body, "release");
    struct release out = {0};
    struct lane lane;
    int64_t id = 0;
    if (body)
        must(release_parse(body, "/release", NULL, &out, &w->err));
    lane_begin(&lane, w->st);
    int r = lease_checkpoint(w->st, m->lease, m->token, in, body ? &out : NULL,
                             w->now, w->mono, ret, &w->err);
    int wanted =
        m_save(&g.m, m->lease, m->step, m->digest, m->previous, !!body, &id);
    if (wanted == 0) {
        struct m_lease *l = m_lease(&g.m, m->lease);
        struct m_cycle *c = m_cycle(&g.m, l);
        if (!id) /* a new one: its id comes from the server */
            id = c->saved[c->n - 1].id = int_of(*ret, "id");
        l->saved = id;
        if (body)
            wanted =
                m_release(&g.m, l, m->outcome, m->step, NULL, false, false);
    }
    expect("a state", r, wanted);
    if (r >= 0 && int_of(*ret, "id") != id)
        broken("a state that was checkpoint %d is now %d", (int)id,
               (int)int_of(*ret, "id"));
    if (r >= 0 && !m->answer) {
        g.count[DID_SAVE]++;
        g.count[DID_FINISH] += m->outcome == O_FINISHED;
    }
    return lane_end(&lane, r) || r < 0 ? r : CUT;
}

static int deliver_release(struct msg *m, json_t **ret)
{
    struct world *w = g.w;
    struct release in;
    int64_t token;
    struct lane lane;
    int r = 0;
    must(release_parse(m->body, "", &token, &in, &w->err));
    if (m->outcome == O_FINISHED)
        must(checkpoint_verify_saved(w->st, w->chunks, m->lease, &w->err));
    lane_begin(&lane, w->st);
    r = lease_release(w->st, m->lease, token, &in, w->now, w->mono, ret,
                      &w->err);
    struct m_lease *l = m_lease(&g.m, m->lease);
    int wanted = l ? 0 : ERR_NOT_FOUND;
    if (l && !(l->answered && l->outcome == m->outcome)) {
        wanted = m_live(&g.m, l);
        if (wanted == 0)
            wanted = m_release(&g.m, l, m->outcome, m->step, m->code, m->final,
                               m->set_aside);
    }
    expect("a release", r, wanted);
    return lane_end(&lane, r) || r < 0 ? r : CUT;
}

/* The same message again gets the same answer. */
static void check_answer(struct msg *m, const json_t *a)
{
    static const char *const parts[] = {
        "lease", "checkpoint", "initial", "fingerprint", "data", "signature"};
    bool same = m->kind == STATE || m->kind == RELEASE
                    ? json_equal(m->answer, a)
                    : true;
    /* a client removed it, and nothing came after it */
    if (m->kind == STATE && !stands(int_of(m->answer, "id")))
        same = !strcmp(str_of(m->answer, "digest"), str_of(a, "digest"));
    /* another lease: the job that the first one was for is deleted */
    bool again =
        m->kind == CLAIM && int_of(json_object_get(m->answer, "lease"), "id") ==
                                int_of(json_object_get(a, "lease"), "id");
    for (int i = 0; again && i < 6; i++) {
        json_t *x = json_object_get(m->answer, parts[i]);
        json_t *y = json_object_get(a, parts[i]);
        same &= x == y || json_equal(x, y);
    }
    if (!same) {
        AUTO_FREE char *one = json_dumps(m->answer, JSON_COMPACT);
        AUTO_FREE char *two = json_dumps(a, JSON_COMPACT);
        broken("a %s got %.400s, and then %.400s", kind_word[m->kind], one,
               two);
    }
}

static int deliver(struct msg *m, json_t **ret)
{
    struct checkpoint_in in;
    int r = 0;
    *ret = NULL;
    switch (m->kind) {
    case CLAIM:
        r = deliver_claim(m, ret);
        break;
    case BEAT:
        r = deliver_beat(m, ret);
        break;
    case CHUNK:
        r = deliver_chunk(m);
        break;
    case STATE:
        r = state_prepare(m, &in);
        if (r >= 0)
            r = state_apply(m, &in, ret);
        break;
    case RELEASE:
        r = deliver_release(m, ret);
        break;
    }
    if (r == CUT) {
        g.count[DID_CUT]++;
        json_decref(*ret);
        *ret = NULL;
    }
    if (r >= 0 && *ret && m->answer)
        check_answer(m, *ret);
    if (r >= 0 && *ret && !m->answer)
        m->answer = json_incref(*ret);
    note("%s of w%d/%d, lease %d, step %d%s%s: %s", kind_word[m->kind], m->slot,
         m->worker, (int)m->lease, m->step, m->outcome ? ", " : "",
         m_outcome_word[m->outcome],
         r == CUT ? "no answer"
         : r < 0  ? g.w->err.text
                  : "done");
    return r;
}
