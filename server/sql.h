/* sql.h - all SQL text, a section per noun. A list of SQL(NAME, "text") lines:
 * see store.h. Statements are prepared at their first use; binds are named. */

/* ---- event ---- */
SQL(EVENT_ADD, "INSERT INTO events(job_id, cycle, lease_id, step, at_ms, kind,"
               " cause, actor) VALUES (:job, :cycle, :lease, :step, :now,"
               " :kind, :cause, :actor)")
SQL(EVENT_LIST, "SELECT id, at_ms, kind, cause, actor, cycle, lease_id, step"
                " FROM events WHERE job_id = :job AND id > :after"
                " ORDER BY id LIMIT :limit")
SQL(LOG_ADD, "INSERT INTO logs(job_id, lease_id, at_ms, level, text)"
             " SELECT :job, :lease, :at, :level, :text WHERE NOT EXISTS"
             " (SELECT 1 FROM logs WHERE lease_id = :lease AND at_ms = :at"
             "  AND text = :text)")
SQL(LOG_LIST, "SELECT g.id, g.at_ms, g.level, g.text, g.lease_id, l.worker"
              " FROM logs g LEFT JOIN leases l ON l.id = g.lease_id"
              " WHERE g.job_id = :job AND g.id > :after"
              " ORDER BY g.id LIMIT :limit")

/* ---- dataset ---- */
SQL(DATASET_FIND, "SELECT id FROM datasets WHERE name = :name")
SQL(DATASET_ADD, "INSERT INTO datasets(name, created_ms) VALUES (:name, :now)")
SQL(DATASET_LIST, "SELECT d.id, d.name, d.created_ms, count(s.id),"
                  " coalesce(sum(s.bytes), 0), coalesce(sum(s.records), 0)"
                  " FROM datasets d LEFT JOIN shards s ON s.dataset_id = d.id"
                  " WHERE d.id > :after GROUP BY d.id ORDER BY d.id"
                  " LIMIT :limit")
SQL(DATASET_DELETE, "DELETE FROM datasets WHERE id = :dataset")
/* open cycles read what they froze; those that froze nothing may read all */
SQL(DATASET_NEEDED,
    "SELECT j.id FROM jobs j WHERE j.ended_ms IS NULL AND ("
    " (j.dataset = :dataset AND NOT EXISTS (SELECT 1 FROM cycles c"
    "   WHERE c.job_id = j.id AND c.data_digest IS NOT NULL"
    "   AND c.ended_ms IS NULL) AND :shard IS NULL)"
    " OR EXISTS (SELECT 1 FROM cycles c JOIN snapshots s ON s.cycle_id = c.id,"
    "   json_each(s.data, '$.shards') e WHERE c.job_id = j.id"
    "   AND c.ended_ms IS NULL AND json_extract(e.value, '$.path') GLOB"
    "   'datasets/' || :dataset || '/' || coalesce(:shard, '*')))"
    " ORDER BY j.id LIMIT 1")
SQL(SHARD_ADD, "INSERT INTO shards(dataset_id, name, bytes, lines, records,"
               " sha256, blocks, mtime_ns, inode, created_ms) VALUES (:dataset,"
               " :name, :bytes, :lines, :records, :sha256, :blocks, :mtime_ns,"
               " :inode, :now)")
SQL(SHARD_FIND, "SELECT name, bytes, records, lines, sha256, created_ms"
                " FROM shards WHERE dataset_id = :dataset AND name = :name")
SQL(SHARD_LIST, "SELECT name, bytes, records, lines, sha256, created_ms"
                " FROM shards WHERE dataset_id = :dataset ORDER BY name")
SQL(SHARD_FREEZE, "SELECT name, bytes, records, mtime_ns, inode, blocks"
                  " FROM shards WHERE dataset_id = :dataset ORDER BY name")
SQL(SHARD_DELETE, "DELETE FROM shards WHERE dataset_id = :dataset"
                  " AND name = :shard")
