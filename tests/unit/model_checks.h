/* model_checks.h - is the server's state what the model says? For
 * server_model.c. */
#pragma once

/* ---- the server's tables, read behind its back ---- */

static sqlite3_stmt *ask(const char *sql)
{
    sqlite3_stmt *q = NULL;
    if (sqlite3_prepare_v2(g.db, sql, -1, &q, NULL) != SQLITE_OK)
        broken("%s: %s", sql, sqlite3_errmsg(g.db));
    return q;
}

static void db_open(void)
{
    char path[128], sql[200];
    snprintf(path, sizeof(path), "%s/pawl.db", g.w->dir);
    assert_int_equal(sqlite3_open_v2(path, &g.db, SQLITE_OPEN_READONLY, NULL),
                     SQLITE_OK);
    sqlite3_wal_autocheckpoint(g.db, 0);
    snprintf(sql, sizeof(sql), "ATTACH '%s/checkpoints.db' AS chunks",
             g.w->dir);
    if (sqlite3_exec(g.db, sql, NULL, NULL, NULL) != SQLITE_OK)
        broken("%s: %s", sql, sqlite3_errmsg(g.db));
}

static void db_close(void)
{
    assert_int_equal(sqlite3_close(g.db), SQLITE_OK);
    g.db = NULL;
}

static const char *text(sqlite3_stmt *q, int i)
{
    const char *s = (const char *)sqlite3_column_text(q, i);
    return s ? s : "";
}

static void check_jobs(void)
{
    sqlite3_stmt *q =
        ask("SELECT id, state, reason, pause, cancel, complete, version,"
            " priority FROM jobs ORDER BY id");
    int n = 0, there = 0;
    while (sqlite3_step(q) == SQLITE_ROW) {
        int64_t id = sqlite3_column_int64(q, 0);
        struct m_job *j = m_job(&g.m, id);
        n++;
        if (!j)
            broken("job %d is there", (int)id);
        const char *state = text(q, 1), *reason = text(q, 2);
        if (strcmp(state, m_job_word[j->state]))
            broken("job %d is %s (%s) instead of %s", (int)id, state, reason,
                   m_job_word[j->state]);
        if (j->state != RUNNING && j->state != COMPLETED && !*reason)
            broken("job %d is %s without a reason", (int)id, state);
        if (j->state == RUNNING && (j->pause || j->cancel) && !*reason)
            broken("job %d does not say that it shall stop", (int)id);
        if (sqlite3_column_int(q, 3) != j->pause ||
            sqlite3_column_int(q, 4) != j->cancel ||
            sqlite3_column_int(q, 5) != j->complete ||
            sqlite3_column_int64(q, 7) != j->priority)
            broken("job %d: pause %d, cancel %d, complete %d, priority %d"
                   " instead of %d, %d, %d, %d",
                   (int)id, sqlite3_column_int(q, 3), sqlite3_column_int(q, 4),
                   sqlite3_column_int(q, 5), sqlite3_column_int(q, 7), j->pause,
                   j->cancel, j->complete, (int)j->priority);
        int64_t version = sqlite3_column_int64(q, 6);
        if (version < j->version)
            broken("job %d went back to version %d", (int)id, (int)version);
        struct m_job *old = m_job(&g.before, id);
        if (old && old->version && version == old->version &&
            (old->state != j->state || old->pause != j->pause ||
             old->cancel != j->cancel))
            broken("job %d changed, but not its version", (int)id);
        j->version = version;
    }
    sqlite3_finalize(q);
    for (int i = 0; i < M_JOBS; i++)
        there += g.m.job[i].there;
    if (n != there)
        broken("%d jobs instead of %d", n, there);
}

