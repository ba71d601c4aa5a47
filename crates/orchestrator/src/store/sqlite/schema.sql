-- Version 1. Ids are texts so that the same schema serves PostgreSQL.
CREATE TABLE jobs (
    id            TEXT PRIMARY KEY,
    kind          TEXT NOT NULL,
    state         TEXT NOT NULL,
    priority      INTEGER NOT NULL,
    wish          TEXT,
    header        TEXT NOT NULL,              -- JobView without its steps
    next_sequence INTEGER NOT NULL,
    head_hash     BLOB NOT NULL,
    owner         TEXT,
    generation    INTEGER NOT NULL DEFAULT 0,
    lease_until   INTEGER NOT NULL DEFAULT 0  -- milliseconds since 1970
) WITHOUT ROWID;
CREATE INDEX jobs_by_kind ON jobs (kind, id DESC);
CREATE INDEX jobs_by_turn ON jobs (state, priority DESC, id);

CREATE TABLE steps (
    job      TEXT NOT NULL,
    position INTEGER NOT NULL,
    view     TEXT NOT NULL,                   -- StepView; a step that was never touched has no row
    PRIMARY KEY (job, position)
) WITHOUT ROWID;

CREATE TABLE events (
    job        TEXT NOT NULL,
    sequence   INTEGER NOT NULL,
    time_ms    INTEGER NOT NULL,
    kind       TEXT NOT NULL,
    call       TEXT,
    attempt    INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    tokens     INTEGER NOT NULL,
    payload    TEXT,                          -- absent when it is a blob, or was dropped
    digest     BLOB NOT NULL,                 -- of the payload
    hash       BLOB NOT NULL,                 -- covers the event before
    PRIMARY KEY (job, sequence)
) WITHOUT ROWID;

CREATE TABLE blobs (
    job    TEXT NOT NULL,
    digest BLOB NOT NULL,
    data   BLOB NOT NULL,                     -- zstd
    PRIMARY KEY (job, digest)
) WITHOUT ROWID;

CREATE TABLE idempotency (
    key    TEXT PRIMARY KEY,
    digest BLOB NOT NULL,
    job    TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX idempotency_by_job ON idempotency (job);
