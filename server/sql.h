/* sql.h - all SQL text, a section per noun. A list of SQL(NAME, "text") lines:
 * see store.h. Statements are prepared at their first use; binds are named. */

/* ---- session ---- */
SQL(SESSION_LIST, "SELECT hash, ends_ms FROM sessions WHERE ends_ms > :now"
                  " ORDER BY created_ms, hash")
SQL(SESSION_ADD, "INSERT INTO sessions(hash, created_ms, ends_ms)"
                 " VALUES (:hash, :now, :ends)")
SQL(SESSION_TRIM, "DELETE FROM sessions WHERE ends_ms <= :now OR hash NOT IN"
                  " (SELECT hash FROM sessions ORDER BY created_ms DESC"
                  " LIMIT :max)")

/* ---- info ---- */
SQL(INFO_DEVICES, "SELECT json_extract(d.value, '$.kind') AS kind, count(*)"
                  " FROM workers w, json_each(w.devices) d"
                  " WHERE w.gone_ms IS NULL GROUP BY kind ORDER BY kind")
SQL(INFO_SQLITE, "SELECT sqlite_version()")

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
SQL(DATASET_FIND, "SELECT id, record, bad_records, policy_tolerance"
                  " FROM datasets WHERE name = :name")
SQL(DATASET_ADD, "INSERT INTO datasets(name, created_ms) VALUES (:name, :now)")
SQL(DATASET_DESCRIBE, "UPDATE datasets SET record = :record, bad_records ="
                      " :bad_records, policy_tolerance = :tolerance"
                      " WHERE id = :id")
/* the number of the next shard that is given its name */
SQL(DATASET_APPEND, "UPDATE datasets SET appended = appended + 1 WHERE id = :id"
                    " RETURNING appended")
SQL(DATASET_LIST, "SELECT d.id, d.name, d.created_ms, count(s.id),"
                  " coalesce(sum(s.bytes), 0), coalesce(sum(s.records), 0)"
                  " FROM datasets d LEFT JOIN shards s ON s.dataset_id = d.id"
                  " WHERE d.id > :after GROUP BY d.id ORDER BY d.id"
                  " LIMIT :limit")
SQL(DATASET_DELETE, "DELETE FROM datasets WHERE id = :dataset")
/* open cycles read what they froze; those that froze nothing may read all */
SQL(DATASET_NEEDED,
    "SELECT j.id FROM jobs j WHERE j.ended_ms IS NULL AND ("
    " ((j.dataset = :dataset OR json_extract(j.spec,"
    "   '$.training.validation.dataset') = :dataset)"
    "   AND NOT EXISTS (SELECT 1 FROM cycles c"
    "   WHERE c.job_id = j.id AND c.data_digest IS NOT NULL"
    "   AND c.ended_ms IS NULL) AND :shard IS NULL)"
    " OR EXISTS (SELECT 1 FROM cycles c JOIN snapshots s ON s.cycle_id = c.id"
    "   WHERE c.job_id = j.id AND c.ended_ms IS NULL AND (EXISTS (SELECT 1"
    "   FROM json_each(s.data, '$.shards') e WHERE json_extract(e.value,"
    "   '$.path') GLOB 'datasets/' || :dataset || '/' || coalesce(:shard, '*'))"
    "   OR EXISTS (SELECT 1 FROM json_each(s.data, '$.validation.shards') e"
    "   WHERE json_extract(e.value, '$.path') GLOB"
    "   'datasets/' || :dataset || '/' || coalesce(:shard, '*')))))"
    " ORDER BY j.id LIMIT 1")
SQL(SHARD_ADD, "INSERT INTO shards(dataset_id, name, bytes, lines, records,"
               " sha256, blocks, mtime_ns, inode, created_ms, form,"
               " stored_bytes, checked, bad, bad_first) VALUES (:dataset,"
               " :name, :bytes, :lines, :records, :sha256, :blocks, :mtime_ns,"
               " :inode, :now, :form, :stored_bytes, :checked, :bad,"
               " :bad_first)")
/* the same text again, looked at by another description */
SQL(SHARD_CHECKED, "UPDATE shards SET checked = :checked, bad = :bad,"
                   " bad_first = :bad_first WHERE dataset_id = :dataset"
                   " AND name = :name")
#ifndef SHARD_COLUMNS
#define SHARD_COLUMNS                                                          \
    "SELECT name, bytes, records, lines, sha256, created_ms, form,"            \
    " coalesce(stored_bytes, bytes), checked, bad, bad_first FROM shards"      \
    " WHERE dataset_id = :dataset"
#endif
SQL(SHARD_FIND, SHARD_COLUMNS " AND name = :name")
SQL(SHARD_LIST, SHARD_COLUMNS " ORDER BY name")
SQL(SHARD_FREEZE, "SELECT name, bytes, records, mtime_ns, inode, blocks, form,"
                  " coalesce(stored_bytes, bytes), sha256 FROM shards"
                  " WHERE dataset_id = :dataset ORDER BY name")
SQL(SHARD_DELETE, "DELETE FROM shards WHERE dataset_id = :dataset"
                  " AND name = :shard")
/* is this text any shard's or any file's below a --data-root? */
SQL(TEXT_USED, "SELECT 1 FROM shards WHERE sha256 = :sha256 UNION ALL"
               " SELECT 1 FROM root_files WHERE sha256 = :sha256 LIMIT 1")
SQL(DOOMED_ADD, "INSERT OR IGNORE INTO doomed_files(path) VALUES (:path)")
SQL(DOOMED_DROP, "DELETE FROM doomed_files WHERE path = :path")
SQL(DOOMED_LIST, "SELECT path FROM doomed_files")
SQL(DOOMED_FIND, "SELECT 1 FROM doomed_files WHERE path = :path")

/* ---- root ---- */
SQL(ROOT_FILE_KNOWN, "SELECT copy FROM root_files WHERE root = :root"
                     " AND name = :name AND file_bytes = :file_bytes"
                     " AND mtime_ns = :mtime_ns AND inode = :inode"
                     " AND settled >= :settled")
SQL(ROOT_FILE_GET, "SELECT name, bytes, records, mtime_ns, inode, blocks, form,"
                   " file_bytes, sha256, copy FROM root_files"
                   " WHERE root = :root AND name = :name")
SQL(ROOT_FILE_NAMES, "SELECT name FROM root_files WHERE root = :root")
SQL(ROOT_FILE_DROP, "DELETE FROM root_files WHERE root = :root"
                    " AND name = :name")
SQL(ROOT_FILE_PUT,
    "INSERT INTO root_files(root, name, file_bytes, mtime_ns, inode, settled,"
    " form, copy, bytes, lines, records, sha256, blocks) VALUES (:root, :name,"
    " :file_bytes, :mtime_ns, :inode, :settled, :form, :copy, :bytes, :lines,"
    " :records, :sha256, :blocks) ON CONFLICT(root, name) DO UPDATE SET"
    " file_bytes = :file_bytes, mtime_ns = :mtime_ns, inode = :inode,"
    " settled = :settled, form = :form, copy = :copy, bytes = :bytes,"
    " lines = :lines, records = :records, sha256 = :sha256, blocks = :blocks")
#ifndef SNAPSHOT_HAS
#define SNAPSHOT_HAS(field, value)                                             \
    "EXISTS (SELECT 1 FROM cycles c INDEXED BY cycles_frozen"                  \
    " JOIN snapshots n ON n.cycle_id = c.id,"                                  \
    " json_each(n.data, '$.shards') e WHERE c.ended_ms IS NULL"                \
    " AND c.data_digest IS NOT NULL"                                           \
    " AND json_extract(e.value, '$." field "') = " value ")"
#endif
/* what a row has that is about to go, and no other row */
SQL(ROOT_DOOM_INDEX,
    "INSERT OR IGNORE INTO doomed_files(path) SELECT 'index/' || f.sha256"
    " FROM root_files f WHERE f.root = :root AND f.name = :name"
    " AND NOT EXISTS (SELECT 1 FROM root_files o WHERE o.sha256 = f.sha256"
    "  AND o.id <> f.id)"
    " AND NOT EXISTS (SELECT 1 FROM shards s WHERE s.sha256 = f.sha256)"
    " AND NOT " SNAPSHOT_HAS("index", "'index/' || f.sha256"))
