-- Step 5: named checkpoints and replays.

-- How often somebody has asked for one of them, or for a change.
CREATE TABLE sluicebox_wish (
  name TEXT NOT NULL PRIMARY KEY,
  n    INTEGER NOT NULL
) WITHOUT ROWID;

-- The checkpoints that somebody named. Whoever asks for one writes keep and wish
-- ('make' or 'drop'), the leader the rest.
CREATE TABLE sluicebox_named (
  name       TEXT NOT NULL,
  checkpoint TEXT NOT NULL,
  keep       INTEGER NOT NULL,
  wish       TEXT NOT NULL,
  state      TEXT NOT NULL,
  origin     TEXT NOT NULL DEFAULT '',
  position   TEXT NOT NULL DEFAULT '',
  seq        INTEGER NOT NULL DEFAULT 0,
  made_at    TEXT,
  why        TEXT NOT NULL DEFAULT '',
  kept_bytes INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (name, checkpoint)
) WITHOUT ROWID;

-- The replays. Whoever asks for one writes wish ('run', 'pause' or 'cancel') and spec,
-- the leader the rest. nth is the n of the wish, and so their order.
CREATE TABLE sluicebox_replay (
  name            TEXT NOT NULL,
  job             TEXT NOT NULL,
  nth             INTEGER NOT NULL,
  wish            TEXT NOT NULL,
  spec            TEXT NOT NULL,
  state           TEXT NOT NULL,
  why             TEXT NOT NULL DEFAULT '',
  source          TEXT NOT NULL DEFAULT '',
  until_origin    TEXT NOT NULL DEFAULT '',
  until_position  TEXT NOT NULL DEFAULT '',
  until_seq       INTEGER NOT NULL DEFAULT 0,
  until_at        TEXT,
  cursor_position TEXT NOT NULL DEFAULT '',
  cursor_skip     INTEGER NOT NULL DEFAULT 0,
  total           INTEGER NOT NULL DEFAULT 0,
  sent            INTEGER NOT NULL DEFAULT 0,
  skipped         INTEGER NOT NULL DEFAULT 0,
  refused         INTEGER NOT NULL DEFAULT 0,
  asked_at        TEXT NOT NULL,
  began_at        TEXT,
  finished_at     TEXT,
  PRIMARY KEY (name, job)
);

-- The rows of a replay that are still to be sent; n is their order. The lane is that of
-- parked.
CREATE TABLE sluicebox_replay_row (
  name          TEXT NOT NULL,
  job           TEXT NOT NULL,
  outbox        TEXT NOT NULL,
  lane          BLOB NOT NULL,
  n             INTEGER NOT NULL,
  id            TEXT NOT NULL,
  kind          TEXT NOT NULL,
  message_group TEXT,
  payload_size  INTEGER NOT NULL,
  committed_at  TEXT,
  payload       BLOB,
  PRIMARY KEY (name, job, outbox, lane, n)
);
-- Which lanes come next.
CREATE UNIQUE INDEX sluicebox_replay_row_n ON sluicebox_replay_row (name, job, n);

-- The rows of a replay that their receiver refused.
CREATE TABLE sluicebox_replay_error (
  name          TEXT NOT NULL,
  job           TEXT NOT NULL,
  n             INTEGER NOT NULL,
  outbox        TEXT NOT NULL,
  id            TEXT NOT NULL,
  kind          TEXT NOT NULL,
  message_group TEXT,
  reason        TEXT NOT NULL,
  at            TEXT NOT NULL,
  PRIMARY KEY (name, job, n)
) WITHOUT ROWID;

UPDATE sluicebox_meta SET version = 5;
