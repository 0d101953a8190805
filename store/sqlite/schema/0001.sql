-- Step 1 of the relay's own tables. Every key starts with the relay's name, so
-- that several relays may share the file.

-- The version of these tables, in one row.
CREATE TABLE sluicebox_meta (
  one     INTEGER PRIMARY KEY DEFAULT 1 CHECK (one = 1),
  version INTEGER NOT NULL
);

-- Who leads. Every write of a relay reads its row first.
CREATE TABLE sluicebox_leader (
  name      TEXT NOT NULL PRIMARY KEY,
  epoch     INTEGER NOT NULL,
  raised_at TEXT NOT NULL
) WITHOUT ROWID;

-- The place below which every row is settled or parked.
CREATE TABLE sluicebox_checkpoint (
  name       TEXT NOT NULL PRIMARY KEY,
  origin     TEXT NOT NULL,
  position   TEXT NOT NULL,
  seq        INTEGER NOT NULL,
  updated_at TEXT NOT NULL
) WITHOUT ROWID;

-- The rows of lanes that were moved out of memory, in the order of seq. The
-- lane is the SHA-256 of kind, NULL flag and group.
CREATE TABLE sluicebox_parked (
  name          TEXT NOT NULL,
  outbox        TEXT NOT NULL,
  lane          BLOB NOT NULL,
  seq           INTEGER NOT NULL,
  id            TEXT NOT NULL,
  kind          TEXT NOT NULL,
  message_group TEXT,
  xid           INTEGER NOT NULL,
  state         TEXT NOT NULL,
  attempts      INTEGER NOT NULL DEFAULT 0,
  error         TEXT,
  payload       BLOB,
  PRIMARY KEY (name, outbox, lane, seq)
) WITHOUT ROWID;
CREATE INDEX sluicebox_parked_id ON sluicebox_parked (name, outbox, id);

INSERT INTO sluicebox_meta (version) VALUES (1);