SQL(ROOT_DOOM_COPY,
    "INSERT OR IGNORE INTO doomed_files(path) SELECT f.copy"
    " FROM root_files f WHERE f.root = :root AND f.name = :name"
    " AND f.copy IS NOT NULL AND NOT EXISTS (SELECT 1 FROM root_files o"
    "  WHERE o.copy = f.copy AND o.id <> f.id)"
    " AND NOT " SNAPSHOT_HAS("path", "f.copy"))
SQL(ROOT_COPY_USED, "SELECT 1 WHERE EXISTS (SELECT 1 FROM root_files"
                    "  WHERE copy = :copy) OR " SNAPSHOT_HAS("path", ":copy"))

/* ---- inspect ---- */
SQL(INSPECT_DATASET, "SELECT id, record, policy_tolerance FROM datasets"
                     " WHERE name = :name")
SQL(INSPECT_JOB, "SELECT spec, runtime FROM jobs WHERE id = :id")
SQL(INSPECT_SHARDS, "SELECT name, bytes, records, sha256, form FROM shards"
                    " WHERE dataset_id = :dataset ORDER BY name")
SQL(CENSUS_FIND, "SELECT result, made_ms FROM censuses"
                 " WHERE dataset_id = :dataset AND of = :of")
SQL(CENSUS_KEEP, "INSERT OR REPLACE INTO censuses(dataset_id, of, result,"
                 " made_ms) SELECT id, :of, :result, :now FROM datasets"
                 " WHERE id = :dataset")
SQL(CENSUS_TRIM, "DELETE FROM censuses WHERE dataset_id = :dataset AND of NOT"
                 " IN (SELECT of FROM censuses WHERE dataset_id = :dataset"
                 " ORDER BY made_ms DESC, of LIMIT 4)")

/* ---- cycle ---- */
#ifndef CYCLE_COLUMNS
#define CYCLE_COLUMNS                                                          \
    "SELECT id, job_id, number, state, token, step_base, initial_id, records," \
    " epochs, steps, step, saved_step, best_step, failures, lost, "            \
    "no_progress,"                                                             \
    " not_before_ms, checkpoint_id, signature, data_digest, model_sha256,"     \
    " parked_ms FROM cycles "
#define CYCLE_SHOWN                                                            \
    "SELECT id, number, state, phase, reason, step, steps, data_digest,"       \
    " signature, model_sha256, records, epochs, checkpoint_id, failures, "     \
    "lost,"                                                                    \
    " no_progress, created_ms, started_ms, ended_ms, fresh, take FROM cycles "
#endif
/* why it waits, and when it could be claimed but fits nobody that as well */
#ifndef CYCLE_SAYS
#define CYCLE_SAYS                                                             \
    "CASE WHEN c.since_ms IS NULL OR coalesce(u.why, '') = '' THEN c.reason"   \
    " WHEN c.reason LIKE '%waits for a worker' THEN c.reason || u.why"         \
    " ELSE c.reason || '; waits for a worker' || u.why END"
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
SQL(CYCLE_ADD, "INSERT INTO cycles(job_id, number, state, spec, priority,"
               " created_ms) SELECT id, :number, 'waiting', :spec, priority,"
               " :now FROM jobs WHERE id = :job")
SQL(CYCLE_PRIORITY, "UPDATE cycles SET priority = :priority"
                    " WHERE job_id = :job AND ended_ms IS NULL")
SQL(CYCLE_BEFORE, "SELECT checkpoint_id, step_base + coalesce(step, 0)"
                  " FROM cycles WHERE job_id = :job AND number < :number"
                  " AND state = 'done' ORDER BY number DESC LIMIT 1")
SQL(CYCLE_FREEZE, "UPDATE cycles SET state = 'ready', data_digest = :digest,"
                  " signature = :signature, records = :records,"
                  " epochs = :epochs, steps = :steps, step_base = :base,"
                  " initial_id = :initial, ready_ms = :now, fresh = :fresh,"
                  " take = :take, uses_left = :uses_left, waits = NULL,"
                  " looked = NULL, look_ms = NULL, survey = NULL,"
                  " reason = 'waits for a worker' WHERE id = :id")
SQL(CYCLE_SURVEY, "SELECT survey, waits, looked FROM cycles WHERE id = :id")
SQL(CYCLE_SURVEYED, "UPDATE cycles SET survey = :survey WHERE id = :id")
SQL(CYCLE_WAITS, "UPDATE cycles SET waits = :waits, looked = :looked,"
                 " look_ms = :look_ms, survey = NULL, reason = :reason"
                 " WHERE id = :id")
SQL(CYCLE_LOOK_LATER, "UPDATE cycles SET look_ms = :ms WHERE id = :id")
SQL(CYCLE_WAITING_FOR,
    "SELECT c.id, c.job_id, c.waits, c.looked, coalesce(c.look_ms, 0),"
    " json_extract(coalesce(c.spec, j.spec), '$.data.dataset')"
    " FROM cycles c INDEXED BY cycles_waits JOIN jobs j ON j.id = c.job_id"
    " WHERE c.waits IS NOT NULL AND c.state = 'waiting'")
SQL(DATASET_LOOK,
    "SELECT count(*) || ' ' || coalesce(max(s.id), 0) FROM shards s"
    " JOIN datasets d ON d.id = s.dataset_id"
    " WHERE d.name = :name")
SQL(CYCLE_USES_LEFT, "SELECT uses_left FROM cycles WHERE job_id = :job"
                     " AND state = 'done' AND uses_left IS NOT NULL"
                     " ORDER BY number DESC LIMIT 1")
SQL(JOB_RECORDS_GET, "SELECT trained, blocks, head, records, place, hash"
                     " FROM job_records WHERE job_id = :job AND name = :name")
SQL(JOB_RECORDS_PUT,
    "INSERT INTO job_records(job_id, name, trained, blocks, head, records,"
    " place, hash) VALUES (:job, :name, :trained, :blocks, :head, :records,"
    " :place, :hash) ON CONFLICT DO UPDATE SET trained = :trained,"
    " blocks = :blocks, head = :head, records = :records, place = :place,"
    " hash = :hash")
SQL(CYCLE_STARTS, "UPDATE cycles SET starts_ms = :ms WHERE id = :id"
                  " AND starts_ms IS NOT :ms")
SQL(CYCLE_DUE, "UPDATE cycles SET state = 'ready', not_before_ms = NULL,"
               " reason = iif(waits IS NULL, reason, 'waits for a worker'),"
               " waits = NULL, looked = NULL, look_ms = NULL, survey = NULL"
               " WHERE id = :id")
/* what it was frozen to must be made again first */
SQL(CYCLE_BACK,
    "UPDATE cycles SET state = 'waiting', since_ms = NULL WHERE id = :id"
    " AND state = 'ready'")
/* its job failed for its data: are the copies as they were? */
SQL(CYCLE_DOUBT, "UPDATE cycles SET looked = 'doubt' WHERE job_id = :job"
                 " AND state = 'failed' AND data_digest IS NOT NULL"
                 " AND EXISTS (SELECT 1 FROM jobs j WHERE j.id = :job"
                 "  AND json_extract(j.error, '$.code') = 'data')")
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
               " since_ms = NULL, waits = NULL, survey = NULL,"
               " starts_ms = NULL, records_per_s = NULL, ended_ms = :now"
               " WHERE id = :id")
SQL(SNAPSHOT_ADD, "INSERT INTO snapshots(cycle_id, data)"
                  " VALUES (:cycle, :data)")
SQL(CYCLE_WHY, "SELECT " CYCLE_SAYS " FROM cycles c"
               " LEFT JOIN unfit u ON u.need = c.need WHERE c.id = :id")
SQL(CYCLE_NEXT, "SELECT 1 + coalesce(max(number), 0) FROM cycles"
                " WHERE job_id = :job")
