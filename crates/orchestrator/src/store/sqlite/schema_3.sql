-- Version 3: what events said may be dropped before the job is.
ALTER TABLE jobs ADD COLUMN payloads_dropped INTEGER NOT NULL DEFAULT 0;   -- 1 once they are
