-- Step 3: the parked rows, made anew: no release has written any. A row is what
-- the log brought, payload only where the outbox may not keep it. The table has
-- a rowid, so that payloads do not lie between the keys: rows are appended as
-- they are parked, and lanes are counted by the key alone.
DROP TABLE sluicebox_parked;
CREATE TABLE sluicebox_parked (
  name          TEXT NOT NULL,
  outbox        TEXT NOT NULL,
  lane          BLOB NOT NULL,
  seq           INTEGER NOT NULL,
  id            TEXT NOT NULL,
  kind          TEXT NOT NULL,
  message_group TEXT,
  xid           INTEGER NOT NULL,
  retry_count   INTEGER NOT NULL,
  payload_size  INTEGER NOT NULL,
  committed_at  TEXT,
  payload       BLOB,
  PRIMARY KEY (name, outbox, lane, seq)
);
-- Whether a row is parked.
CREATE INDEX sluicebox_parked_id ON sluicebox_parked (name, outbox, id);
-- What the log brings again after a restart.
CREATE INDEX sluicebox_parked_seq ON sluicebox_parked (name, outbox, seq);

UPDATE sluicebox_meta SET version = 3;
