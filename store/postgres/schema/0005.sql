-- Step 5: named checkpoints and replays.

-- The number of requests for a named checkpoint, a replay or a change of one.
CREATE TABLE sluicebox.wish (
  name text PRIMARY KEY,
  n    bigint NOT NULL
) WITH (fillfactor = 50);

-- Named checkpoints. A request writes keep and wish ('make' or 'drop'), the leader writes
-- the rest.
CREATE TABLE sluicebox.named (
  name       text NOT NULL,
  checkpoint text COLLATE "C" NOT NULL,
  keep       boolean NOT NULL,
  wish       text NOT NULL,
  state      text NOT NULL,
  origin     text NOT NULL DEFAULT '',
  position   text NOT NULL DEFAULT '',
  seq        bigint NOT NULL DEFAULT 0,
  made_at    timestamptz,
  why        text NOT NULL DEFAULT '',
  kept_bytes bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (name, checkpoint)
);

-- Replays. A request writes wish ('run', 'pause' or 'cancel') and spec, the leader writes
-- the rest. nth is the number of the request and orders the replays.
CREATE TABLE sluicebox.replay (
  name            text NOT NULL,
  job             text COLLATE "C" NOT NULL,
  nth             bigint NOT NULL,
  wish            text NOT NULL,
  spec            text NOT NULL,
  state           text NOT NULL,
  why             text NOT NULL DEFAULT '',
  source          text NOT NULL DEFAULT '',
  until_origin    text NOT NULL DEFAULT '',
  until_position  text NOT NULL DEFAULT '',
  until_seq       bigint NOT NULL DEFAULT 0,
  until_at        timestamptz,
  cursor_position text NOT NULL DEFAULT '',
  cursor_skip     bigint NOT NULL DEFAULT 0,
  total           bigint NOT NULL DEFAULT 0,
  sent            bigint NOT NULL DEFAULT 0,
  skipped         bigint NOT NULL DEFAULT 0,
  refused         bigint NOT NULL DEFAULT 0,
  asked_at        timestamptz NOT NULL DEFAULT now(),
  began_at        timestamptz,
  finished_at     timestamptz,
  PRIMARY KEY (name, job)
) WITH (fillfactor = 50);

-- Rows of a replay that are still to be sent, ordered by n. lane and xid are as in parked.
-- The table fills and empties, and deleted rows are in front of those that are read: vacuum
-- early.
CREATE TABLE sluicebox.replay_row (
  n             bigint NOT NULL,
  xid           bigint NOT NULL,
  payload_size  bigint NOT NULL,
  committed_at  timestamptz,
  name          text COLLATE "C" NOT NULL,
  job           text COLLATE "C" NOT NULL,
  outbox        text COLLATE "C" NOT NULL,
  lane          bytea NOT NULL,
  id            text COLLATE "C" NOT NULL,
  kind          text NOT NULL,
  message_group text,
  payload       bytea,
  PRIMARY KEY (name, job, outbox, lane, n)
) WITH (
  autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_insert_threshold = 20000, autovacuum_vacuum_insert_scale_factor = 0.05
);

-- A statement can use it only if it names the expressions: a lane must never be read
-- through an index that has other lanes too.
CREATE UNIQUE INDEX replay_row_n ON sluicebox.replay_row ((name || ''), (job || ''), (n + 0));

-- Rows of a replay that the receiver refused.
CREATE TABLE sluicebox.replay_error (
  name          text NOT NULL,
  job           text COLLATE "C" NOT NULL,
  n             bigint NOT NULL,
  outbox        text NOT NULL,
  id            text NOT NULL,
  kind          text NOT NULL,
  message_group text,
  reason        text NOT NULL,
  at            timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (name, job, n)
);

UPDATE sluicebox.meta SET version = 5;
