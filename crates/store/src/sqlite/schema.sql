-- Version 8, the oldest that is read. Ids are texts so that the same schema serves PostgreSQL.
CREATE TABLE jobs (
    id               TEXT PRIMARY KEY,
    kind             TEXT NOT NULL,
    state            TEXT NOT NULL,
    priority         INTEGER NOT NULL,
    control_request  TEXT,
    header           TEXT NOT NULL,              -- JobView without its steps
    next_sequence    INTEGER NOT NULL,
    head_hash        BLOB NOT NULL,
    owner            TEXT,
    generation       INTEGER NOT NULL DEFAULT 0,
    lease_until      INTEGER NOT NULL DEFAULT 0, -- milliseconds since 1970
    submitter        TEXT,                       -- id of the key that submitted it
    payloads_dropped INTEGER NOT NULL DEFAULT 0  -- 1 once retention has dropped them
) WITHOUT ROWID;
CREATE INDEX jobs_by_kind ON jobs (kind, id DESC);
CREATE INDEX jobs_by_turn ON jobs (state, priority DESC, id);
CREATE INDEX jobs_by_submitter ON jobs (submitter, id) WHERE submitter IS NOT NULL;

CREATE TABLE steps (
    job      TEXT NOT NULL,
    position INTEGER NOT NULL,
    view     TEXT NOT NULL,                   -- StepView; a step without events has no row
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
    payload    TEXT,                          -- NULL if it is a blob, or was dropped
    digest     BLOB NOT NULL,                 -- of the payload
    hash       BLOB NOT NULL,                 -- covers the previous event
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

CREATE TABLE keys (
    id     TEXT PRIMARY KEY,
    digest BLOB NOT NULL UNIQUE,              -- of the secret
    key    TEXT NOT NULL                      -- Key
) WITHOUT ROWID;

-- Costs of a key, kept when its jobs are deleted.
CREATE TABLE spending (
    submitter   TEXT NOT NULL,                -- id of the key
    minute      INTEGER NOT NULL,             -- since 1970
    nanodollars INTEGER NOT NULL,
    PRIMARY KEY (submitter, minute)
) WITHOUT ROWID;

CREATE TABLE oidc_users (
    id   TEXT PRIMARY KEY,
    role TEXT NOT NULL                        -- at the last login
) WITHOUT ROWID;

-- Signed statements that jobs were deleted.
CREATE TABLE tombstones (
    job       TEXT PRIMARY KEY,
    time_ms   INTEGER NOT NULL,
    statement TEXT NOT NULL                   -- Tombstone
) WITHOUT ROWID;

-- Signed heads of the logs. The heads of a job form a chain.
CREATE TABLE heads (
    job       TEXT NOT NULL,
    sequence  INTEGER NOT NULL,
    hash      TEXT NOT NULL,
    time_ms   INTEGER NOT NULL,
    key       TEXT NOT NULL,
    signature TEXT NOT NULL,
    number    INTEGER NOT NULL,               -- among the heads of the job, from 1
    previous  TEXT,                           -- digest of the previous head
    PRIMARY KEY (job, sequence)
) WITHOUT ROWID;
CREATE INDEX heads_by_time ON heads (time_ms);

-- Signed statements that payloads were dropped, with digests of what was computed from them.
CREATE TABLE drops (
    job            TEXT PRIMARY KEY,
    time_ms        INTEGER NOT NULL,
    key            TEXT NOT NULL,
    signature      TEXT NOT NULL,
    sequence       INTEGER NOT NULL,          -- the last event at that time
    view           TEXT,                      -- digest of the job's row and its steps
    network_bytes  INTEGER NOT NULL,
    network_sha256 TEXT NOT NULL
) WITHOUT ROWID;

-- Logins that ended before they expired.
CREATE TABLE ended_sessions (
    id       TEXT PRIMARY KEY,
    until_ms INTEGER NOT NULL                 -- when it would have expired
) WITHOUT ROWID;

-- Links that show one view of a job to others.
CREATE TABLE shares (
    id       TEXT PRIMARY KEY,
    job      TEXT NOT NULL,
    until_ms INTEGER NOT NULL,
    link     TEXT NOT NULL                    -- SharedLink
) WITHOUT ROWID;
CREATE INDEX shares_by_job ON shares (job);