static void check_cycle(sqlite3_stmt *q, struct m_cycle *c, int job)
{
    const char *state = text(q, 3);
    if (strcmp(state, m_state_word[c->state]))
        broken("cycle %d of job %d is %s instead of %s (%s)", c->number, job,
               state, m_state_word[c->state], text(q, 12));
    if (sqlite3_column_int64(q, 4) != c->token)
        broken("cycle %d of job %d has token %d instead of %d", c->number, job,
               sqlite3_column_int(q, 4), (int)c->token);
    if (c->frozen && sqlite3_column_int(q, 5) != c->steps)
        broken("cycle %d of job %d has %d steps", c->number, job,
               sqlite3_column_int(q, 5));
    if (c->state == DONE && sqlite3_column_int64(q, 13) != c->end)
        broken("cycle %d of job %d ends with checkpoint %d instead of %d",
               c->number, job, sqlite3_column_int(q, 13), (int)c->end);
    if (c->state > LEASED)
        return;
    static const char *const names[] = {"best_step", "saved_step", "failures",
                                        "lost", "no_progress"};
    int wanted[] = {c->best, c->saved_step, c->failures, c->lost, c->idle};
    for (int i = 0; i < 5; i++)
        if (sqlite3_column_int(q, 6 + i) != wanted[i])
            broken("cycle %d of job %d: %s is %d instead of %d", c->number, job,
                   names[i], sqlite3_column_int(q, 6 + i), wanted[i]);
    if (c->state != LEASED && !*text(q, 12))
        broken("cycle %d of job %d is %s without a reason", c->number, job,
               state);
    if (c->state == READY && sqlite3_column_int(q, 14) != c->front)
        broken("cycle %d of job %d is %sin front", c->number, job,
               c->front ? "not " : "");
    if (c->frozen && (strcmp(text(q, 15), m_owner_word[c->owner]) ||
                      sqlite3_column_int64(q, 16) != c->priority))
        broken("cycle %d of job %d stands with '%s', priority %d, instead of"
               " '%s', %d",
               c->number, job, text(q, 15), sqlite3_column_int(q, 16),
               m_owner_word[c->owner], (int)c->priority);
    if (sqlite3_column_int64(q, 17) != c->since)
        broken("cycle %d of job %d may be claimed since %lld instead of %lld",
               c->number, job, (long long)sqlite3_column_int64(q, 17),
               (long long)c->since);
    if ((sqlite3_column_int64(q, 18) != 0) != c->parked)
        broken("cycle %d of job %d is %sparked", c->number, job,
               c->parked ? "not " : "");
    int64_t due = sqlite3_column_int64(q, 11);
    if (c->not_before == -1) {
        int64_t wait = due - g.m.now;
        if (wait < c->wait_min || wait > c->wait_min * 5 / 4)
            broken("cycle %d of job %d waits for %d ms instead of %d and a"
                   " quarter more",
                   c->number, job, (int)wait, (int)c->wait_min);
        c->not_before = due;
    }
    if (c->state != LEASED && due != c->not_before)
        broken("cycle %d of job %d waits until %lld instead of %lld", c->number,
               job, (long long)due, (long long)c->not_before);
}

static void check_cycles(void)
{
    sqlite3_stmt *q =
        ask("SELECT id, job_id, number, state, token, steps, best_step,"
            " saved_step, failures, lost, no_progress, not_before_ms, reason,"
            " checkpoint_id, front, owner, priority, since_ms, parked_ms FROM"
            " cycles ORDER BY job_id, number");
    int n = 0, there = 0;
    while (sqlite3_step(q) == SQLITE_ROW) {
        struct m_job *j = m_job(&g.m, sqlite3_column_int64(q, 1));
        int number = sqlite3_column_int(q, 2);
        n++;
        if (!j || number > j->n)
            broken("job %d has cycle %d", sqlite3_column_int(q, 1), number);
        struct m_cycle *c = &j->cycle[number - 1];
        if (!c->id)
            c->id = sqlite3_column_int64(q, 0);
        if (c->id != sqlite3_column_int64(q, 0))
            broken("cycle %d of job %d is another row", number, (int)j->id);
        check_cycle(q, c, (int)j->id);
    }
    sqlite3_finalize(q);
    for (int i = 0; i < M_JOBS; i++)
        there += g.m.job[i].there ? g.m.job[i].n : 0;
    if (n != there)
        broken("%d cycles instead of %d", n, there);
}

/* The model's own rules, so that it cannot agree to nonsense. */
static void check_model(void)
{
    for (int i = 0; i < M_JOBS; i++) {
        struct m_job *j = &g.m.job[i];
        if (!j->there)
            continue;
        for (int k = 0; k < j->n; k++) {
            struct m_cycle *c = &j->cycle[k];
            int live = 0;
            for (int x = 0; x < M_LEASES; x++) {
                struct m_lease *l = &g.m.lease[x];
                if (!l->id || l->job != j->id || l->cycle != k ||
                    l->outcome != LIVE)
                    continue;
                live++;
                if (l->token != c->token)
                    broken("lease %d lives with an old token", (int)l->id);
            }
            if (live != (c->state == LEASED))
                broken("cycle %d of job %d is %s and has %d live leases",
                       c->number, (int)j->id, m_state_word[c->state], live);
            if (m_ended(j) && c->state <= LEASED)
                broken("job %d has ended, cycle %d has not", (int)j->id,
                       c->number);
            if (j->limit_lost && c->state <= LEASED && c->lost >= j->limit_lost)
                broken("job %d goes on with a spent budget", (int)j->id);
        }
    }
}

