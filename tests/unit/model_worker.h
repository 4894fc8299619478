/* model_worker.h - the workers of server_model.c, and the way their messages
 * go: some never arrive, of some the answer is lost and they are sent again,
 * and copies of any arrive again later, in any order. */
#pragma once

/* ---- a worker's life ---- */

static void took(struct proc *p, const json_t *a)
{
    const json_t *l = json_object_get(a, "lease");
    const json_t *from = json_object_get(a, "checkpoint");
    p->claim = json_incref((json_t *)a);
    p->lease = int_of(l, "id");
    p->token = int_of(l, "token");
    p->job = int_of(l, "job");
    p->number = int_of(l, "cycle_id");
    p->steps = (int)int_of(a, "steps");
    p->step = (int)int_of(json_object_get(from, "manifest"), "step");
    p->saved = p->reported = p->step;
    if (!from)
        from = json_object_get(a, "initial");
    p->from = int_of(from, "id");
    snprintf(p->digest, sizeof(p->digest), "%s", str_of(from, "digest"));
    p->loading = true;
}

static void answered(struct proc *p, const struct msg *m, int r,
                     const json_t *a)
{
    if (r == ERR_STALE || r == ERR_NOT_FOUND) {
        proc_end(p);
        return;
    }
    switch (m->kind) {
    case CLAIM:
        if (r > 0)
            took(p, a);
        break;
    case BEAT:
        p->reported = m->step;
        p->asked = strcmp(str_of(a, "do"), "continue") != 0;
        p->stop = !strcmp(str_of(a, "do"), "stop");
        break;
    case CHUNK:
        break;
    case STATE:
        if (r < 0)
            broken("a worker's own state is refused: %s", g.w->err.text);
        p->saved = m->step;
        snprintf(p->digest, sizeof(p->digest), "%s", str_of(a, "digest"));
        proc_drop_save(p);
        if (m->outcome != LIVE)
            proc_end(p);
        break;
    case RELEASE:
        if (r >= 0)
            proc_end(p);
        break;
    }
}

static void keep_for_later(const struct msg *m)
{
    int at = g.n_late < LATE ? g.n_late++ : below(LATE);
    msg_release(&g.late[at]);
    g.late[at] = *m;
    json_incref(m->body);
    json_incref(m->answer);
}

/* Send p->pending, or send it again. */
static void sends(struct proc *p)
{
    struct msg *m = &p->pending;
    json_t *a = NULL;
    int r;
    if (chance(4))
        return; /* it never arrives */
    if (m->kind == STATE && !p->prepared && chance(40)) {
        /* others come between the look at it and the transaction */
        p->prepared_r = state_prepare(m, &p->in);
        p->prepared = true;
        note("state of w%d/%d is looked at", m->slot, m->worker);
        return;
    }
    if (m->kind == STATE && p->prepared) {
        p->prepared = false;
        r = p->prepared_r;
        if (r >= 0)
            r = state_apply(m, &p->in, &a);
        if (r == CUT) {
            json_decref(a);
            a = NULL;
        }
        if (r >= 0 && m->answer)
            check_answer(m, a);
        if (r >= 0 && !m->answer)
            m->answer = json_incref(a);
        note("state of w%d/%d, lease %d, step %d%s%s: %s", m->slot, m->worker,
             (int)m->lease, m->step, m->outcome ? ", " : "",
             m_outcome_word[m->outcome],
             r == CUT ? "no answer"
             : r < 0  ? g.w->err.text
                      : "done");
    } else {
        r = deliver(m, &a);
    }
    if (chance(25))
        keep_for_later(m);
    if (r != CUT && !chance(6)) { /* else the answer is lost */
        struct msg sent = *m;
        *m = (struct msg){0};
        answered(p, &sent, r, a);
        msg_release(&sent);
    }
    json_decref(a);
}

static void trains(struct proc *p)
{
    if (p->loading && chance(60))
        p->loading = false;
    if (!p->loading)
        p->step += 1 + below(3);
    if (p->step > p->steps)
        p->step = p->steps;
    p->pending = msg_beat(p);
}

static void fails(struct proc *p)
{
    static const char *const codes[] = {"torch", "oom", "data", "no_space"};
    int i = below(4);
    bool corrupt = p->loading && p->from && chance(50);
    p->pending = msg_let_go(p, O_FAILED, corrupt ? "corrupt" : codes[i],
                            i == 2 && !corrupt, corrupt);
}

static void dies(struct proc *p)
{
    struct world *w = g.w;
    struct lane lane;
    if (chance(50)) {
        note("w%d/%d dies unseen", (int)(p - g.slot), p->worker);
        proc_end(p);
        return;
    }
    lane_begin(&lane, w->st);
    struct m_lease *l = m_of_worker(&g.m, p->worker);
    bool held = l && l->outcome == LIVE;
    m_died(&g.m, p->worker);
    int r = lease_worker_died(w->st, 100 + (p - g.slot), p->worker, "b",
                              "was killed by signal 9, cause unknown", NULL,
                              w->now, &w->err);
    expect("a death", r, 0);
    if (r != held)
        broken("a dead worker held %d leases instead of %d", r, held);
    note("w%d/%d dies", (int)(p - g.slot), p->worker);
    if (lane_end(&lane, r)) {
        g.count[DID_LOSE] += held;
        proc_end(p);
    }
}

static void worker_acts(struct proc *p)
{
    if (!p->worker) {
        *p = (struct proc){.worker = ++g.workers};
        int nth = p->worker % M_WORKERS;
        g.m.known[nth] = g.m.gone[nth] = g.m.drained[nth] = false;
    }
    if (chance(3)) {
        dies(p);
        return;
    }
    if (p->pending.body) {
        sends(p);
        return;
    }
    int dice = below(100);
    bool at_end = p->step == p->steps;
    if (!p->claim)
        p->pending = msg_claim(p);
    else if (p->manifest)
        p->pending = msg_state(p, at_end && chance(80)     ? O_FINISHED
                                  : p->asked || chance(15) ? O_YIELDED
                                                           : LIVE);
    else if (p->reported == p->step && p->step > p->saved && !p->loading &&
             (dice < 60 || p->asked || at_end))
        p->pending = msg_chunk(p);
    else if (dice < 84)
        trains(p);
    else if (dice < 86)
        p->pending = msg_let_go(p, O_FINISHED, NULL, false, false);
    else if (dice < 90)
        p->pending = msg_let_go(p, O_YIELDED, NULL, false, false);
    else if (dice < 94)
        fails(p);
    else
        return; /* it hangs */
    sends(p);
}

/* A copy of a message that was sent before, by whoever it was. */
static void late_message(void)
{
    json_t *a = NULL;
    if (!g.n_late)
        return;
    struct msg *m = &g.late[below(g.n_late)];
    if (m->lease && m->lease + M_LEASES <= (int64_t)g.count[DID_CLAIM])
        return; /* the model has forgotten it */
    note("late:");
    deliver(m, &a);
    json_decref(a);
    g.count[DID_LATE]++;
}
