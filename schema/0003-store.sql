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

-- Room on disk (server/room.h). What a lease was told last, when it asked for
-- room for the state of a step: the bytes that were missing, or NULL.
ALTER TABLE leases ADD COLUMN room_missing INTEGER;
ALTER TABLE leases ADD COLUMN room_step INTEGER;
-- A cycle whose lease ended without room for its state: since when it waits for
-- that, of which step the state was, what it takes on disk, what was missing.
ALTER TABLE cycles ADD COLUMN parked_ms INTEGER;
ALTER TABLE cycles ADD COLUMN parked_step INTEGER;
ALTER TABLE cycles ADD COLUMN parked_need INTEGER;
ALTER TABLE cycles ADD COLUMN parked_missing INTEGER;
CREATE INDEX cycles_parked ON cycles(parked_ms, id) -- beat: is there room now?
    WHERE parked_ms IS NOT NULL;