static void check_leases(void)
{
    sqlite3_stmt *q = ask("SELECT id, job_id, token, from_step, step, worker"
                          " FROM leases WHERE outcome IS NULL");
    int n = 0, there = 0;
    while (sqlite3_step(q) == SQLITE_ROW) {
        struct m_lease *l = m_lease(&g.m, sqlite3_column_int64(q, 0));
        n++;
        if (!l || l->outcome != LIVE)
            broken("lease %d of job %d lives", sqlite3_column_int(q, 0),
                   sqlite3_column_int(q, 1));
        if (sqlite3_column_int64(q, 2) != l->token ||
            sqlite3_column_int(q, 3) != l->from ||
            sqlite3_column_int(q, 4) != l->step)
            broken("lease %d: token %d, from %d, at %d instead of %d, %d, %d",
                   (int)l->id, sqlite3_column_int(q, 2),
                   sqlite3_column_int(q, 3), sqlite3_column_int(q, 4),
                   (int)l->token, l->from, l->step);
    }
    sqlite3_finalize(q);
    for (int i = 0; i < M_LEASES; i++)
        there += g.m.lease[i].id && g.m.lease[i].outcome == LIVE &&
                 m_lease(&g.m, g.m.lease[i].id);
    if (n != there)
        broken("%d live leases instead of %d", n, there);
}

/* What owners used, and how many leases run for them. */
static void check_owners(void)
{
    sqlite3_stmt *q = ask("SELECT owner, use_ms, running, at_ms FROM owners");
    while (sqlite3_step(q) == SQLITE_ROW) {
        int o = 0, running = 0;
        while (o < M_OWNERS && strcmp(m_owner_word[o], text(q, 0)))
            o++;
        assert_true(o < M_OWNERS);
        struct m_use *u = &g.m.use[o];
        for (int i = 0; i < M_LEASES; i++) {
            struct m_lease *l = &g.m.lease[i];
            running += l->id && l->outcome == LIVE && m_lease(&g.m, l->id) &&
                       m_cycle(&g.m, l)->owner == o;
        }
        double use = sqlite3_column_double(q, 1);
        if (sqlite3_column_int(q, 2) != running || u->running != running ||
            fabs(use - u->use) > 1e-6 * (1 + use) ||
            sqlite3_column_int64(q, 3) != u->at)
            broken("'%s' has used %.3f ms, %d leases run, as of %lld, instead"
                   " of %.3f, %d, %lld; %d leases live",
                   text(q, 0), use, sqlite3_column_int(q, 2),
                   (long long)sqlite3_column_int64(q, 3), u->use, u->running,
                   (long long)u->at, running);
    }
    sqlite3_finalize(q);
}

/* How the others ended. */
static void check_outcomes(void)
{
    sqlite3_stmt *q = ask("SELECT id, outcome, expired FROM leases"
                          " WHERE outcome IS NOT NULL");
    while (sqlite3_step(q) == SQLITE_ROW) {
        struct m_lease *l = m_lease(&g.m, sqlite3_column_int64(q, 0));
        if (l && (strcmp(text(q, 1), m_outcome_word[l->outcome]) ||
                  sqlite3_column_int(q, 2) != l->expired))
            broken("lease %d is %s (%d) instead of %s (%d)", (int)l->id,
                   text(q, 1), sqlite3_column_int(q, 2),
                   m_outcome_word[l->outcome], l->expired);
    }
    sqlite3_finalize(q);
}

static void check_checkpoints(void)
{
    sqlite3_stmt *q = ask("SELECT id, job_id, state, step, digest, load_deaths,"
                          " lease_id, pinned FROM checkpoints ORDER BY id");
    int n = 0, there = 0;
    while (sqlite3_step(q) == SQLITE_ROW) {
        int64_t id = sqlite3_column_int64(q, 0);
        struct m_job *j = m_job(&g.m, sqlite3_column_int64(q, 1));
        struct m_saved *s = j ? m_saved(j, id) : NULL;
        n++;
        if (!s)
            broken("checkpoint %d of job %d is there", (int)id,
                   sqlite3_column_int(q, 1));
        if (strcmp(text(q, 2), s->good ? "good" : "quarantined") ||
            sqlite3_column_int(q, 3) != s->step ||
            strcmp(text(q, 4), s->digest) ||
            (s->good && sqlite3_column_int(q, 5) != s->deaths) ||
            sqlite3_column_int64(q, 6) != s->lease ||
            sqlite3_column_int(q, 7) != s->pinned)
            broken("checkpoint %d: %s, step %d, %d deaths instead of %s, %d,"
                   " %d",
                   (int)id, text(q, 2), sqlite3_column_int(q, 3),
                   sqlite3_column_int(q, 5), s->good ? "good" : "quarantined",
                   s->step, s->deaths);
    }
    sqlite3_finalize(q);
    for (int i = 0; i < M_JOBS; i++)
        for (int k = 0; g.m.job[i].there && k < g.m.job[i].n; k++)
            there += g.m.job[i].cycle[k].n;
    if (n != there)
        broken("%d checkpoints instead of %d", n, there);
}

