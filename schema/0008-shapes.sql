-- pawl.db, schema 8: records that were trained on, but not as they came or not
-- as the padding foresees, so far in a cycle.

ALTER TABLE cycles ADD COLUMN renormalised INTEGER NOT NULL DEFAULT 0; -- policies
                                    -- that did not sum to 1, within the tolerance
-- by dimension: {"count", "longest"}; NULL: none
ALTER TABLE cycles ADD COLUMN exceeded TEXT CHECK (exceeded IS NULL
    OR json_valid(exceeded));
