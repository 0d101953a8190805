-- Step 1 of the relay's tables. Every key begins with the relay's name, so that several
-- relays can share the schema.

-- Only if it is missing: CREATE SCHEMA requires a privilege on the database even if the
-- schema exists.
DO $$
BEGIN
  IF to_regnamespace('sluicebox') IS NULL THEN
    CREATE SCHEMA sluicebox;
  END IF;
END
$$;

-- The version of these tables, in one row.
CREATE TABLE sluicebox.meta (
  one     boolean PRIMARY KEY DEFAULT true CHECK (one),
  version integer NOT NULL
);

-- The leader. Every write of a relay holds a share lock on its row. Two servers can assign
-- the same epoch, if the first failed before it had replicated it. So a write checks the
-- epoch and the holder.
CREATE TABLE sluicebox.leader (
  name      text PRIMARY KEY,
  epoch     bigint NOT NULL,
  raised_at timestamptz NOT NULL,
  holder    text NOT NULL
) WITH (fillfactor = 50);

-- The checkpoint, named checkpoints, replays and their errors, holds, and the count of
-- requests, each a JSON object in ASCII, which every encoding of a database can store. The
-- version grows with each write.
CREATE TABLE sluicebox.record (
  version bigint NOT NULL,
  name    text COLLATE "C" NOT NULL,
  kind    text COLLATE "C" NOT NULL,
  key     text COLLATE "C" NOT NULL,
  body    json NOT NULL,
  PRIMARY KEY (name, kind, key)
) WITH (fillfactor = 50);

-- Rows in lanes, ordered by n: the spilled rows, whose queue is '' and whose n is their seq,
-- and the rows of each replay, whose queue is the key of its record. Ids, kinds and groups
-- are bytes, in UTF-8, so that no encoding of the database refuses one. lane is 4 bytes of
-- the SHA-256 of the kind, followed by 16 bytes of the SHA-256 of kind, NULL flag and group.
-- xid is 0 if the transaction that inserted the row was visible when the row was written, and
-- its 64-bit number otherwise. The table fills and empties, and deleted rows are in front of
-- those that are read: vacuum early.
CREATE TABLE sluicebox.queue (
  n             bigint NOT NULL,
  xid           bigint NOT NULL,
  retry_count   bigint NOT NULL,
  payload_size  bigint NOT NULL,
  committed_at  timestamptz,
  name          text COLLATE "C" NOT NULL,
  queue         text COLLATE "C" NOT NULL,
  outbox        text COLLATE "C" NOT NULL,
  lane          bytea NOT NULL,
  id            bytea NOT NULL,
  kind          bytea NOT NULL,
  message_group bytea,
  payload       bytea,
  attributes    bytea, -- JSON
  PRIMARY KEY (name, queue, outbox, lane, n)
) WITH (
  autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_insert_threshold = 20000, autovacuum_vacuum_insert_scale_factor = 0.05
);

-- A statement can use the first only if it names the expressions, and the second only if it
-- names the collation. So each statement has a single index to choose from, whatever the
-- statistics say: a lane must never be read through an index that has other lanes too. An
-- index entry cannot exceed about 2700 bytes, so the second has the beginning of the id.
CREATE UNIQUE INDEX queue_n ON sluicebox.queue ((name || ''), (queue || ''), (n + 0), (outbox || ''));
CREATE INDEX queue_id ON sluicebox.queue (name COLLATE "POSIX", outbox COLLATE "POSIX", substr(id, 1, 512)) WHERE queue = '';

-- For operators: the replays. A database in another encoding than UTF-8 may lack a character
-- of a text, and then no field of its object could be read. There the texts keep the escapes
-- of such characters, for example \u2603. chr(1) is in no JSON text.
CREATE VIEW sluicebox.jobs AS
WITH object AS (
  SELECT name, kind, key, CASE WHEN current_setting('server_encoding') = 'UTF8' THEN body
    ELSE replace(replace(replace(body::text, E'\\\\', chr(1)), E'\\u', E'\\\\u'), chr(1), E'\\\\')::json END AS body
  FROM sluicebox.record WHERE kind IN ('job', 'job-spec')
)
SELECT j.name, j.body->>'id' AS job, j.body->>'state' AS state, s.body->>'desired' AS desired, j.body->>'reason' AS reason,
  j.body->>'waitsFor' AS waits_for, j.body->>'source' AS source, (j.body->>'total')::bigint AS total, (j.body->>'sent')::bigint AS sent,
  (j.body->>'skipped')::bigint AS skipped, (j.body->>'refused')::bigint AS refused,
  (j.body->>'requestedAt')::timestamptz AS requested_at, (j.body->>'startedAt')::timestamptz AS started_at,
  (j.body->>'finishedAt')::timestamptz AS finished_at
FROM object AS j LEFT JOIN object AS s ON s.name = j.name AND s.kind = 'job-spec' AND s.key = j.key
WHERE j.kind = 'job';

-- For operators: the spilled rows.
CREATE VIEW sluicebox.spilled AS
SELECT name, outbox, encode(kind, 'escape') AS kind, encode(message_group, 'escape') AS message_group, n AS seq,
  encode(id, 'escape') AS id, retry_count, payload_size, committed_at
FROM sluicebox.queue WHERE queue = '';

INSERT INTO sluicebox.meta (version) VALUES (1);
