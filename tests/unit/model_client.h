/* model_client.h - clients, the server's own chores and the clocks of
 * server_model.c. */
#pragma once

static void time_passes(void)
{
    struct world *w = g.w;
    int64_t ms = chance(70) ? below(600) : 0;
    if (chance(3))
        ms = 1000 * below(100);
    w->now += ms;
    w->mono += ms;
    if (below(1000) < 5) /* somebody sets the clock */
        w->now += ((int64_t)below(8000) - 4000) * 1000;
    g.m.now = w->now;
    g.m.mono = w->mono;
}

/* ---- clients ---- */

static int64_t any_job(void)
{
    return g.n_ids ? g.ids[below(g.n_ids)] : 1;
}

static void remember(int64_t id)
{
    g.ids[g.n_ids < 14 ? g.n_ids++ : below(14)] = id;
}

static void submits(struct m_job *j)
{
    struct world *w = g.w;
    char more[1000], after[100] = "", start[100] = "";
    static const int lost[] = {1, 2, 3, 20}, idle[] = {2, 3, 10, 10};
    *j = (struct m_job){.there = true,
                        .priority = below(3),
                        .owner = below(M_OWNERS),
                        .cycles = below(3),
                        .epochs = 1 + below(3),
                        .micro = 2,
                        .split = chance(30),
                        .limit_failures = 1 + below(3),
                        .limit_lost = lost[below(4)],
                        .limit_idle = idle[below(4)],
                        .state = QUEUED};
    if (chance(30)) {
        struct m_job *b = m_job(&g.m, any_job());
        if (b && b != j)
            j->after[0] = b->id;
        j->after_any[0] = chance(40);
    }
    if (j->after[0])
        snprintf(after, sizeof(after),
                 ", \"after\": [{\"job\": %d, \"when\": \"%s\"}]",
                 (int)j->after[0], j->after_any[0] ? "ended" : "completed");
    if (chance(15)) {
        char at[RFC3339_MAX];
        j->not_before = w->now + 1000 * below(60);
        rfc3339_text(j->not_before, at);
        snprintf(start, sizeof(start), ", \"not_before\": \"%s\"", at);
    }
    snprintf(more, sizeof(more),
             "{\"labels\": {\"owner\": \"%s\"}, \"priority\": %d,"
             " \"cycles\": %d, \"training\": {\"epochs\": %d,"
             " \"effective_batch\": 4, \"optimizer\": {\"type\": \"adamw\","
             " \"lr\": 0.001}}, \"runtime\": {\"device\": \"cpu\","
             " \"micro_batch\": 2, \"threads\": 1, \"on_oom\": \"%s\"},"
             " \"limits\": {\"failures\": %d, \"lost\": %d, \"no_progress\":"
             " %d}%s%s}",
             m_owner_word[j->owner], (int)j->priority, j->cycles, j->epochs,
             j->split ? "split" : "fail", j->limit_failures, j->limit_lost,
             j->limit_idle, after, start);
    int64_t id = 0;
    struct lane lane;
    struct m_job new = *j;
    j->there = false;
    lane_begin(&lane, w->st);
    int r = try_submit(w, more, &id);
    expect("a submission", r, 0);
    *j = new;
    j->id = id;
    j->events[EV_submitted]++;
    m_settle(&g.m, j);
    note("job %d is submitted: %d cycles of %d steps, priority %d%s", (int)id,
         j->cycles, 6 * j->epochs, (int)j->priority, after);
    if (lane_end(&lane, r))
        remember(id);
}

static int adds_cycle(int64_t id)
{
    struct world *w = g.w;
    AUTO_JSON json_t *body = json_object();
    int64_t number;
    return job_add_cycle(w->st, id, body, w->now, &number, &w->err);
}

static int patches(int64_t id, int priority, int micro, int owner)
{
    struct world *w = g.w;
    AUTO_JSON json_t *p = json_object();
    if (priority >= 0)
        json_object_set_new(p, "priority", json_integer(priority));
    if (micro >= 0)
        json_object_set_new(p, "runtime",
                            json_pack("{si}", "micro_batch", micro));
    if (owner >= 0)
        json_object_set_new(p, "labels",
                            json_pack("{ss}", "owner", m_owner_word[owner]));
    return job_patch(w->st, id, p, w->now, &w->err);
}

/* Pins, unpins or removes one of a job's checkpoints. */
static void touches_checkpoint(struct m_job *j)
{
    struct world *w = g.w;
    struct lane lane;
    struct m_cycle *c = j && j->n ? &j->cycle[below(j->n)] : NULL;
    int64_t id = c && c->n ? c->saved[below(c->n)].id : 100000;
    int64_t job = j ? j->id : 0;
    int act = below(4), r, wanted;
    lane_begin(&lane, w->st);
    if (act < 2) {
        r = retention_pin(w->st, id, act, w->now, &w->err);
        wanted = m_pin(&g.m, job, id, act);
    } else {
        r = retention_delete(w->st, id, w->now, &w->err);
        wanted = m_drop(&g.m, job, id);
    }
    note("%s checkpoint %d of job %d: %s",
         act > 1 ? "delete"
         : act   ? "pin"
                 : "unpin",
         (int)id, (int)job, r < 0 ? w->err.text : "done");
    expect("a checkpoint", r, wanted);
    lane_end(&lane, r);
}