/* whoever held it before does not come back to it: what he holds has been let
 * go of (LEASE_HOLDERS) */
SQL(CYCLE_RETRY, "UPDATE cycles SET state = 'waiting', ended_ms = NULL,"
                 " token = token + (token > 0),"
                 " failures = 0, lost = 0, no_progress = 0,"
                 " not_before_ms = NULL, reason = iif(parked_ms IS NULL,"
                 " 'waits for a worker', 'waits for room on disk'),"
                 /* how much is missing is told at the next beat */
                 " parked_missing = iif(parked_ms IS NULL, NULL, 0)"
                 " WHERE job_id = :job AND state IN ('failed', 'canceled')")

/* ---- job ---- */
#ifndef JOB_SHOWN
/* the cycle that is open, or else the last one */
#define JOB_SHOWN                                                              \
    "SELECT j.id, j.name, j.kind, j.state, j.reason, j.signature, j.cycles,"   \
    " j.priority, j.labels, j.version, j.created_ms, j.started_ms,"            \
    " j.ended_ms, j.exact_since, j.exact_cycle, j.exact_why, j.inexact,"       \
    " j.runtime, j.runtime_version, j.model_sha256, j.dataset, j.parameters,"  \
    " j.error, j.spec, c.number, c.step, c.steps, c.epoch, c.records_done,"    \
    " c.records, c.epochs, c.records_per_s, c.state, c.failures, c.lost,"      \
    " c.no_progress, c.skipped, c.bad, l.id, l.worker, l.stage, l.started_ms," \
    " (SELECT count(*) FROM cycles d WHERE d.job_id = j.id"                    \
    "  AND d.state = 'done'), j.sweep_id, j.sweep_values, j.not_before_ms,"    \
    " j.edit, c.parked_ms, c.parked_missing, iif(l.stalled IS NULL, NULL, "    \
    "l.moved_ms), c.renormalised, c.exceeded"                                  \
    " FROM jobs j LEFT JOIN cycles c ON c.job_id = j.id AND c.number ="        \
    "  coalesce((SELECT min(number) FROM cycles o WHERE o.job_id = j.id"       \
    "            AND o.ended_ms IS NULL),"                                     \
    "           (SELECT max(number) FROM cycles o WHERE o.job_id = j.id))"     \
    " LEFT JOIN leases l ON l.cycle_id = c.id AND l.outcome IS NULL "
#endif
SQL(JOB_LOAD, "SELECT id, version, cycles, runtime_version, priority, threads,"
              " pause, complete, cancel, state, dataset, spec, runtime, labels,"
              " not_before_ms, edit FROM jobs WHERE id = :id")
SQL(JOB_GET, JOB_SHOWN "WHERE j.id = :id")
/* which jobs first, from an index that has what is filtered by: of those that
 * are not on the page, the specs are not read */
#ifndef JOB_PAGE
#define JOB_PAGE(from)                                                         \
    "WHERE j.id IN (SELECT f.id FROM jobs f " from " AND f.id < :before"       \
    " AND (:state IS NULL OR f.state = :state)"                                \
    " AND (:kind IS NULL OR f.kind = :kind)"                                   \
    " AND (:q IS NULL OR instr(lower(f.name), lower(:q)))"                     \
    " AND (:label IS NULL OR EXISTS (SELECT 1 FROM job_labels e"               \
    "   WHERE e.key = :label AND e.job_id = f.id"                              \
    "   AND (:value IS NULL OR e.value = :value)))"                            \
    " ORDER BY f.id DESC LIMIT :limit) ORDER BY j.id DESC"
#endif
SQL(JOB_LIST, JOB_SHOWN JOB_PAGE("INDEXED BY jobs_list WHERE 1"))
SQL(JOB_LIST_SWEEP, JOB_SHOWN JOB_PAGE("WHERE f.sweep_id = :sweep"))
/* cycles that could be claimed and stand before this job's, by priority and age;
 * one row where its own could */
SQL(JOB_PLACE, "SELECT (SELECT count(*) FROM cycles o"
               "  INDEXED BY cycles_claim WHERE o.since_ms IS NOT NULL"
               "  AND (o.priority > c.priority OR (o.priority = c.priority"
               "   AND (o.front > c.front OR (o.front = c.front"
               "    AND o.id < c.id))))) FROM cycles c WHERE c.job_id = :id"
               " AND c.since_ms IS NOT NULL AND NOT EXISTS (SELECT 1"
               "  FROM unfit u WHERE u.need = c.need AND u.why <> '')")
SQL(JOB_ADD, "INSERT INTO jobs(name, kind, state, spec, signature, dataset,"
             " cycles, parameters, priority, labels, runtime, not_before_ms,"
             " sweep_id, sweep_values, created_ms)"
             " VALUES (:name, :kind, 'queued', :spec, :signature, :dataset,"
             " :cycles, :parameters, :priority, :labels, :runtime, :not_before,"
             " :sweep, :values, :now)")
SQL(JOB_AFTER_ADD, "INSERT INTO job_after(job_id, after_id, ended)"
                   " VALUES (:job, :after, :ended)")
SQL(JOB_TOUCH, "UPDATE jobs SET version = version + 1 WHERE id = :id")
SQL(JOB_STATE, "UPDATE jobs SET state = :state, reason = :reason,"
               " started_ms = CASE WHEN :state = 'running'"
               "  THEN coalesce(started_ms, :now) ELSE started_ms END,"
               " version = version + 1 WHERE id = :id"
               " AND (state <> :state OR reason IS NOT :reason)")
SQL(JOB_WHY, "UPDATE jobs SET reason = :reason, version = version + 1"
             " WHERE id = :id AND state = 'queued' AND reason IS NOT :reason")
SQL(JOB_ASKED, "UPDATE jobs SET pause = :pause, cancel = :cancel,"
               " complete = :complete, version = version + 1 WHERE id = :id")
SQL(JOB_END, "UPDATE jobs SET state = :state, reason = :reason, error = :error,"
             " model_sha256 = coalesce(:model, model_sha256), pause = 0,"
             " cancel = 0, ended_ms = :now, version = version + 1"
             " WHERE id = :id")
SQL(JOB_RETRY, "UPDATE jobs SET state = 'queued', reason = NULL, error = NULL,"
               " pause = 0, cancel = 0, complete = 0, ended_ms = NULL,"
               " version = version + 1 WHERE id = :id")
SQL(JOB_PATCH, "UPDATE jobs SET runtime = :runtime, priority = :priority,"
               " labels = :labels, runtime_version = runtime_version + :newer,"
               " edit = edit + 1, version = version + 1 WHERE id = :id")
/* what the server itself puts into the policy is no edit */
SQL(JOB_RUNTIME, "UPDATE jobs SET runtime = :runtime, runtime_version ="
                 " runtime_version + 1, version = version + 1 WHERE id = :id")
SQL(JOB_DELETE, "DELETE FROM jobs WHERE id = :id")
/* that which its user can do something about first */
SQL(JOB_UNMET, "SELECT a.after_id, coalesce(b.state, 'gone'), a.ended,"
               " count(*) OVER () FROM job_after a"
               " LEFT JOIN jobs b ON b.id = a.after_id WHERE a.job_id = :id"
               " AND CASE a.ended WHEN 0 THEN b.state IS NOT 'completed'"
               "  ELSE b.id IS NOT NULL AND b.ended_ms IS NULL END"
               " ORDER BY b.id IS NOT NULL AND b.ended_ms IS NULL, a.after_id"
               " LIMIT 1")
SQL(JOB_AFTER_GONE, "SELECT a.after_id FROM job_after a WHERE a.job_id = :id"
                    " AND a.ended = 0 AND NOT EXISTS (SELECT 1 FROM jobs b"
                    "  WHERE b.id = a.after_id) ORDER BY a.after_id LIMIT 1")
/* jobs that have not ended and come after this one */
SQL(JOB_DEPENDENTS, "SELECT a.job_id, a.ended FROM job_after a"
                    " JOIN jobs j ON j.id = a.job_id"
                    " WHERE a.after_id = :id AND j.ended_ms IS NULL"
                    " ORDER BY a.job_id")
