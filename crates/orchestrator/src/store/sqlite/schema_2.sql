-- Version 2: keys, and whose a job is.
ALTER TABLE jobs ADD COLUMN submitter TEXT;   -- id of the key that handed it in
CREATE INDEX jobs_by_submitter ON jobs (submitter, id) WHERE submitter IS NOT NULL;

CREATE TABLE keys (
    id     TEXT PRIMARY KEY,
    digest BLOB NOT NULL UNIQUE,              -- of the secret
    key    TEXT NOT NULL                      -- Key
) WITHOUT ROWID;