static void drains(void)
{
    struct world *w = g.w;
    struct proc *p = &g.slot[below(SLOTS)];
    AUTO_JSON json_t *a = NULL;
    struct lane lane;
    int64_t id;
    if (!p->worker || worker_find(w->st, 100 + (p - g.slot), p->worker, "b",
                                  &id, &w->err) < 0)
        return;
    lane_begin(&lane, w->st);
    g.m.drained[p->worker % M_WORKERS] = true;
    int r = worker_drain(w->st, id, w->now, &a, &w->err);
    expect("a drain", r, 0);
    note("w%d/%d is drained", (int)(p - g.slot), p->worker);
    lane_end(&lane, r);
}

static struct m_job *free_place(void)
{
    for (int i = 0; i < M_JOBS; i++)
        if (!g.m.job[i].there)
            return &g.m.job[i];
    return NULL;
}

/* What is likely to be asked of a job as it is, or anything. */
static int likely(const struct m_job *j)
{
    if (!j || chance(20))
        return below(8);
    if (m_ended(j))
        return chance(60) ? 3 : 7;
    if (j->state == PAUSED && chance(70))
        return 1;
    if (!j->cycles && j->state == QUEUED && !m_open((struct m_job *)j))
        return chance(80) ? 5 : 4;
    static const int most[] = {0, 0, 1, 2, 4, 5, 6, 6, 6};
    return most[below(9)];
}

static void client_acts(void)
{
    struct world *w = g.w;
    struct lane lane;
    int r = 0, wanted = 0;
    int64_t id = any_job();
    const char *what = "";
    struct m_job *place = free_place(), *j = m_job(&g.m, id);
    int priority = chance(40) ? below(M_PRIORITIES) : -1;
    int owner = priority < 0 && chance(50) ? below(M_OWNERS) : -1;
    int micro = priority >= 0 || owner >= 0 ? -1 : j && j->micro == 2 ? 4 : 2;
    if (place && chance(40)) {
        submits(place);
        return;
    }
    if (chance(4)) {
        drains();
        return;
    }
    if (chance(12)) {
        touches_checkpoint(j);
        return;
    }
    int act = likely(j);
    if (act == 5 && j && j->n == M_CYCLES)
        act = 4;
    lane_begin(&lane, w->st);
    switch (act) {
    case 0:
        what = "a pause";
        r = job_pause(w->st, id, w->now, &w->err);
        wanted = m_pause(&g.m, id, true);
        break;
    case 1:
        what = "a resume";
        r = job_resume(w->st, id, w->now, &w->err);
        wanted = m_pause(&g.m, id, false);
        break;
    case 2:
        what = "a cancel";
        r = job_cancel(w->st, id, w->now, &w->err);
        wanted = m_cancel(&g.m, id);
        break;
    case 3:
        what = "a retry";
        r = job_retry(w->st, id, w->now, &w->err);
        wanted = m_retry(&g.m, id);
        break;
    case 4:
        what = "a complete";
        r = job_complete(w->st, id, w->now, &w->err);
        wanted = m_complete(&g.m, id);
        break;
    case 5:
        what = "a cycle more";
        r = adds_cycle(id);
        wanted = m_add_cycle(&g.m, id);
        break;
    case 6:
        what = "a patch";
        r = patches(id, priority, micro, owner);
        wanted = m_patch(&g.m, id, priority, micro, owner);
        break;
    default:
        what = "a delete";
        r = job_delete(w->st, id, &w->err);
        wanted = m_delete(&g.m, id);
    }
    note("%s of job %d: %s", what, (int)id, r < 0 ? w->err.text : "done");
    expect(what, r, wanted);
    lane_end(&lane, r);
}

/* ---- the server ---- */

static void ticks(void)
{
    struct world *w = g.w;
    struct lane lane;
    int lost = 0;
    for (int i = 0; i < M_LEASES; i++)
        lost -= g.m.lease[i].outcome == O_LOST;
    lane_begin(&lane, w->st);
    m_tick(&g.m);
    for (int i = 0; i < M_LEASES; i++)
        lost += g.m.lease[i].outcome == O_LOST;
    int r = lease_tick(w->st, w->now, w->mono, &w->err);
    expect("a tick", r, 0);
    if (r != lost)
        broken("a tick lost %d leases instead of %d", r, lost);
    note("a tick: %d leases are lost", r);
    if (lane_end(&lane, r))
        g.count[DID_LOSE] += lost;
}