/* those that its end, whichever, has let go on */
SQL(JOB_AFTER_MET, "DELETE FROM job_after WHERE after_id = :id"
                   " AND (ended = 1 OR :completed)")
/* UNION would sort apart what is nearly always nothing: a job may be named
 * twice */
SQL(JOB_DUE, "SELECT job_id FROM cycles WHERE not_before_ms <= :now"
             "  AND state = 'waiting'"
             " UNION ALL SELECT job_id FROM cycles"
             "  WHERE not_before_ms > :now + 120000 AND state = 'waiting'"
             " UNION ALL SELECT job_id FROM cycles WHERE starts_ms <= :now"
             "  AND state = 'waiting'")
SQL(JOB_LIMIT, "SELECT json_extract(spec, '$.limits.' || :name) FROM jobs"
               " WHERE id = :id")
SQL(JOB_HAS_STATE, "SELECT 1 FROM checkpoints WHERE job_id = :job"
                   " AND state = 'good' LIMIT 1")

/* ---- sweep ---- */
SQL(SWEEP_ADD, "INSERT INTO sweeps(name, axes, jobs, created_ms)"
               " VALUES (:name, :axes, :jobs, :now)")
#ifndef SWEEP_SHOWN
/* states: how many of its jobs are in which; those deleted are in none */
#define SWEEP_SHOWN                                                            \
    "SELECT w.id, w.name, w.axes, w.jobs, w.created_ms,"                       \
    " (SELECT json_group_object(state, n) FROM (SELECT j.state, count(*) AS n" \
    "  FROM jobs j WHERE j.sweep_id = w.id GROUP BY j.state)) FROM sweeps w "
#endif
SQL(SWEEP_GET, SWEEP_SHOWN "WHERE w.id = :id")
SQL(SWEEP_LIST, SWEEP_SHOWN "WHERE w.id < :before ORDER BY w.id DESC"
                            " LIMIT :limit")
SQL(SWEEP_JOBS, "SELECT id, state FROM jobs WHERE sweep_id = :id ORDER BY id")
/* with the last of its jobs, which is about to go */
SQL(SWEEP_EMPTY, "DELETE FROM sweeps WHERE id ="
                 " (SELECT sweep_id FROM jobs WHERE id = :job)"
                 " AND NOT EXISTS (SELECT 1 FROM jobs j"
                 "  WHERE j.sweep_id = sweeps.id AND j.id <> :job)")

/* ---- worker ---- */
SQL(WORKER_RECENT, "SELECT name, devices FROM workers WHERE gone_ms IS NULL"
                   " AND drain = 0 AND seen_ms >= :since ORDER BY name")
#ifndef WORKER_SHOWN
#define WORKER_SHOWN                                                           \
    "SELECT w.id, w.name, w.host, w.pid, w.local, w.version, w.cpus,"          \
    " w.devices, w.library, w.seen_ms, w.gone_ms, w.drain, l.id, l.job_id,"    \
    " w.created_ms, w.labels, w.memory_bytes FROM workers w"                   \
    " LEFT JOIN leases l ON l.worker_id = w.id AND l.outcome IS NULL "
#endif
SQL(WORKER_BY_CLAIM, "SELECT id, seen_ms, drain, gone_ms FROM workers"
                     " WHERE claim = :claim")
SQL(WORKER_ADD, "INSERT INTO workers(claim, name, host, pid, started, boot,"
                " local, version, cpus, devices, library, labels, memory_bytes,"
                " seen_ms, created_ms) VALUES (:claim, :name, :host, :pid,"
                " :started, :boot, :local, :version, :cpus, :devices, :library,"
                " :labels, :memory, :now, :now)")
SQL(WORKER_SEEN, "UPDATE workers SET seen_ms = :now WHERE id = :id")
/* the last that was heard of one with a lease was its last heartbeat */
SQL(WORKER_GONE, "UPDATE workers SET gone_ms = :now, seen_ms = :now"
                 " WHERE id = :id AND gone_ms IS NULL")
SQL(WORKER_LET_GO, "UPDATE workers SET seen_ms = :now WHERE id ="
                   " (SELECT worker_id FROM leases WHERE id = :lease)")
SQL(WORKER_KNOWN, "SELECT w.name, w.host, w.devices, w.labels, w.library,"
                  " w.memory_bytes, w.cpus, w.local FROM workers w"
                  " WHERE w.drain = 0 AND w.id IN (SELECT worker_id FROM leases"
                  "  WHERE outcome IS NULL UNION SELECT id FROM workers"
                  "  WHERE seen_ms >= :since AND (seen_ms >= :ended OR"
                  "  (gone_ms IS NULL AND NOT EXISTS (SELECT 1 FROM leases o"
                  "   WHERE o.claim = workers.claim)))"
                  "  ) ORDER BY w.id DESC LIMIT 256")
SQL(WORKER_FIND, "SELECT id FROM workers WHERE pid = :pid"
                 " AND started = :started AND (:boot IS NULL OR boot = :boot)"
                 " ORDER BY id DESC LIMIT 1")
SQL(WORKER_LOCAL,
    "SELECT w.pid, w.started, max(l.id IS NOT NULL AND l.outcome IS NULL),"
    " max(l.outcome = 'lost' AND l.expired = 1) FROM workers w"
    " LEFT JOIN leases l ON l.claim = w.claim WHERE w.gone_ms IS NULL"
    " AND w.local = 1 AND w.boot = :boot GROUP BY w.pid, w.started")
SQL(WORKER_DRAIN, "UPDATE workers SET drain = 1 WHERE id = :id")
SQL(WORKER_GET, WORKER_SHOWN "WHERE w.id = :id")
SQL(WORKER_LIST, WORKER_SHOWN "WHERE w.id > :after ORDER BY w.id LIMIT :limit")
SQL(WORKER_PRUNE, "DELETE FROM workers WHERE coalesce(gone_ms, seen_ms) <"
                  " :before AND NOT EXISTS (SELECT 1 FROM leases l WHERE"
                  " l.worker_id = workers.id AND l.outcome IS NULL)")

/* ---- owner: the queue ---- */
/* What the job asks for now, once for all that ask for the same. Where the
 * fingerprint of its state is required that belongs to it. */
#ifndef CYCLE_NEED
#define CYCLE_NEED                                                             \
    "CASE WHEN json_extract(j.runtime, '$.exact') = 'require' AND"             \
    " coalesce((SELECT 1 FROM checkpoints k WHERE k.cycle_id = c.id"           \
    "  AND k.state = 'good' LIMIT 1), c.initial_id) IS NOT NULL THEN"          \
    " json_object('device', json_extract(j.runtime, '$.device'), 'resources'," \
    "  json_extract(j.runtime, '$.resources'), 'threads',"                     \
    "  coalesce(nullif(json_extract(j.runtime, '$.threads'), 0), j.threads,"   \
    "   0), 'micro_batch', json_extract(j.runtime, '$.micro_batch'),"          \
    "  'padding', json_extract(j.runtime, '$.padding'), 'fingerprint',"        \
    "  json(coalesce((SELECT k.fingerprint FROM checkpoints k"                 \
    "   WHERE k.cycle_id = c.id AND k.state = 'good' ORDER BY k.id DESC"       \
    "   LIMIT 1), (SELECT k.fingerprint FROM checkpoints k"                    \
    "   WHERE k.id = c.initial_id), 'null')))"                                 \
    " ELSE json_object('device', json_extract(j.runtime, '$.device'),"         \
    "  'resources', json_extract(j.runtime, '$.resources')) END"
#endif
SQL(CYCLE_PLACE,
    "UPDATE cycles SET owner = n.owner, priority = n.priority, need = n.need,"
    " since_ms = n.since FROM (SELECT c.id AS cycle,"
    "  coalesce(json_extract(j.labels, '$.owner'), '') AS owner,"
    "  j.priority AS priority, " CYCLE_NEED " AS need,"
    "  CASE WHEN c.state = 'ready' AND j.pause = 0 AND j.cancel = 0"
    "   THEN coalesce(c.since_ms, :now) END AS since"
    "  FROM cycles c JOIN jobs j ON j.id = c.job_id WHERE c.id = :id) n"
    " WHERE id = :id AND (cycles.owner <> n.owner OR cycles.need <> n.need"
    " OR cycles.priority <> n.priority OR cycles.since_ms IS NOT n.since)")
