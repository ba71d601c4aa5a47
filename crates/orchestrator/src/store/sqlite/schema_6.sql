-- Version 6: signed heads form a chain; statements about dropped payloads have digests of what was computed from them.
-- Both tables were made beside the schema before, so that they may be there already.
CREATE TABLE IF NOT EXISTS heads (
    job       TEXT NOT NULL,
    sequence  INTEGER NOT NULL,
    hash      TEXT NOT NULL,
    time_ms   INTEGER NOT NULL,
    key       TEXT NOT NULL,
    signature TEXT NOT NULL,
    PRIMARY KEY (job, sequence)
) WITHOUT ROWID;
ALTER TABLE heads ADD COLUMN number INTEGER NOT NULL DEFAULT 0;   -- 0 for those of before
ALTER TABLE heads ADD COLUMN previous TEXT;                       -- digest of the head before
CREATE INDEX heads_by_time ON heads (time_ms);

CREATE TABLE IF NOT EXISTS drops (
    job       TEXT PRIMARY KEY,
    time_ms   INTEGER NOT NULL,
    key       TEXT NOT NULL,
    signature TEXT NOT NULL
) WITHOUT ROWID;
ALTER TABLE drops ADD COLUMN sequence INTEGER NOT NULL DEFAULT 0;   -- the last event then; 0 for those of before
ALTER TABLE drops ADD COLUMN view TEXT;                             -- digest of the job's row and its steps
ALTER TABLE drops ADD COLUMN network_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE drops ADD COLUMN network_sha256 TEXT NOT NULL DEFAULT '';
