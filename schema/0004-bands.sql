-- pawl.db, schema 4: long series, long lists and claims read few rows.

-- Lowest and highest value of each stretch of a series, so that a curve of a
-- million points is drawn from some thousand rows (server/band.h). A stretch of
-- level 1 is 16 steps, that of each level above four times as long; it follows
-- from the rows of `metrics` alone, and is made anew when one of them changes.
CREATE TABLE bands (
    cycle_id INTEGER NOT NULL REFERENCES cycles(id) ON DELETE CASCADE,
    series_id INTEGER NOT NULL,
    level INTEGER NOT NULL CHECK (level BETWEEN 1 AND 5),
    stretch INTEGER NOT NULL, -- step / its width
    points INTEGER NOT NULL CHECK (points > 0), -- rows of metrics
    unfinite INTEGER NOT NULL CHECK (unfinite BETWEEN 0 AND points),
    unfinite_step INTEGER, -- the first that is not finite
    low REAL, low_step INTEGER, -- of several equal ones the first
    high REAL, high_step INTEGER,
    PRIMARY KEY (cycle_id, series_id, level, stretch),
    CHECK ((unfinite > 0) = (unfinite_step IS NOT NULL)),
    CHECK ((unfinite < points) = (low_step IS NOT NULL)),
    CHECK ((unfinite < points) = (high_step IS NOT NULL))
) STRICT, WITHOUT ROWID;

-- what there is so far
INSERT INTO bands SELECT g.cycle_id, g.series_id, 1, g.stretch, g.points,
    g.unfinite, g.unfinite_step, g.low,
    (SELECT m.step FROM metrics m WHERE m.cycle_id = g.cycle_id
     AND m.series_id = g.series_id AND m.value = g.low
     AND m.step BETWEEN 16 * g.stretch AND 16 * g.stretch + 15
     ORDER BY m.step LIMIT 1),
    g.high,
    (SELECT m.step FROM metrics m WHERE m.cycle_id = g.cycle_id
     AND m.series_id = g.series_id AND m.value = g.high
     AND m.step BETWEEN 16 * g.stretch AND 16 * g.stretch + 15
     ORDER BY m.step LIMIT 1)
    FROM (SELECT cycle_id, series_id, step / 16 AS stretch, count(*) AS points,
          sum(value IS NULL) AS unfinite,
          min(iif(value IS NULL, step, NULL)) AS unfinite_step,
          min(value) AS low, max(value) AS high
          FROM metrics GROUP BY cycle_id, series_id, step / 16) g;
INSERT INTO bands SELECT g.cycle_id, g.series_id, 2, g.above, g.points,
    g.unfinite, g.unfinite_step, g.low,
    (SELECT b.low_step FROM bands b WHERE b.cycle_id = g.cycle_id
     AND b.series_id = g.series_id AND b.level = 1 AND b.low = g.low
     AND b.stretch BETWEEN 4 * g.above AND 4 * g.above + 3
     ORDER BY b.stretch LIMIT 1),
    g.high,
    (SELECT b.high_step FROM bands b WHERE b.cycle_id = g.cycle_id
     AND b.series_id = g.series_id AND b.level = 1 AND b.high = g.high
     AND b.stretch BETWEEN 4 * g.above AND 4 * g.above + 3
     ORDER BY b.stretch LIMIT 1)
    FROM (SELECT cycle_id, series_id, stretch / 4 AS above,
          sum(points) AS points, sum(unfinite) AS unfinite,
          min(unfinite_step) AS unfinite_step, min(low) AS low,
          max(high) AS high
          FROM bands WHERE level = 1
          GROUP BY cycle_id, series_id, stretch / 4) g;
INSERT INTO bands SELECT g.cycle_id, g.series_id, 3, g.above, g.points,
    g.unfinite, g.unfinite_step, g.low,
    (SELECT b.low_step FROM bands b WHERE b.cycle_id = g.cycle_id
     AND b.series_id = g.series_id AND b.level = 2 AND b.low = g.low
     AND b.stretch BETWEEN 4 * g.above AND 4 * g.above + 3
     ORDER BY b.stretch LIMIT 1),
    g.high,
    (SELECT b.high_step FROM bands b WHERE b.cycle_id = g.cycle_id
     AND b.series_id = g.series_id AND b.level = 2 AND b.high = g.high
     AND b.stretch BETWEEN 4 * g.above AND 4 * g.above + 3
     ORDER BY b.stretch LIMIT 1)
    FROM (SELECT cycle_id, series_id, stretch / 4 AS above,
          sum(points) AS points, sum(unfinite) AS unfinite,
          min(unfinite_step) AS unfinite_step, min(low) AS low,
          max(high) AS high
          FROM bands WHERE level = 2
          GROUP BY cycle_id, series_id, stretch / 4) g;
