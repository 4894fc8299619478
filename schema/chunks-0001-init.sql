-- checkpoints.db, schema 1: the bytes of train states, by content.
--
-- 64 KiB pages and incremental auto-vacuum are set when the file is made. A
-- chunk alone is no checkpoint: a manifest in pawl.db must name it.

CREATE TABLE chunks (
    id INTEGER PRIMARY KEY,
    sha256 BLOB NOT NULL UNIQUE CHECK (length(sha256) = 32),
    bytes INTEGER NOT NULL CHECK (bytes = length(data)),
    data BLOB NOT NULL
) STRICT;

-- Chunks that a lease has put or asked for, and may name in a manifest soon:
-- not to be swept. seq grows, so a lease can let go of the older ones.
CREATE TABLE holds (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    lease_id INTEGER NOT NULL,
    sha256 BLOB NOT NULL CHECK (length(sha256) = 32)
) STRICT;
CREATE INDEX holds_sha ON holds(sha256);     -- sweep
CREATE INDEX holds_lease ON holds(lease_id); -- its newest; letting go
