-- pawl.db, schema 7: what was found when a dataset was looked through.

-- A census of all records: `of` is the digest of which shards with which bytes
-- under which record description, so that a dataset that grew has a new one.
CREATE TABLE censuses (
    dataset_id INTEGER NOT NULL REFERENCES datasets(id) ON DELETE CASCADE,
    of TEXT NOT NULL,
    result TEXT NOT NULL CHECK (json_valid(result)),
    made_ms INTEGER NOT NULL,
    PRIMARY KEY (dataset_id, of)
) STRICT, WITHOUT ROWID;
