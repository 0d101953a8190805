-- Step 1 of the relay's tables. Every key begins with the relay's name, so that several
-- relays can share the file.

-- The version of these tables, in one row.
CREATE TABLE sluicebox_meta (
  one     INTEGER PRIMARY KEY DEFAULT 1 CHECK (one = 1),
  version INTEGER NOT NULL
);

-- The leader. Every write of a relay reads its row first. A copy of the file can give the
-- same epoch again, so a write needs the holder too.
CREATE TABLE sluicebox_leader (
  name      TEXT NOT NULL PRIMARY KEY,
  epoch     INTEGER NOT NULL,
  raised_at TEXT NOT NULL,
  holder    TEXT NOT NULL
) WITHOUT ROWID;

-- The checkpoint, named checkpoints, replays and their errors, holds, and the count of
-- requests, each a JSON object. The version grows with each write.
CREATE TABLE sluicebox_record (
  name    TEXT NOT NULL,
  kind    TEXT NOT NULL,
  key     TEXT NOT NULL,
  body    TEXT NOT NULL,
  version INTEGER NOT NULL,
  PRIMARY KEY (name, kind, key)
);

-- Rows in lanes, ordered by n: the spilled rows, whose queue is '' and whose n is their seq,
-- and the rows of each replay, whose queue is the key of its record. The table has a rowid, so that rows are
-- appended and payloads do not lie between keys. Each statement names its index.
CREATE TABLE sluicebox_queue (
  name          TEXT NOT NULL,
  queue         TEXT NOT NULL,
  outbox        TEXT NOT NULL,
  lane          BLOB NOT NULL,
  n             INTEGER NOT NULL,
  id            TEXT NOT NULL,
  kind          TEXT NOT NULL,
  message_group TEXT,
  retry_count   INTEGER NOT NULL,
  payload_size  INTEGER NOT NULL,
  committed_at  TEXT,
  payload       BLOB,
  attributes    BLOB -- JSON
);
-- The rows of a lane, and the lanes.
CREATE INDEX sluicebox_queue_lane ON sluicebox_queue (name, queue, outbox, lane, n);
-- A row by its number, and the rows in order.
CREATE UNIQUE INDEX sluicebox_queue_n ON sluicebox_queue (name, queue, n, outbox);
-- Whether a row is spilled.
CREATE INDEX sluicebox_queue_id ON sluicebox_queue (name, outbox, id) WHERE queue = '';

-- For operators: the replays.
CREATE VIEW sluicebox_jobs AS
SELECT j.name, json_extract(j.body, '$.id') AS job, json_extract(j.body, '$.state') AS state,
  json_extract(s.body, '$.desired') AS desired, json_extract(j.body, '$.reason') AS reason,
  json_extract(j.body, '$.waitsFor') AS waits_for, json_extract(j.body, '$.source') AS source,
  json_extract(j.body, '$.total') AS total, json_extract(j.body, '$.sent') AS sent,
  json_extract(j.body, '$.skipped') AS skipped, json_extract(j.body, '$.refused') AS refused,
  json_extract(j.body, '$.requestedAt') AS requested_at, json_extract(j.body, '$.startedAt') AS started_at,
  json_extract(j.body, '$.finishedAt') AS finished_at
FROM sluicebox_record AS j LEFT JOIN sluicebox_record AS s ON s.name = j.name AND s.kind = 'job-spec' AND s.key = j.key
WHERE j.kind = 'job';

-- For operators: the spilled rows.
CREATE VIEW sluicebox_spilled AS
SELECT name, outbox, kind, message_group, n AS seq, id, retry_count, payload_size, committed_at
FROM sluicebox_queue WHERE queue = '';

INSERT INTO sluicebox_meta (version) VALUES (1);