SQL(CYCLE_OWNER_MOVES,
    "SELECT 1 FROM cycles c JOIN jobs j ON j.id = c.job_id WHERE c.id = :id"
    " AND c.state = 'leased'"
    " AND c.owner <> coalesce(json_extract(j.labels, '$.owner'), '')")
/* The first of the next group and need. SQLite seeks to the bound itself and
 * would then walk over all rows that equal it, so the bound is behind them: no
 * need, being JSON, begins with another one. */
SQL(TURN_NEXT,
    "SELECT c.id, c.owner, c.priority, c.need, c.front, c.since_ms, s.at_ms,"
    " o.use_ms, o.running, o.at_ms FROM cycles c"
    " LEFT JOIN served s ON s.owner = c.owner AND s.priority = c.priority"
    " LEFT JOIN owners o ON o.owner = c.owner WHERE c.since_ms IS NOT NULL"
    " AND (c.owner, c.priority, c.need) > (:owner, :priority, :need || '~')"
    " ORDER BY c.owner, c.priority, c.need, c.front DESC, c.id LIMIT 1")
SQL(TURN_BEHIND, "SELECT id, front FROM cycles WHERE since_ms IS NOT NULL"
                 " AND owner = :owner AND priority = :priority AND need = :need"
                 " AND (front < :front OR (front = :front AND id > :id))"
                 " ORDER BY front DESC, id LIMIT 1")
SQL(CYCLE_SINCE_MEND, "UPDATE cycles SET since_ms = :now"
                      " WHERE since_ms IS NOT NULL AND since_ms > :now")
SQL(SERVED_MEND, "UPDATE served SET at_ms = :now WHERE at_ms > :now")
SQL(SERVED_SET, "INSERT INTO served(owner, priority, at_ms)"
                " SELECT owner, priority, :now FROM cycles WHERE id = :cycle"
                " ON CONFLICT DO UPDATE SET at_ms = :now")
SQL(OWNER_OF, "SELECT use_ms, running, at_ms FROM owners WHERE owner ="
              " (SELECT owner FROM cycles WHERE id = :cycle)")
SQL(OWNER_SET, "INSERT INTO owners(owner, use_ms, running, at_ms)"
               " SELECT owner, :use, :running, :now FROM cycles"
               " WHERE id = :cycle ON CONFLICT DO UPDATE SET use_ms = :use,"
               " running = :running, at_ms = :now")
SQL(OWNER_ADD_RUNNING, "INSERT OR IGNORE INTO owners(owner, use_ms, running,"
                       " at_ms) SELECT c.owner, 0, 0, max(l.started_ms)"
                       " FROM leases l JOIN cycles c ON c.id = l.cycle_id"
                       " WHERE l.outcome IS NULL GROUP BY c.owner")
SQL(OWNER_RECOUNT, "UPDATE owners SET running = (SELECT count(*) FROM leases l"
                   " CROSS JOIN cycles c ON c.id = l.cycle_id"
                   " WHERE l.outcome IS NULL AND c.owner = owners.owner)")
SQL(UNFIT_GET, "SELECT why FROM unfit WHERE need = :need")
SQL(UNFIT_SET, "INSERT INTO unfit(need, why, told) VALUES (:need, :why, :told)"
               " ON CONFLICT DO UPDATE SET why = :why, told = :told")
SQL(UNFIT_DROP, "DELETE FROM unfit WHERE need = :need")
SQL(UNFIT_UNTOLD, "SELECT need, why FROM unfit WHERE told = 0 LIMIT 1")
SQL(UNFIT_TOLD, "UPDATE unfit SET told = 1 WHERE need = :need")
/* when the sentence of a need changed: its jobs get it */
SQL(UNFIT_JOBS,
    "UPDATE jobs SET reason = n.says, version = version + 1 FROM"
    " (SELECT c.job_id AS job, " CYCLE_SAYS " AS says FROM cycles c"
    "  JOIN unfit u ON u.need = c.need JOIN jobs j ON j.id = c.job_id"
    "  WHERE c.since_ms IS NOT NULL AND c.need = :need AND j.state = 'queued'"
    "  AND j.reason IS NOT " CYCLE_SAYS " LIMIT :limit) n"
    " WHERE id = n.job")

/* ---- metric ---- */
SQL(SERIES_FIND, "SELECT id FROM series WHERE name = :name")
SQL(SERIES_ADD, "INSERT INTO series(name) VALUES (:name)")
SQL(METRIC_PUT, "INSERT INTO metrics(cycle_id, series_id, step, value,"
                " lease_id) VALUES (:cycle, :series, :step, :value, :lease)"
                " ON CONFLICT DO UPDATE SET value = :value, lease_id = :lease")
/* of leases whose fingerprint is this one's */
SQL(METRIC_BEFORE, "SELECT a.value, a.lease_id FROM metrics_archive a"
                   " JOIN leases o ON o.id = a.lease_id"
                   " JOIN leases n ON n.id = :lease"
                   " WHERE a.cycle_id = :cycle AND a.series_id = :series"
                   " AND a.step = :step AND a.lease_id < :lease"
                   " AND o.fingerprint = n.fingerprint"
                   " ORDER BY a.lease_id DESC LIMIT 1")
SQL(METRIC_ARCHIVED, "SELECT 1 FROM metrics_archive WHERE cycle_id = :cycle"
                     " LIMIT 1")
/* of one series: the key leads to what is past a step, and to nothing else */
SQL(METRIC_ARCHIVE, "INSERT OR REPLACE INTO metrics_archive(cycle_id,"
                    " series_id, step, lease_id, value) SELECT cycle_id,"
                    " series_id, step, lease_id, value FROM metrics"
                    " WHERE cycle_id = :cycle AND series_id = :series"
                    " AND step > :step")
SQL(METRIC_DROP, "DELETE FROM metrics WHERE cycle_id = :cycle"
                 " AND series_id = :series AND step > :step")
/* those that have a value past a step */
SQL(METRIC_PAST, "SELECT s.id FROM series s WHERE EXISTS (SELECT 1"
                 " FROM metrics m WHERE m.cycle_id = :cycle"
                 " AND m.series_id = s.id AND m.step > :step)")
SQL(METRIC_SERIES, "SELECT c.id, c.number, s.id, s.name FROM cycles c"
                   " JOIN series s WHERE c.job_id = :job"
                   " AND (:cycle = 0 OR c.number = :cycle)"
                   " AND EXISTS (SELECT 1 FROM metrics m WHERE"
                   "  m.cycle_id = c.id AND m.series_id = s.id)"
                   " ORDER BY c.number, s.name")
/* the first step past :after at which a cycle has a value: a seek a series */
SQL(METRIC_NEXT, "SELECT min((SELECT m.step FROM metrics m"
                 " WHERE m.cycle_id = c.id AND m.series_id = s.id"
                 " AND m.step > :after ORDER BY m.step LIMIT 1))"
                 " FROM cycles c CROSS JOIN series s"
                 " WHERE c.job_id = :job AND c.number = :number")
SQL(METRIC_STEPS, "SELECT m.step, s.name, m.value FROM cycles c"
                  " CROSS JOIN series s CROSS JOIN metrics m"
                  " ON m.cycle_id = c.id AND m.series_id = s.id"
                  " AND m.step BETWEEN :from AND :to"
                  " WHERE c.job_id = :job AND c.number = :number"
                  " ORDER BY m.step, s.name")
SQL(METRIC_CYCLE, "SELECT min(number) FROM cycles WHERE job_id = :job"
                  " AND number > :after AND (:cycle = 0 OR number = :cycle)")
