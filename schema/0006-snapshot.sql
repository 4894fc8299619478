-- pawl.db, schema 6: folders that are read in place, and how often a record may
-- be used.

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
    form TEXT NOT NULL CHECK (form IN ('plain', 'zstd')),
    copy TEXT, -- relative to DIR: its text as zstd frames, where the file itself
               -- cannot be read from the middle; NULL: it is read in place
    bytes INTEGER NOT NULL, -- of the text
    lines INTEGER NOT NULL,
    records INTEGER NOT NULL,
    sha256 TEXT NOT NULL CHECK (length(sha256) = 64),
    blocks TEXT NOT NULL,
    UNIQUE (root, name)
) STRICT;

-- Of a cycle whose job has data.max_uses: the records that no earlier cycle of
-- the job had, how many uses that allows, and how many are left when it ends.
ALTER TABLE cycles ADD COLUMN fresh INTEGER;
ALTER TABLE cycles ADD COLUMN take INTEGER; -- records it may train on; NULL: all
ALTER TABLE cycles ADD COLUMN uses_left INTEGER;
