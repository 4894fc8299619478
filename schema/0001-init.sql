-- pawl.db, schema 1: everything but the chunks of checkpoints.
--
-- Times end in _ms (wall clock, since 1970) and are for people; only
-- leases.heard_mono_ms is on the monotonic clock, of the server's current run.
-- Sentences that people read stand in `reason`. JSON columns hold what was
-- checked before it came here.

CREATE TABLE datasets (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    created_ms INTEGER NOT NULL
) STRICT;

-- One uploaded file: DIR/datasets/<dataset>/<shard>. Never changed in place.
CREATE TABLE shards (
    id INTEGER PRIMARY KEY,
    dataset_id INTEGER NOT NULL REFERENCES datasets(id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    bytes INTEGER NOT NULL CHECK (bytes >= 0),
    lines INTEGER NOT NULL CHECK (lines >= 0),
    records INTEGER NOT NULL CHECK (records >= 0), -- lines that are not blank
    sha256 TEXT NOT NULL CHECK (length(sha256) = 64),
    blocks TEXT NOT NULL, -- JSON: SHA-256 of each MiB, the last may be shorter
    mtime_ns INTEGER NOT NULL, -- as it was published: a later change shows
    inode INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    UNIQUE (dataset_id, name) -- and the order of a snapshot
) STRICT;

-- Files whose row is gone; unlinked after that was committed.
CREATE TABLE doomed_files (
    path TEXT NOT NULL PRIMARY KEY -- relative to DIR
) STRICT, WITHOUT ROWID;

CREATE TABLE jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT, -- never used again
    name TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('train', 'selfplay')),
    state TEXT NOT NULL CHECK (state IN ('queued', 'running', 'paused',
                                         'completed', 'failed', 'canceled')),
    reason TEXT, -- why it waits, paused, stopped or failed
    spec TEXT NOT NULL CHECK (json_valid(spec)), -- resolved, as submitted
    signature TEXT NOT NULL CHECK (length(signature) = 64),
    dataset TEXT NOT NULL,
    cycles INTEGER NOT NULL CHECK (cycles >= 0), -- 0: each started by POST
    parameters INTEGER NOT NULL,
    -- what may change after submission
    priority INTEGER NOT NULL,
    labels TEXT NOT NULL CHECK (json_valid(labels)),
    runtime TEXT NOT NULL CHECK (json_valid(runtime)),
    runtime_version INTEGER NOT NULL DEFAULT 1,
    threads INTEGER, -- what `auto` became at the first claim
    -- what was asked for and is not done yet
    pause INTEGER NOT NULL DEFAULT 0 CHECK (pause IN (0, 1)),
    cancel INTEGER NOT NULL DEFAULT 0 CHECK (cancel IN (0, 1, 2)), -- 2: at once
    complete INTEGER NOT NULL DEFAULT 0 CHECK (complete IN (0, 1)),
    -- exactness follows the lineage of the state that is trained on
    exact_since INTEGER, -- step from which it is order-exact; NULL: bit-exact
    exact_cycle INTEGER,
    exact_why TEXT,
    inexact INTEGER NOT NULL DEFAULT 0, -- steps trained twice that differed
    model_sha256 TEXT, -- once completed
    error TEXT,        -- JSON of what made it fail
    version INTEGER NOT NULL DEFAULT 1, -- grows with every visible change
    created_ms INTEGER NOT NULL,
    started_ms INTEGER,
    ended_ms INTEGER,
    CHECK ((state IN ('completed', 'failed', 'canceled'))
           = (ended_ms IS NOT NULL))
) STRICT;

