-- pawl.db, schema 3: what is kept, and room for it.

-- Jobs of which a checkpoint may have become one too many since retention.c
-- looked last: it looks at these alone. That may be when one was added, set
-- aside, pinned or let go, when the policy changed, and when a lease ended that
-- held on to what it started from.
CREATE TABLE prunable (
    job_id INTEGER PRIMARY KEY REFERENCES jobs(id) ON DELETE CASCADE
) STRICT;
INSERT INTO prunable SELECT DISTINCT job_id FROM checkpoints;
CREATE TRIGGER prunable_saved AFTER INSERT ON checkpoints BEGIN
    INSERT OR IGNORE INTO prunable VALUES (new.job_id);
END;
CREATE TRIGGER prunable_marked AFTER UPDATE OF state, pinned ON checkpoints
BEGIN
    INSERT OR IGNORE INTO prunable VALUES (new.job_id);
END;
CREATE TRIGGER prunable_policy AFTER UPDATE OF runtime ON jobs
    WHEN new.runtime IS NOT old.runtime BEGIN
    INSERT OR IGNORE INTO prunable VALUES (new.id);
END;
CREATE TRIGGER prunable_released AFTER UPDATE OF outcome ON leases
    WHEN new.outcome IS NOT NULL
    AND coalesce(new.checkpoint_id, new.initial_id, new.saved_id) IS NOT NULL
BEGIN
    INSERT OR IGNORE INTO prunable VALUES (new.job_id);
END;