SQL(DOOMED_ADD, "INSERT OR IGNORE INTO doomed_files(path) VALUES (:path)")
SQL(DOOMED_DROP, "DELETE FROM doomed_files WHERE path = :path")
SQL(DOOMED_LIST, "SELECT path FROM doomed_files")

/* ---- cycle ---- */
#ifndef CYCLE_COLUMNS
#define CYCLE_COLUMNS                                                          \
    "SELECT id, job_id, number, state, token, step_base, initial_id, records," \
    " epochs, steps, step, saved_step, best_step, failures, lost, no_progress," \
    " not_before_ms, checkpoint_id, signature, data_digest, model_sha256"      \
    " FROM cycles "
#define CYCLE_SHOWN                                                            \
    "SELECT id, number, state, phase, reason, step, steps, data_digest,"       \
    " signature, model_sha256, records, epochs, checkpoint_id, failures, lost," \
    " no_progress, created_ms, started_ms, ended_ms FROM cycles "
#endif
SQL(CYCLE_LOAD, CYCLE_COLUMNS "WHERE id = :id")
SQL(CYCLE_OPEN, CYCLE_COLUMNS "WHERE job_id = :job AND ended_ms IS NULL"
                              " ORDER BY number LIMIT 1")
SQL(CYCLE_LAST_DONE, CYCLE_COLUMNS "WHERE job_id = :job AND state = 'done'"
                                   " ORDER BY number DESC LIMIT 1")
SQL(CYCLE_GET, CYCLE_SHOWN "WHERE job_id = :job AND number = :number")
SQL(CYCLE_LIST, CYCLE_SHOWN "WHERE job_id = :job AND number > :after"
                            " ORDER BY number LIMIT :limit")
SQL(CYCLE_SPEC, "SELECT coalesce(c.spec, j.spec) FROM cycles c"
                " JOIN jobs j ON j.id = c.job_id WHERE c.id = :id")
SQL(CYCLE_ADD, "INSERT INTO cycles(job_id, number, state, spec, created_ms)"
               " VALUES (:job, :number, 'waiting', :spec, :now)")
SQL(CYCLE_BEFORE, "SELECT checkpoint_id, step_base + coalesce(step, 0)"
                  " FROM cycles WHERE job_id = :job AND number < :number"
                  " AND state = 'done' ORDER BY number DESC LIMIT 1")
SQL(CYCLE_FREEZE, "UPDATE cycles SET state = 'ready', data_digest = :digest,"
                  " signature = :signature, records = :records,"
                  " epochs = :epochs, steps = :steps, step_base = :base,"
                  " initial_id = :initial, ready_ms = :now,"
                  " reason = 'waits for a worker' WHERE id = :id")
SQL(CYCLE_DUE, "UPDATE cycles SET state = 'ready', not_before_ms = NULL"
               " WHERE id = :id")
SQL(CYCLE_AGAIN, "UPDATE cycles SET state = :state, reason = :reason,"
                 " front = :front, not_before_ms = :not_before, step = :step,"
                 " epoch = :epoch, records_done = :records,"
                 " records_per_s = NULL, failures = :failures, lost = :lost,"
                 " no_progress = :no_progress, saved_step = :saved,"
                 " best_step = :best WHERE id = :id")
SQL(CYCLE_REASON, "UPDATE cycles SET reason = :reason WHERE id = :id"
                  " AND reason IS NOT :reason")
SQL(CYCLE_DONE, "UPDATE cycles SET state = 'done', reason = NULL,"
                " checkpoint_id = :checkpoint, model_sha256 = :model,"
                " step = :step, steps = :step, records_per_s = NULL,"
                " ended_ms = :now WHERE id = :id")
SQL(CYCLE_END, "UPDATE cycles SET state = :state, reason = :reason,"
               " records_per_s = NULL, ended_ms = :now WHERE id = :id")
SQL(SNAPSHOT_ADD, "INSERT INTO snapshots(cycle_id, data)"
                  " VALUES (:cycle, :data)")