/* Must it stay? Two good states of an open cycle, the end of one that is done,
 * where a live lease started, the job's two newest, and the evidence. */
static bool is_needed(struct m_job *j, struct m_cycle *c, int at)
{
    struct m_saved *s = &c->saved[at];
    int newer = 0, of_job = 0;
    if (!s->good || s->pinned || s->id == c->end)
        return true;
    for (int i = 0; i < M_LEASES; i++)
        if (g.m.lease[i].id && g.m.lease[i].job == j->id &&
            g.m.lease[i].outcome == LIVE &&
            (g.m.lease[i].from_id == s->id || g.m.lease[i].initial == s->id))
            return true;
    for (int i = 0; i < j->n; i++)
        for (int k = 0; k < j->cycle[i].n; k++)
            of_job +=
                j->cycle[i].saved[k].good && j->cycle[i].saved[k].id > s->id;
    for (int k = at + 1; k < c->n; k++)
        newer += c->saved[k].good;
    return of_job < 2 || (c->state != DONE && newer < 2);
}

static void lets_go(void)
{
    struct world *w = g.w;
    struct lane lane;
    lane_begin(&lane, w->st);
    int r = retention_prune(w->st, &g.prune_after, w->now, &w->err);
    expect("a prune", r, 0);
    note("a prune: %d checkpoints", r);
    if (!lane_end(&lane, r))
        return;
    for (int i = 0; i < M_JOBS; i++) {
        struct m_job *j = &g.m.job[i];
        for (int k = 0; j->there && k < j->n; k++) {
            struct m_cycle *c = &j->cycle[k];
            bool gone[M_SAVED];
            int n = 0;
            for (int x = 0; x < c->n; x++) {
                gone[x] = !stands(c->saved[x].id);
                if (gone[x] && is_needed(j, c, x))
                    broken("checkpoint %d (step %d) of job %d is needed, and"
                           " gone",
                           (int)c->saved[x].id, c->saved[x].step, (int)j->id);
            }
            for (int x = 0; x < c->n; x++)
                if (!gone[x])
                    c->saved[n++] = c->saved[x];
            c->n = n;
        }
    }
}

/* Looks first, deletes later: whatever comes between. */
static void sweeps(void)
{
    struct world *w = g.w;
    struct lane lane;
    int64_t after = 0;
    if (!g.sweeping) {
        chunk_sweep_release(&g.sweep);
        must(chunk_sweep_find(w->st, w->chunks, &after, 1000, &g.sweep,
                              &w->err));
        g.sweeping = true;
        note("a sweep has found what is nobody's");
        return;
    }
    g.sweeping = false;
    lane_begin(&lane, w->chunks);
    int r = chunk_sweep_run(w->chunks, &g.sweep, &w->err);
    expect("a sweep", r, 0);
    note("a sweep: %d chunks", r);
    if (lane_end(&lane, r))
        check_chunks();
}

/* The disk is full, or there is room for all that wait for it. */
static bool full;

static int disk(const char *path, struct statvfs *ret)
{
    *ret = (struct statvfs){.f_bsize = 4096,
                            .f_frsize = 4096,
                            .f_blocks = 1 << 30,
                            .f_bfree = full ? 0 : 1 << 29,
                            .f_bavail = full ? 0 : 1 << 29};
    return 0;
}

static void looks_for_room(void)
{
    struct world *w = g.w;
    struct lane lane;
    full = chance(50);
    lane_begin(&lane, w->st);
    int r = room_tick(g.room, w->st, w->chunks, w->now, w->mono, &w->err);
    if (!full)
        m_unpark(&g.m);
    note("the disk %s", full ? "is full" : "has room");
    expect("a look for room", r, 0);
    lane_end(&lane, r);
    full = false;
}

static void restarts(void)
{
    struct world *w = g.w;
    db_close();
    world_close(w);
    for (int i = 0; i < SLOTS; i++)
        g.slot[i].prepared = false;
    chunk_sweep_release(&g.sweep);
    g.sweeping = false;
    world_open(w);
    db_open();
    w->now += 1000 * below(3600);
    w->mono = below(10000); /* another boot */
    g.m.now = w->now;
    g.m.mono = w->mono;
    must(lease_listening(w->st, w->mono, &w->err));
    for (int i = 0; i < M_LEASES; i++)
        if (g.m.lease[i].outcome == LIVE)
            g.m.lease[i].heard = g.m.mono;
    note("the server starts anew");
    g.count[DID_RESTART]++;
}

static void server_acts(void)
{
    int dice = below(100);
    if (dice < 50)
        ticks();
    else if (dice < 70)
        lets_go();
    else if (dice < 85)
        sweeps();
    else if (dice < 93)
        looks_for_room();
    else if (chance(40))
        restarts();
}