SQL(MEMORY_ADD, "INSERT OR IGNORE INTO memory(job_id, lease_id, at_ms, step,"
                " allocated, device, rss, available, swap, shapes) VALUES"
                " (:job, :lease, :at, :step, :allocated, :device, :rss,"
                " :available, :swap, :shapes)")
SQL(MEMORY_ADDED, "UPDATE leases SET samples = samples + :n WHERE id = :lease")
SQL(MEMORY_LEASES, "SELECT id, samples FROM leases WHERE job_id = :job"
                   " AND samples > 0 ORDER BY id")
#ifndef MEMORY_COLUMNS
#define MEMORY_COLUMNS                                                         \
    "SELECT lease_id, at_ms, step, allocated, device, rss, available, swap,"   \
    " shapes FROM memory WHERE job_id = :job "
#endif
SQL(MEMORY_ALL,
    MEMORY_COLUMNS "AND (lease_id, at_ms, step) > (:lease, :at, :step)"
                   " ORDER BY lease_id, at_ms, step LIMIT :limit")
SQL(MEMORY_FROM, MEMORY_COLUMNS "AND lease_id = :lease AND at_ms >= :at"
                                " AND (at_ms, step) > (:after_at, :after_step)"
                                " ORDER BY at_ms, step LIMIT 1")
SQL(MEMORY_LAST, MEMORY_COLUMNS "AND lease_id = :lease"
                                " ORDER BY at_ms DESC, step DESC LIMIT 1")

/* ---- band ---- */
#ifndef BAND_COLUMNS
#define BAND_COLUMNS                                                           \
    "points, unfinite, unfinite_step, low, low_step, high, high_step"
/* a row, seen as a band of its own */
#define ROW_AS_BAND                                                            \
    "step, 1, value IS NULL, iif(value IS NULL, step, NULL), value,"           \
    " iif(value IS NULL, NULL, step), value, iif(value IS NULL, NULL, step)"
#endif
SQL(BAND_ROWS, "SELECT " ROW_AS_BAND " FROM metrics WHERE cycle_id = :cycle"
               " AND series_id = :series AND step BETWEEN :from AND :to"
               " ORDER BY step")
SQL(BAND_BELOW, "SELECT stretch, " BAND_COLUMNS " FROM bands"
                " WHERE cycle_id = :cycle AND series_id = :series"
                " AND level = :level AND stretch BETWEEN :from AND :to"
                " ORDER BY stretch")
SQL(BAND_FIRST, "SELECT " ROW_AS_BAND " FROM metrics WHERE cycle_id = :cycle"
                " AND series_id = :series ORDER BY step LIMIT 1")
SQL(BAND_LAST, "SELECT " ROW_AS_BAND " FROM metrics WHERE cycle_id = :cycle"
               " AND series_id = :series ORDER BY step DESC LIMIT 1")
SQL(BAND_COUNT, "SELECT coalesce(sum(points), 0), coalesce(sum(unfinite), 0)"
                " FROM bands WHERE cycle_id = :cycle AND series_id = :series"
                " AND level = :level")
SQL(BAND_PUT, "INSERT OR REPLACE INTO bands(cycle_id, series_id, level,"
              " stretch, " BAND_COLUMNS ") VALUES (:cycle, :series, :level,"
              " :stretch, :points, :unfinite, :unfinite_step, :low, :low_step,"
              " :high, :high_step)")
SQL(BAND_DROP, "DELETE FROM bands WHERE cycle_id = :cycle"
               " AND series_id = :series AND level = :level"
               " AND stretch = :stretch")
SQL(BAND_CUT, "DELETE FROM bands WHERE cycle_id = :cycle"
              " AND series_id = :series AND level = :level"
              " AND stretch > :stretch")

/* ---- checkpoint ---- */
#ifndef CHECKPOINT_COLUMNS
#define CHECKPOINT_COLUMNS                                                     \
    "SELECT id, job_id, cycle_id, step, epoch, bytes, model_bytes,"            \
    " load_deaths, exact_since, exact_cycle, exact_why, state, digest,"        \
    " model_sha256, manifest, fingerprint FROM checkpoints "
#define CHECKPOINT_SHOWN                                                       \
    "SELECT k.id, k.job_id, c.number, k.lease_id, k.state, k.reason, k.step,"  \
    " k.epoch, k.digest, k.previous, k.bytes, k.model_bytes, k.model_sha256,"  \
    " k.pinned, k.load_deaths, k.created_ms, k.manifest FROM checkpoints k"    \
    " JOIN cycles c ON c.id = k.cycle_id "
#endif
SQL(CHECKPOINT_LOAD, CHECKPOINT_COLUMNS "WHERE id = :id")
SQL(CHECKPOINT_SAVED, CHECKPOINT_COLUMNS
    "WHERE id = (SELECT coalesce(saved_id, checkpoint_id) FROM leases"
    " WHERE id = :lease"
    " AND outcome IS NULL)")
/* newest first: the reader stops at one whose manifest is whole */
SQL(CHECKPOINT_NEWEST, CHECKPOINT_COLUMNS
    "WHERE cycle_id = :cycle AND state = 'good' ORDER BY id DESC")
SQL(CHECKPOINT_NEWER, "SELECT id FROM checkpoints WHERE cycle_id = :cycle"
                      " AND state = 'good' AND id > :than ORDER BY id LIMIT 1")
SQL(CHECKPOINT_FIND, "SELECT id FROM checkpoints WHERE cycle_id ="
                     " (SELECT cycle_id FROM leases WHERE id = :lease)"
                     " AND lease_id = :lease AND digest = :digest")
SQL(CHECKPOINT_ADD, "INSERT INTO checkpoints(job_id, cycle_id, lease_id, state,"
                    " step, epoch, digest, previous, manifest, bytes,"
                    " model_bytes, model_sha256, fingerprint, exact_since,"
                    " exact_cycle, exact_why, created_ms) VALUES (:job, :cycle,"
                    " :lease, 'good', :step, :epoch, :digest, :previous,"
                    " :manifest, :bytes, :model_bytes, :model, :fingerprint,"
                    " :since, :since_cycle, :why, :now)")
SQL(CHECKPOINT_CHUNK, "INSERT OR IGNORE INTO checkpoint_chunks(checkpoint_id,"
                      " sha256) VALUES (:checkpoint, :sha)")
SQL(CHECKPOINT_NAMES, "SELECT 1 FROM checkpoint_chunks WHERE sha256 = :sha"
                      " LIMIT 1")
SQL(CHECKPOINT_QUARANTINE, "UPDATE checkpoints SET state = 'quarantined',"
                           " reason = :reason WHERE id = :id"
                           " AND state = 'good'")
SQL(CHECKPOINT_DIED, "UPDATE checkpoints SET load_deaths = load_deaths + 1"
                     " WHERE id = :id RETURNING load_deaths, state")
SQL(CHECKPOINT_LIVES, "UPDATE checkpoints SET load_deaths ="
                      " max(0, load_deaths - 1),"
                      " state = iif(:aside, 'good', state),"
                      " reason = iif(:aside, NULL, reason) WHERE id = :id")
SQL(CHECKPOINT_LOADED, "UPDATE checkpoints SET load_deaths = 0"
                       " WHERE id = :id AND load_deaths > 0")
SQL(CHECKPOINT_LIST, CHECKPOINT_SHOWN "WHERE k.job_id = :job AND k.id > :after"
                                      " ORDER BY k.id LIMIT :limit")
SQL(CHECKPOINT_GET, CHECKPOINT_SHOWN "WHERE k.id = :id")
SQL(CHECKPOINT_DROP, "DELETE FROM checkpoints WHERE id = :id")
SQL(CHECKPOINT_PIN, "UPDATE checkpoints SET pinned = :pinned WHERE id = :id"
                    " AND pinned <> :pinned")

/* ---- retention ---- */
SQL(PRUNABLE_LIST, "SELECT job_id FROM prunable WHERE job_id > :after"
                   " ORDER BY job_id LIMIT :limit")
SQL(PRUNABLE_DROP, "DELETE FROM prunable WHERE job_id = :job")
SQL(RETENTION_JOB, "SELECT runtime, state FROM jobs WHERE id = :job")
/* newest first. The value of the series is the last one up to the step; what a
 * live lease has saved and not reported on has none yet. */
