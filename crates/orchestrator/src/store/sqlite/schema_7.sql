-- Version 7: logins that were ended before their time, and links that show one view of a job to others.
CREATE TABLE ended_sessions (
    id       TEXT PRIMARY KEY,
    until_ms INTEGER NOT NULL          -- when it would have ended by itself
) WITHOUT ROWID;

CREATE TABLE shares (
    id       TEXT PRIMARY KEY,
    job      TEXT NOT NULL,
    until_ms INTEGER NOT NULL,
    link     TEXT NOT NULL             -- SharedLink as JSON
) WITHOUT ROWID;
CREATE INDEX shares_by_job ON shares (job);