CREATE TABLE job_after ( -- job waits until `after` is completed
    job_id INTEGER NOT NULL REFERENCES jobs(id) ON DELETE CASCADE,
    after_id INTEGER NOT NULL,
    PRIMARY KEY (job_id, after_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX job_after_back ON job_after(after_id); -- who waits for this one

CREATE TABLE cycles (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id INTEGER NOT NULL REFERENCES jobs(id) ON DELETE CASCADE,
    number INTEGER NOT NULL CHECK (number >= 1),
    state TEXT NOT NULL CHECK (state IN ('waiting', 'ready', 'leased', 'done',
                                         'failed', 'canceled')),
    phase TEXT NOT NULL DEFAULT 'train',
    reason TEXT,
    spec TEXT CHECK (spec IS NULL OR json_valid(spec)), -- with own data or overrides; or NULL
    token INTEGER NOT NULL DEFAULT 0,   -- of the newest claim
    step_base INTEGER NOT NULL DEFAULT 0, -- steps of the job's earlier cycles
    initial_id INTEGER, -- checkpoint of the cycle before that this one starts from
    -- set when the data is frozen, at first readiness
    data_digest TEXT,
    signature TEXT,
    records INTEGER, -- of one epoch
    epochs INTEGER NOT NULL DEFAULT 1,
    steps INTEGER,
    ready_ms INTEGER,
    -- how far it is, as last reported; back at the checkpoint's after a loss
    step INTEGER NOT NULL DEFAULT 0,
    epoch INTEGER NOT NULL DEFAULT 0,
    records_done INTEGER NOT NULL DEFAULT 0,
    records_per_s REAL,
    skipped INTEGER NOT NULL DEFAULT 0, -- bad records left out
    bad TEXT,                           -- JSON: the first of them
    -- budgets
    saved_step INTEGER NOT NULL DEFAULT 0, -- furthest checkpoint so far
    best_step INTEGER NOT NULL DEFAULT 0,  -- furthest step reported so far
    failures INTEGER NOT NULL DEFAULT 0,
    lost INTEGER NOT NULL DEFAULT 0,
    no_progress INTEGER NOT NULL DEFAULT 0,
    not_before_ms INTEGER, -- back-off
    priority INTEGER NOT NULL, -- the job's, so that an index has the order
    front INTEGER NOT NULL DEFAULT 0 CHECK (front IN (0, 1)), -- it yielded
    checkpoint_id INTEGER, -- the finished state
    model_sha256 TEXT,
    created_ms INTEGER NOT NULL,
    started_ms INTEGER,
    ended_ms INTEGER,
    UNIQUE (job_id, number)
) STRICT;
-- claim: the first of those that are ready
CREATE INDEX cycles_claim ON cycles(priority DESC, front DESC, id)
    WHERE state = 'ready';
-- beat: what is due, of the few that are open
CREATE INDEX cycles_open ON cycles(state)
    WHERE state IN ('waiting', 'ready', 'leased');

-- The frozen data of a cycle: shards with sizes and block digests, as the
-- claim's `data` has them but with paths relative to DIR. Apart because large.
CREATE TABLE snapshots (
    cycle_id INTEGER PRIMARY KEY REFERENCES cycles(id) ON DELETE CASCADE,
    data TEXT NOT NULL CHECK (json_valid(data))
) STRICT;

CREATE TABLE workers (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    claim TEXT NOT NULL UNIQUE, -- made up by the process: names it for good
    name TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    started INTEGER NOT NULL, -- clock ticks since boot
    boot TEXT NOT NULL,
    local INTEGER NOT NULL CHECK (local IN (0, 1)),
    version TEXT NOT NULL,
    cpus INTEGER NOT NULL,
    devices TEXT NOT NULL CHECK (json_valid(devices)),
    library TEXT NOT NULL CHECK (json_valid(library)),
    drain INTEGER NOT NULL DEFAULT 0 CHECK (drain IN (0, 1)),
    seen_ms INTEGER NOT NULL,
    gone_ms INTEGER,
    created_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX workers_process ON workers(pid, started); -- a death's row

CREATE TABLE leases (
    id INTEGER PRIMARY KEY AUTOINCREMENT, -- sweeps compare ids by age
    job_id INTEGER NOT NULL REFERENCES jobs(id) ON DELETE CASCADE,
    cycle_id INTEGER NOT NULL REFERENCES cycles(id) ON DELETE CASCADE,
    token INTEGER NOT NULL,
    worker_id INTEGER NOT NULL, -- its row may be forgotten
    worker TEXT NOT NULL,       -- its name
    claim TEXT NOT NULL UNIQUE,
    outcome TEXT CHECK (outcome IN ('finished', 'yielded', 'failed', 'lost')),
    expired INTEGER NOT NULL DEFAULT 0, -- lost by silence: may still come back
    counted INTEGER NOT NULL DEFAULT 0, -- bits: 1 lost, 2 no_progress
    reason TEXT,
    detail TEXT,
    evidence TEXT,
    error TEXT CHECK (error IS NULL OR json_valid(error)),
    device TEXT NOT NULL,
    threads INTEGER NOT NULL,
    fingerprint TEXT NOT NULL CHECK (json_valid(fingerprint)),
    runtime_version INTEGER NOT NULL, -- that the worker knows
    checkpoint_id INTEGER, -- where it went on; NULL: from the start
    initial_id INTEGER,    -- or from the end of the cycle before
    from_step INTEGER NOT NULL,
    best_before INTEGER NOT NULL, -- the cycle's best_step at the claim
    exact_since INTEGER, exact_cycle INTEGER, exact_why TEXT,
    step INTEGER NOT NULL, -- the last one reported
    epoch INTEGER NOT NULL DEFAULT 0,
    records INTEGER NOT NULL DEFAULT 0,
    micro_batches INTEGER NOT NULL DEFAULT 0,
    stage TEXT NOT NULL DEFAULT 'load',
    seq INTEGER NOT NULL DEFAULT 0, -- of the newest heartbeat
    told TEXT, -- why it was asked to yield
    saved_id INTEGER, -- its newest checkpoint
    holds_prev INTEGER NOT NULL DEFAULT 0, -- chunks held up to here are free
    holds_seq INTEGER NOT NULL DEFAULT 0,
    peak_allocated INTEGER, peak_device INTEGER, peak_rss INTEGER,
    answer TEXT, -- of its release, for a repeat
    started_ms INTEGER NOT NULL,
    heard_ms INTEGER NOT NULL,
    heard_mono_ms INTEGER NOT NULL,
    ended_ms INTEGER,
    CHECK ((outcome IS NULL) = (ended_ms IS NULL))
) STRICT;
CREATE INDEX leases_live ON leases(worker_id) WHERE outcome IS NULL;
CREATE UNIQUE INDEX leases_one ON leases(cycle_id) WHERE outcome IS NULL;
CREATE INDEX leases_expired ON leases(worker_id) WHERE expired = 1; -- a death
CREATE INDEX leases_job ON leases(job_id, id); -- list
CREATE INDEX leases_cycle ON leases(cycle_id); -- foreign key

CREATE TABLE checkpoints (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id INTEGER NOT NULL REFERENCES jobs(id) ON DELETE CASCADE,
    cycle_id INTEGER NOT NULL REFERENCES cycles(id) ON DELETE CASCADE,
    lease_id INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('good', 'quarantined')),
    reason TEXT, -- why quarantined
    step INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    digest TEXT NOT NULL CHECK (length(digest) = 64), -- of the manifest
    previous TEXT,
    manifest TEXT NOT NULL CHECK (json_valid(manifest)),
    bytes INTEGER NOT NULL,
    model_bytes INTEGER NOT NULL,
    model_sha256 TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    exact_since INTEGER, exact_cycle INTEGER, exact_why TEXT,
    load_deaths INTEGER NOT NULL DEFAULT 0, -- in a row, while loading it
    pinned INTEGER NOT NULL DEFAULT 0 CHECK (pinned IN (0, 1)),
    created_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX checkpoints_cycle ON checkpoints(cycle_id, id); -- the newest good
CREATE INDEX checkpoints_job ON checkpoints(job_id, id);     -- list

CREATE TABLE checkpoint_chunks (
    checkpoint_id INTEGER NOT NULL REFERENCES checkpoints(id) ON DELETE CASCADE,
    sha256 BLOB NOT NULL CHECK (length(sha256) = 32),
    PRIMARY KEY (checkpoint_id, sha256)
) STRICT, WITHOUT ROWID;
CREATE INDEX checkpoint_chunks_sha ON checkpoint_chunks(sha256); -- sweep

CREATE TABLE series (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;

-- One value per cycle, series and step: the last lease's word counts.
CREATE TABLE metrics (
    cycle_id INTEGER NOT NULL REFERENCES cycles(id) ON DELETE CASCADE,
    series_id INTEGER NOT NULL,
    step INTEGER NOT NULL, -- after so many steps of the cycle
    value REAL,            -- NULL: not finite
    lease_id INTEGER NOT NULL,
    PRIMARY KEY (cycle_id, series_id, step)
) STRICT, WITHOUT ROWID;

-- Rows past the point at which a later lease resumed: what it reports for the
-- same steps must be the same.
CREATE TABLE metrics_archive (
    cycle_id INTEGER NOT NULL REFERENCES cycles(id) ON DELETE CASCADE,
    series_id INTEGER NOT NULL,
    step INTEGER NOT NULL,
    lease_id INTEGER NOT NULL,
    value REAL,
    PRIMARY KEY (cycle_id, series_id, step, lease_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE memory (
    job_id INTEGER NOT NULL REFERENCES jobs(id) ON DELETE CASCADE,
    lease_id INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    step INTEGER NOT NULL,
    allocated INTEGER, device INTEGER, rss INTEGER,
    available INTEGER, swap INTEGER, -- bytes; NULL: not known
    shapes INTEGER,
    PRIMARY KEY (job_id, lease_id, at_ms, step)
) STRICT, WITHOUT ROWID;

CREATE TABLE logs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id INTEGER NOT NULL REFERENCES jobs(id) ON DELETE CASCADE,
    lease_id INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    level TEXT NOT NULL,
    text TEXT NOT NULL
) STRICT;
CREATE INDEX logs_job ON logs(job_id, id);         -- list
CREATE INDEX logs_same ON logs(lease_id, at_ms);   -- sent twice

-- What happened, for people and for scripts that follow.
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id INTEGER REFERENCES jobs(id) ON DELETE CASCADE,
    cycle INTEGER,
    lease_id INTEGER,
    step INTEGER,
    at_ms INTEGER NOT NULL,
    kind TEXT NOT NULL,
    cause TEXT NOT NULL, -- a sentence
    actor TEXT NOT NULL  -- client, worker NAME, server
) STRICT;
CREATE INDEX events_job ON events(job_id, id);

-- The first answer to a POST that carried an Idempotency-Key.
CREATE TABLE idempotency (
    path TEXT NOT NULL,
    key TEXT NOT NULL,
    body_digest TEXT NOT NULL,
    status INTEGER NOT NULL,
    answer TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    PRIMARY KEY (path, key)
) STRICT, WITHOUT ROWID;

-- Who is logged in to the page: SHA-256 of the cookie's random id.
CREATE TABLE sessions (
    hash TEXT PRIMARY KEY,
    created_ms INTEGER NOT NULL,
    ends_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
