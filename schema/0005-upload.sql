-- pawl.db, schema 5: what is known of uploaded records.

-- What the records of a dataset must look like, when that was said: `record` as
-- in a job spec. Uploads are checked against it as they arrive.
ALTER TABLE datasets ADD COLUMN record TEXT CHECK (record IS NULL OR json_valid(record));
ALTER TABLE datasets ADD COLUMN bad_records TEXT NOT NULL DEFAULT 'fail'
    CHECK (bad_records IN ('fail', 'skip')); -- refuse the shard, or count them
ALTER TABLE datasets ADD COLUMN policy_tolerance REAL NOT NULL DEFAULT 0.01;
ALTER TABLE datasets ADD COLUMN appended INTEGER NOT NULL DEFAULT 0; -- names given
                                        -- to shards of POST …/records so far

-- bytes, lines, records, sha256 and blocks are always those of the text. The
-- file holds it plain, or as zstd frames with a seek table (schema/seekable.h).
ALTER TABLE shards ADD COLUMN form TEXT NOT NULL DEFAULT 'plain'
    CHECK (form IN ('plain', 'zstd'));
ALTER TABLE shards ADD COLUMN stored_bytes INTEGER; -- of the file; NULL: as bytes
ALTER TABLE shards ADD COLUMN checked TEXT; -- digest of the description that its
                                            -- records were checked against
ALTER TABLE shards ADD COLUMN bad INTEGER NOT NULL DEFAULT 0; -- of them did not fit
ALTER TABLE shards ADD COLUMN bad_first TEXT CHECK (bad_first IS NULL
    OR json_valid(bad_first));

-- who else has this text: its index is shared, and goes with the last of them
CREATE INDEX shards_by_text ON shards(sha256);
