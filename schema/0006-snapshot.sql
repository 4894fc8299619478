-- pawl.db, schema 6: folders that are read in place, what must be read before a
-- cycle's data is frozen, and how often a record may be used.

-- A file below a --data-root as it was when it was read last: what a snapshot
-- freezes. Read again when size, mtime or inode differ. Its text ends with its
-- last newline: what follows is not data yet.
CREATE TABLE root_files (
    id INTEGER PRIMARY KEY,
    root TEXT NOT NULL, -- the name that the operator gave
    name TEXT NOT NULL, -- path below it, and the name of the shard
    file_bytes INTEGER NOT NULL, -- size of the file
    mtime_ns INTEGER NOT NULL,
    inode INTEGER NOT NULL,
    settled INTEGER NOT NULL CHECK (settled IN (0, 1)), -- 0: it was written so
               -- shortly before that a later write may bear the same time
    form TEXT NOT NULL CHECK (form IN ('plain', 'zstd')),
    copy TEXT, -- relative to DIR: its text as zstd frames, where the file itself
               -- cannot be read from the middle; NULL: it is read in place
    bytes INTEGER NOT NULL, -- of the text
    lines INTEGER NOT NULL,
    records INTEGER NOT NULL,
    sha256 TEXT NOT NULL CHECK (length(sha256) = 64),
    blocks TEXT NOT NULL CHECK (json_valid(blocks)),
    UNIQUE (root, name)
) STRICT;
CREATE INDEX root_files_by_text ON root_files(sha256); -- who else has its index,
CREATE INDEX root_files_by_copy ON root_files(copy)    -- and its copy
    WHERE copy IS NOT NULL;

-- What a waiting cycle waits for beside time and other jobs. 'data': that must
-- be read first (survey.h); 'records': that no earlier cycle of the job had.
ALTER TABLE cycles ADD COLUMN waits TEXT CHECK (waits IN ('data', 'records'));
ALTER TABLE cycles ADD COLUMN looked TEXT; -- shards there were at the last look
ALTER TABLE cycles ADD COLUMN look_ms INTEGER; -- not again before
ALTER TABLE cycles ADD COLUMN survey TEXT -- what reading found, until it is frozen
    CHECK (survey IS NULL OR json_valid(survey));
CREATE INDEX cycles_waits ON cycles(waits) WHERE waits IS NOT NULL; -- beat: is it there?
CREATE INDEX cycles_frozen ON cycles(id) -- who still reads a copy, an index
    WHERE data_digest IS NOT NULL AND ended_ms IS NULL;

-- Of a cycle whose job has data.max_uses: the records that no earlier cycle of
-- the job had, and how many uses of those there are remain when it has ended.
ALTER TABLE cycles ADD COLUMN fresh INTEGER;
ALTER TABLE cycles ADD COLUMN take INTEGER; -- records it trains on; NULL: all
ALTER TABLE cycles ADD COLUMN uses_left INTEGER;

-- The records of each shard that a job with data.max_uses has had so far.
CREATE TABLE job_records (
    job_id INTEGER NOT NULL REFERENCES jobs(id) ON DELETE CASCADE,
    name TEXT NOT NULL,       -- of the shard
    trained INTEGER NOT NULL, -- records, but those kept for validation
    -- is it that shard, grown, or another one of its name?
    blocks INTEGER NOT NULL,  -- whole ones,
    head TEXT NOT NULL,       -- the digest of their digests,
    records INTEGER NOT NULL, -- all,
    place INTEGER,            -- and the last one's entry in the index of its
    hash INTEGER,             -- lines (line_index.h); NULL: there was none
    PRIMARY KEY (job_id, name)
) STRICT, WITHOUT ROWID;