SQL(RETENTION_LIST,
    "SELECT k.id, k.step, c.number, k.state = 'good', k.pinned,"
    " c.state = 'done', c.state = 'done' AND c.checkpoint_id IS k.id,"
    " (SELECT l.id FROM leases l WHERE l.cycle_id = c.id"
    "  AND l.outcome IS NULL AND (l.checkpoint_id = k.id"
    "   OR l.initial_id = k.id)),"
    " EXISTS (SELECT 1 FROM leases l WHERE l.id = k.lease_id"
    "  AND l.outcome IS NULL AND l.step < k.step),"
    " (SELECT m.value FROM metrics m WHERE m.cycle_id = k.cycle_id"
    "  AND m.series_id = (SELECT id FROM series WHERE name = :series)"
    "  AND m.step <= k.step ORDER BY m.step DESC LIMIT 1)"
    " FROM checkpoints k JOIN cycles c ON c.id = k.cycle_id"
    " WHERE k.job_id = :job ORDER BY k.id DESC")
/* the lease that still reads it */
SQL(RETENTION_LOADING, "SELECT id, worker FROM leases WHERE job_id = :job"
                       " AND outcome IS NULL AND stage = 'load'"
                       " AND (checkpoint_id = :id OR initial_id = :id) LIMIT 1")

/* ---- chunks: checkpoints.db ---- */
SQL(CHUNK_ANY, "SELECT 1 FROM chunks LIMIT 1")
SQL(CHUNK_FIND, "SELECT bytes FROM chunks WHERE sha256 = :sha")
SQL(CHUNK_ADD, "INSERT INTO chunks(sha256, bytes, data)"
               " VALUES (:sha, :bytes, :data)")
SQL(CHUNK_MEND, "UPDATE chunks SET bytes = :bytes, data = :data"
                " WHERE sha256 = :sha")
SQL(CHUNK_READ, "SELECT data FROM chunks WHERE sha256 = :sha")
SQL(CHUNK_SCAN, "SELECT id, sha256 FROM chunks WHERE id > :after"
                " ORDER BY id LIMIT :limit")
SQL(CHUNK_DROP, "DELETE FROM chunks WHERE sha256 = :sha AND NOT EXISTS"
                " (SELECT 1 FROM holds h WHERE h.sha256 = :sha)")
SQL(CHUNK_PAGES_FREE, "PRAGMA freelist_count")
SQL(CHUNK_VACUUM, "PRAGMA incremental_vacuum(512)")
SQL(HOLD_ADD, "INSERT INTO holds(lease_id, sha256) VALUES (:lease, :sha)")
SQL(HOLD_NEWEST, "SELECT coalesce(max(seq), 0) FROM holds"
                 " WHERE lease_id = :lease")
/* of leases that ended, and what living ones let go of */
SQL(HOLD_DROP, "DELETE FROM holds WHERE lease_id <= :newest AND NOT EXISTS"
               " (SELECT 1 FROM json_each(:live) e"
               "  WHERE json_extract(e.value, '$[0]') = holds.lease_id"
               "  AND holds.seq > json_extract(e.value, '$[1]'))")

/* ---- backup: on the copy of pawl.db ---- */
SQL(BACKUP_SESSIONS, "DELETE FROM sessions")
/* they are the other server's */
SQL(BACKUP_WORKERS, "UPDATE workers SET gone_ms = :now WHERE gone_ms IS NULL")
/* the other server goes on and hands out ids that this one must not */
SQL(BACKUP_IDS, "UPDATE sqlite_sequence SET seq = seq + 1000000"
                " WHERE name IN ('leases', 'workers')")
SQL(BACKUP_CHUNKS, "SELECT DISTINCT sha256 FROM checkpoint_chunks"
                   " ORDER BY sha256")
SQL(BACKUP_SHARDS, "SELECT d.name, s.name, s.sha256 FROM shards s"
                   " JOIN datasets d ON d.id = s.dataset_id"
                   " ORDER BY d.name, s.name")
SQL(BACKUP_COPIES, "SELECT DISTINCT json_extract(e.value, '$.path')"
                   " FROM cycles c JOIN snapshots n ON n.cycle_id = c.id,"
                   " json_each(n.data, '$.shards') e WHERE c.ended_ms IS NULL"
                   " AND json_extract(e.value, '$.path') GLOB 'copies/*'")

/* of the file of pawl.db itself, after the copy was made */
SQL(BACKUP_SHARD_NOW, "SELECT s.sha256 FROM shards s"
                      " JOIN datasets d ON d.id = s.dataset_id"
                      " WHERE d.name = :dataset AND s.name = :shard")

/* ---- lease ---- */
SQL(LEASE_CYCLE, "SELECT cycle_id FROM leases WHERE id = :id")
SQL(LEASE_NEWEST, "SELECT coalesce(max(id), 0) FROM leases")
/* those that live, and those that may come back */
SQL(LEASE_HOLDERS, "SELECT id, holds_prev FROM leases WHERE outcome IS NULL"
                   " UNION ALL SELECT l.id, l.holds_prev FROM leases l"
                   " JOIN cycles c ON c.id = l.cycle_id AND c.token = l.token"
                   " WHERE c.state IN ('waiting', 'ready')"
                   " AND l.expired = 1")
#ifndef LEASE_COLUMNS
#define LEASE_COLUMNS                                                          \
    "SELECT l.id, l.job_id, l.cycle_id, l.token, l.worker_id,"                 \
    " l.checkpoint_id, l.initial_id, l.from_step, l.best_before, l.step,"      \
    " l.epoch, l.records, l.micro_batches, l.seq, l.saved_id,"                 \
    " l.runtime_version, l.threads, l.counted, l.exact_since, l.exact_cycle,"  \
    " l.exact_why, l.expired, l.outcome, l.stage, l.worker, l.device,"         \
    " l.fingerprint, l.answer, l.reason, w.drain, w.local,"                    \
    " l.moved_mono_ms, l.step_ms, l.stalled FROM leases l"                     \
    " LEFT JOIN workers w ON w.id = l.worker_id "
#endif
SQL(LEASE_LOAD, LEASE_COLUMNS "WHERE l.id = :id")
SQL(LEASE_BY_CLAIM, LEASE_COLUMNS "WHERE l.claim = :claim")
SQL(LEASE_OF_WORKER, LEASE_COLUMNS "WHERE l.worker_id = :worker"
                                   " AND l.outcome IS NULL")
SQL(LEASE_ADD, "INSERT INTO leases(job_id, cycle_id, token, worker_id, worker,"
               " claim, device, threads, fingerprint, runtime_version,"
               " checkpoint_id, initial_id, from_step, best_before, step,"
               " epoch, records, exact_since, exact_cycle, exact_why,"
               " started_ms, heard_ms, heard_mono_ms, moved_ms,"
               " moved_mono_ms) VALUES (:job, :cycle,"
               " :token, :worker_id, :worker, :claim, :device, :threads,"
               " :fingerprint, :runtime_version, :checkpoint, :initial, :from,"
               " :best, :from, :epoch, :records, :since, :since_cycle, :why,"
               " :now, :now, :mono, :now, :mono)")
SQL(CYCLE_LEASE, "UPDATE cycles SET state = 'leased', token = token + 1,"
                 " since_ms = NULL, front = 0, reason = NULL, step = :step,"
                 " epoch = :epoch, records_done = :records,"
                 " started_ms = coalesce(started_ms, :now) WHERE id = :id")
SQL(CYCLE_COME_BACK, "UPDATE cycles SET state = 'leased', reason = NULL,"
                     " since_ms = NULL,"
                     " lost = :lost, no_progress = :no_progress,"
                     " not_before_ms = NULL WHERE id = :id")