INSERT INTO bands SELECT g.cycle_id, g.series_id, 4, g.above, g.points,
    g.unfinite, g.unfinite_step, g.low,
    (SELECT b.low_step FROM bands b WHERE b.cycle_id = g.cycle_id
     AND b.series_id = g.series_id AND b.level = 3 AND b.low = g.low
     AND b.stretch BETWEEN 4 * g.above AND 4 * g.above + 3
     ORDER BY b.stretch LIMIT 1),
    g.high,
    (SELECT b.high_step FROM bands b WHERE b.cycle_id = g.cycle_id
     AND b.series_id = g.series_id AND b.level = 3 AND b.high = g.high
     AND b.stretch BETWEEN 4 * g.above AND 4 * g.above + 3
     ORDER BY b.stretch LIMIT 1)
    FROM (SELECT cycle_id, series_id, stretch / 4 AS above,
          sum(points) AS points, sum(unfinite) AS unfinite,
          min(unfinite_step) AS unfinite_step, min(low) AS low,
          max(high) AS high
          FROM bands WHERE level = 3
          GROUP BY cycle_id, series_id, stretch / 4) g;
INSERT INTO bands SELECT g.cycle_id, g.series_id, 5, g.above, g.points,
    g.unfinite, g.unfinite_step, g.low,
    (SELECT b.low_step FROM bands b WHERE b.cycle_id = g.cycle_id
     AND b.series_id = g.series_id AND b.level = 4 AND b.low = g.low
     AND b.stretch BETWEEN 4 * g.above AND 4 * g.above + 3
     ORDER BY b.stretch LIMIT 1),
    g.high,
    (SELECT b.high_step FROM bands b WHERE b.cycle_id = g.cycle_id
     AND b.series_id = g.series_id AND b.level = 4 AND b.high = g.high
     AND b.stretch BETWEEN 4 * g.above AND 4 * g.above + 3
     ORDER BY b.stretch LIMIT 1)
    FROM (SELECT cycle_id, series_id, stretch / 4 AS above,
          sum(points) AS points, sum(unfinite) AS unfinite,
          min(unfinite_step) AS unfinite_step, min(low) AS low,
          max(high) AS high
          FROM bands WHERE level = 4
          GROUP BY cycle_id, series_id, stretch / 4) g;

-- How many samples of memory a lease sent: to thin them none need be counted.
ALTER TABLE leases ADD COLUMN samples INTEGER NOT NULL DEFAULT 0;
UPDATE leases SET samples = (SELECT count(*) FROM memory m
    WHERE m.job_id = leases.job_id AND m.lease_id = leases.id);

-- GET /v1/jobs, newest first: with what it filters by, so that a page of fifty
-- never reads the specs of those that are not on it.
CREATE INDEX jobs_list ON jobs(id, state, kind, name);

-- A job's labels one by one, for the same list. The triggers keep them.
CREATE TABLE job_labels (
    key TEXT NOT NULL,
    job_id INTEGER NOT NULL REFERENCES jobs(id) ON DELETE CASCADE,
    value TEXT NOT NULL,
    PRIMARY KEY (key, job_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX job_labels_job ON job_labels(job_id); -- foreign key
CREATE TRIGGER jobs_labeled AFTER INSERT ON jobs BEGIN
    INSERT INTO job_labels(key, job_id, value)
        SELECT e.key, NEW.id, e.value FROM json_each(NEW.labels) e;
END;
CREATE TRIGGER jobs_relabeled AFTER UPDATE OF labels ON jobs
    WHEN OLD.labels IS NOT NEW.labels BEGIN
    DELETE FROM job_labels WHERE job_id = NEW.id;
    INSERT INTO job_labels(key, job_id, value)
        SELECT e.key, NEW.id, e.value FROM json_each(NEW.labels) e;
END;
INSERT INTO job_labels(key, job_id, value)
    SELECT e.key, j.id, e.value FROM jobs j, json_each(j.labels) e;

-- claim and beat: what is due, of the few that wait for a time; and which live
-- leases are silent. (cycles_open had no other use, and its IN list cost each
-- change of a cycle a table of its own.)
DROP INDEX cycles_open;
CREATE INDEX cycles_due ON cycles(not_before_ms)
    WHERE not_before_ms IS NOT NULL;
CREATE INDEX leases_heard ON leases(heard_mono_ms, id) WHERE outcome IS NULL;
