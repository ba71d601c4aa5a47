-- Version 5: jobs that were deleted, with signed statements of who did it.
CREATE TABLE tombstones (
    job       TEXT PRIMARY KEY,
    time_ms   INTEGER NOT NULL,
    statement TEXT NOT NULL                   -- Tombstone
) WITHOUT ROWID;