SQL(CYCLE_REPORT, "UPDATE cycles SET step = :step, epoch = :epoch,"
                  " records_done = :records, best_step = :best,"
                  " records_per_s = coalesce(:speed, records_per_s),"
                  " skipped = coalesce(:skipped, skipped),"
                  " bad = coalesce(:bad, bad),"
                  " renormalised = coalesce(:renormalised, renormalised),"
                  " exceeded = coalesce(:exceeded, exceeded) WHERE id = :id")
SQL(CYCLE_SAVED, "UPDATE cycles SET saved_step = :saved, best_step = :best,"
                 " failures = iif(:further, 0, failures),"
                 " lost = iif(:further, 0, lost),"
                 " no_progress = iif(:further, 0, no_progress) WHERE id = :id")
SQL(JOB_LEASED, "UPDATE jobs SET threads = coalesce(threads, :threads),"
                " exact_since = :since, exact_cycle = :since_cycle,"
                " exact_why = :why WHERE id = :id")
SQL(JOB_INEXACT, "UPDATE jobs SET inexact = inexact + :n WHERE id = :id")
SQL(SNAPSHOT_GET, "SELECT data FROM snapshots WHERE cycle_id = :cycle")
SQL(SNAPSHOT_COPIES,
    "SELECT e.value FROM snapshots n, json_each(n.data, '$.shards') e"
    " WHERE n.cycle_id = :cycle AND instr(n.data, '\"copies/') > 0"
    " AND json_extract(e.value, '$.path') LIKE 'copies/%'")
/* those for validation follow on */
SQL(SNAPSHOT_SHARD,
    "SELECT coalesce(json_extract(s.data, '$.shards[' || :n || ']'),"
    " json_extract(s.data, '$.validation.shards['"
    "  || (:n - json_array_length(s.data, '$.shards')) || ']'))"
    " FROM leases l JOIN snapshots s ON s.cycle_id = l.cycle_id"
    " WHERE l.id = :lease")
SQL(LEASE_COME_BACK, "UPDATE leases SET outcome = NULL, ended_ms = NULL,"
                     " expired = 0, counted = 0, reason = NULL, death = NULL,"
                     " evidence = NULL WHERE id = :id")
SQL(LEASE_REPORT, "UPDATE leases SET step = :step, epoch = :epoch,"
                  " records = :records, micro_batches = :micro_batches,"
                  " stage = :stage, seq = :seq,"
                  " peak_allocated = nullif(max(coalesce(peak_allocated, -1),"
                  "  coalesce(:allocated, -1)), -1),"
                  " peak_device = nullif(max(coalesce(peak_device, -1),"
                  "  coalesce(:device, -1)), -1),"
                  " peak_rss = nullif(max(coalesce(peak_rss, -1),"
                  "  coalesce(:rss, -1)), -1),"
                  " moved_mono_ms = :moved_mono,"
                  " moved_ms = coalesce(:moved, moved_ms),"
                  " step_ms = :step_ms, stalled = :stalled,"
                  " heard_ms = :now, heard_mono_ms = :mono WHERE id = :id")
SQL(LEASE_STALLED, "SELECT stalled FROM leases WHERE cycle_id = :cycle"
                   " AND outcome IS NULL AND stalled IS NOT NULL")
SQL(LEASE_HEARD, "UPDATE leases SET heard_ms = :now, heard_mono_ms = :mono"
                 " WHERE id = :id")
SQL(LEASE_TOLD, "UPDATE leases SET told = :why WHERE id = :id"
                " AND told IS NOT :why")
SQL(LEASE_SAVED, "UPDATE leases SET saved_id = :saved, holds_prev = holds_seq,"
                 " holds_seq = :seq WHERE id = :id")
SQL(LEASE_END, "UPDATE leases SET outcome = :outcome, reason = :reason,"
               " detail = coalesce(iif(:reason = 'drain', told, NULL), :detail,"
               " told), evidence = :evidence,"
               " error = :error, answer = :answer, death = :death,"
               " expired = :expired,"
               " counted = :counted, ended_ms = :now WHERE id = :id")
/* +id: by the cycle's own index, then sorted */
SQL(EVIDENCE_LEASES, "SELECT id, job_id, worker, from_step, step, stage,"
                     " reason, death, ended_ms FROM leases"
                     " WHERE cycle_id = :cycle AND outcome = 'lost'"
                     " ORDER BY +id DESC LIMIT :limit")
SQL(EVIDENCE_LOGS, "SELECT at_ms, level, text FROM logs"
                   " WHERE lease_id = :lease ORDER BY at_ms DESC, id DESC"
                   " LIMIT :limit")
SQL(EVIDENCE_MEMORY, "SELECT at_ms, step, allocated, device, rss, available"
                     " FROM memory WHERE job_id = :job AND lease_id = :lease"
                     " ORDER BY at_ms DESC, step DESC LIMIT :limit")
SQL(LEASE_LISTENING, "UPDATE leases SET heard_mono_ms = :mono,"
                     " moved_mono_ms = :mono"
                     " WHERE outcome IS NULL")
SQL(LEASE_SILENT, "SELECT id FROM leases WHERE outcome IS NULL"
                  " AND heard_mono_ms < :before ORDER BY heard_mono_ms, id")
SQL(LEASE_DEAD, "UPDATE leases SET expired = 0 WHERE worker_id = :worker"
                " AND expired = 1")
SQL(LEASE_LIST, "SELECT l.id, c.number, l.worker, l.outcome, l.reason,"
                " l.detail, l.from_step, l.step, l.started_ms, l.ended_ms,"
                " l.peak_allocated, l.peak_device, l.peak_rss, l.fingerprint,"
                " l.device, l.threads, l.stage, l.micro_batches,"
                " l.checkpoint_id, l.error, l.evidence, l.heard_ms"
                " FROM leases l JOIN cycles c ON c.id = l.cycle_id"
                " WHERE l.job_id = :job AND l.id > :after ORDER BY l.id"
                " LIMIT :limit")

/* ---- room ---- */
SQL(LEASE_OPEN, "SELECT 1 FROM leases WHERE id = :id AND outcome IS NULL")
SQL(LEASE_ROOM, "SELECT room_missing, room_step FROM leases WHERE id = :id")
SQL(LEASE_ROOM_TOLD, "UPDATE leases SET room_missing = :missing,"
                     " room_step = :step WHERE id = :id")
SQL(CYCLE_ROOM, "SELECT room_missing, room_step FROM leases"
                " WHERE cycle_id = :cycle AND outcome IS NULL"
                " AND room_missing IS NOT NULL")
SQL(CYCLE_PARK, "UPDATE cycles SET state = 'waiting', not_before_ms = NULL,"
                " parked_ms = :now, parked_step = :step, parked_need = :need,"
                " parked_missing = :missing WHERE id = :id")
SQL(CYCLE_PARK_RETOLD, "UPDATE cycles SET parked_missing = :missing,"
                       " reason = :reason WHERE id = :id")
SQL(CYCLE_UNPARK, "UPDATE cycles SET parked_ms = NULL, parked_step = NULL,"
                  " parked_need = NULL, parked_missing = NULL,"
                  " reason = :reason WHERE id = :id")
SQL(CYCLE_PARKED, "SELECT id, job_id, number, parked_need, parked_missing,"
                  " parked_step, step FROM cycles"
                  " WHERE parked_ms IS NOT NULL AND state = 'waiting'"
                  " ORDER BY parked_ms, id LIMIT :limit")

/* ---- idempotency ---- */
SQL(ONCE_FIND, "SELECT body_digest, status, answer FROM idempotency"
               " WHERE path = :path AND key = :key")
SQL(ONCE_KEEP, "INSERT INTO idempotency(path, key, body_digest, status,"
               " answer, created_ms) VALUES (:path, :key, :digest, :status,"
               " :answer, :now)")
SQL(ONCE_PRUNE, "DELETE FROM idempotency WHERE created_ms < :before")
SQL(METRIC_LAST, "SELECT m.step, m.value FROM metrics m"
                 " JOIN series s ON s.id = m.series_id WHERE s.name = :series"
                 " AND m.cycle_id = (SELECT id FROM cycles"
                 "  WHERE job_id = :job AND number = :cycle)"
                 " ORDER BY m.step DESC LIMIT 1")
