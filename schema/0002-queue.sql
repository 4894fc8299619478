-- pawl.db, schema 2: dependencies of two kinds, times, sweeps, owners.

ALTER TABLE job_after ADD COLUMN -- 1: whatever its end, 0: only completed
    ended INTEGER NOT NULL DEFAULT 0 CHECK (ended IN (0, 1));

-- One submission that made several jobs.
CREATE TABLE sweeps (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    axes TEXT NOT NULL CHECK (json_valid(axes)), -- {pointer: [value, …], …}
    jobs INTEGER NOT NULL,
    created_ms INTEGER NOT NULL
) STRICT;

ALTER TABLE jobs ADD COLUMN sweep_id INTEGER;
ALTER TABLE jobs ADD COLUMN -- its own values, {pointer: value, …}
    sweep_values TEXT CHECK (sweep_values IS NULL OR json_valid(sweep_values));
CREATE INDEX jobs_sweep ON jobs(sweep_id, id) -- its list
    WHERE sweep_id IS NOT NULL;
ALTER TABLE jobs ADD COLUMN not_before_ms INTEGER; -- as submitted
ALTER TABLE cycles ADD COLUMN -- the job's not_before, while it waits for that
    starts_ms INTEGER;
-- beat: whose time has come
CREATE INDEX cycles_starts ON cycles(starts_ms) WHERE starts_ms IS NOT NULL;
ALTER TABLE jobs ADD COLUMN -- grows with each change of policy, priority, labels
    edit INTEGER NOT NULL DEFAULT 1;

-- What a worker offers beside its devices, as its claim said.
ALTER TABLE workers ADD COLUMN
    labels TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(labels));
ALTER TABLE workers ADD COLUMN
    memory_bytes INTEGER NOT NULL DEFAULT 0; -- of its host; 0: not known
CREATE INDEX workers_seen ON workers(seen_ms); -- who is known now

-- The order of claims (server/owner.h). since_ms is set exactly while a worker
-- may have the cycle: ready, and its job neither paused nor ended. `owner` and
-- `need` are the job's then, so that an index has them: label owner, and what a
-- worker must have (server/match.h).
ALTER TABLE cycles ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE cycles ADD COLUMN need TEXT NOT NULL DEFAULT '{"device":"auto"}';
ALTER TABLE cycles ADD COLUMN
    since_ms INTEGER CHECK (since_ms IS NULL OR state = 'ready');
UPDATE cycles SET since_ms = coalesce(ready_ms, created_ms)
    WHERE state = 'ready' AND EXISTS (SELECT 1 FROM jobs j
        WHERE j.id = cycles.job_id AND j.state = 'queued');
UPDATE cycles SET
    owner = coalesce((SELECT json_extract(j.labels, '$.owner') FROM jobs j
                      WHERE j.id = cycles.job_id), ''),
    need = (SELECT json_object('device', json_extract(j.runtime, '$.device'),
                               'job', iif(json_extract(j.runtime, '$.exact')
                                          = 'require', j.id, NULL))
            FROM jobs j WHERE j.id = cycles.job_id)
    WHERE state IN ('ready', 'leased');
DROP INDEX cycles_claim;
-- claim: the first of each owner, priority and need, by a seek
CREATE INDEX cycles_claim ON cycles(owner, priority, need, front DESC, id)
    WHERE since_ms IS NOT NULL;

-- When a group of the queue was last served.
CREATE TABLE served (
    owner TEXT NOT NULL,
    priority INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    PRIMARY KEY (owner, priority)
) STRICT, WITHOUT ROWID;

-- What an owner has used, as it stood at at_ms: device-milliseconds that decay,
-- and the leases that add to them.
CREATE TABLE owners (
    owner TEXT NOT NULL PRIMARY KEY,
    use_ms REAL NOT NULL,
    running INTEGER NOT NULL CHECK (running >= 0),
    at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Needs that no known worker meets, and the end of the sentence that their jobs
-- are told. need '': why the server's own workers end at once.
CREATE TABLE unfit (
    need TEXT NOT NULL PRIMARY KEY,
    why TEXT NOT NULL, -- '': somebody fits again
    told INTEGER NOT NULL CHECK (told IN (0, 1)) -- to all of its jobs
) STRICT, WITHOUT ROWID;

-- Does it still take steps? On the clock of heard_mono_ms.
ALTER TABLE leases ADD COLUMN moved_mono_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE leases ADD COLUMN moved_ms INTEGER; -- the same for people
ALTER TABLE leases ADD COLUMN step_ms REAL; -- what a step usually takes
ALTER TABLE leases ADD COLUMN stalled TEXT; -- the sentence, while it does not
-- How its process ended: {"signal" | "exit", "kernel", "last_lines"}.
ALTER TABLE leases ADD COLUMN death TEXT CHECK (death IS NULL
    OR json_valid(death));
