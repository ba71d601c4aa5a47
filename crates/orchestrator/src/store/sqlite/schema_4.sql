-- Version 4: what keys have spent, kept when the jobs are deleted; and the roles of people with accounts elsewhere.
CREATE TABLE spending (
    submitter   TEXT NOT NULL,                -- id of the key
    minute      INTEGER NOT NULL,             -- since 1970
    nanodollars INTEGER NOT NULL,
    PRIMARY KEY (submitter, minute)
) WITHOUT ROWID;
INSERT INTO spending (submitter, minute, nanodollars)
    SELECT submitter, CAST(json_extract(header, '$.created_ms') AS INTEGER) / 60000,
           SUM(json_extract(header, '$.agent.spent.cost_nanodollars'))
    FROM jobs
    WHERE submitter IS NOT NULL AND json_extract(header, '$.agent.spent.cost_nanodollars') > 0
    GROUP BY 1, 2;

CREATE TABLE people (
    id   TEXT PRIMARY KEY,
    role TEXT NOT NULL                        -- of the last login
) WITHOUT ROWID;