static void check_chunks(void)
{
    sqlite3_stmt *q =
        ask("SELECT k.checkpoint_id FROM checkpoint_chunks k WHERE NOT EXISTS"
            " (SELECT 1 FROM chunks.chunks c WHERE c.sha256 = k.sha256)");
    if (sqlite3_step(q) == SQLITE_ROW)
        broken("a chunk of checkpoint %d is gone", sqlite3_column_int(q, 0));
    sqlite3_finalize(q);
}

/* The loss that a step has, whoever trains it. */
static double loss_of(int64_t cycle, int step)
{
    return (double)(cycle * 100 + step) / 4;
}

/* Each step up to the state that counts: once, and whose. */
static void check_lineage(void)
{
    sqlite3_stmt *q =
        ask("SELECT m.step, m.lease_id, m.value FROM metrics m JOIN series s"
            " ON s.id = m.series_id WHERE s.name = 'loss' AND m.cycle_id = ?"
            " AND m.step <= ? ORDER BY m.step");
    for (int i = 0; i < M_JOBS; i++) {
        struct m_job *j = &g.m.job[i];
        for (int k = 0; j->there && k < j->n; k++) {
            struct m_cycle *c = &j->cycle[k];
            struct m_saved *s =
                c->state == DONE ? m_saved(j, c->end) : m_newest(c);
            if (!s)
                continue;
            int step = 0;
            sqlite3_reset(q);
            sqlite3_bind_int64(q, 1, c->id);
            sqlite3_bind_int(q, 2, s->step);
            while (sqlite3_step(q) == SQLITE_ROW) {
                step++;
                if (sqlite3_column_int(q, 0) != step ||
                    sqlite3_column_int64(q, 1) != s->by[step] ||
                    sqlite3_column_double(q, 2) != loss_of(c->id, step))
                    broken("job %d, cycle %d, step %d: row of step %d, lease"
                           " %d, loss %g instead of lease %d, %g",
                           (int)j->id, c->number, step,
                           sqlite3_column_int(q, 0), sqlite3_column_int(q, 1),
                           sqlite3_column_double(q, 2), (int)s->by[step],
                           loss_of(c->id, step));
            }
            if (step != s->step)
                broken("job %d, cycle %d: the state at step %d has the losses"
                       " of %d",
                       (int)j->id, c->number, s->step, step);
            if (c->state == DONE && step != c->steps)
                broken("job %d, cycle %d is done after %d steps", (int)j->id,
                       c->number, step);
        }
    }
    sqlite3_finalize(q);
}

static void check_events(void)
{
    int seen[M_JOBS][EVS] = {{0}};
    sqlite3_stmt *q = ask("SELECT job_id, kind, count(*), min(length(cause)),"
                          " min(length(actor)) FROM events GROUP BY job_id,"
                          " kind");
    while (sqlite3_step(q) == SQLITE_ROW) {
        struct m_job *j = m_job(&g.m, sqlite3_column_int64(q, 0));
        if (!j)
            broken("events of job %d, which is gone", sqlite3_column_int(q, 0));
        if (!sqlite3_column_int(q, 3) || !sqlite3_column_int(q, 4))
            broken("a '%s' of job %d has no cause or actor", text(q, 1),
                   (int)j->id);
        for (int k = 0; k < EVS; k++)
            if (!strcmp(text(q, 1), m_kind_word[k]))
                seen[j - g.m.job][k] = sqlite3_column_int(q, 2);
    }
    sqlite3_finalize(q);
    for (int i = 0; i < M_JOBS; i++)
        for (int k = 0; k < EVS; k++)
            if (g.m.job[i].there && seen[i][k] != g.m.job[i].events[k])
                broken("job %d has %d events '%s' instead of %d",
                       (int)g.m.job[i].id, seen[i][k], m_kind_word[k],
                       g.m.job[i].events[k]);
}

static void check_all(void)
{
    check_model();
    if (sqlite3_exec(g.db, "BEGIN", NULL, NULL, NULL) != SQLITE_OK)
        broken("BEGIN: %s", sqlite3_errmsg(g.db));
    check_jobs();
    check_cycles();
    check_leases();
    check_owners();
    check_checkpoints();
    check_lineage();
    check_events();
    if (g.op % 16 == 0 || g.op == g.last) {
        check_outcomes();
        check_chunks();
    }
    sqlite3_exec(g.db, "COMMIT", NULL, NULL, NULL);
}

/* Is the checkpoint there? */
static bool stands(int64_t id)
{
    sqlite3_stmt *q = ask("SELECT 1 FROM checkpoints WHERE id = ?");
    sqlite3_bind_int64(q, 1, id);
    bool yes = sqlite3_step(q) == SQLITE_ROW;
    sqlite3_finalize(q);
    return yes;
}
