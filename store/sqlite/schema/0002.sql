-- Step 2: the lanes that stand still until somebody lets them go. The lane is
-- the SHA-256 of kind, NULL flag and group, as in parked; hold is 'blocked' or
-- 'paused', and a lane may have one of each.
CREATE TABLE sluicebox_hold (
  name          TEXT NOT NULL,
  outbox        TEXT NOT NULL,
  lane          BLOB NOT NULL,
  hold          TEXT NOT NULL,
  kind          TEXT NOT NULL,
  message_group TEXT,
  id            TEXT NOT NULL,
  retry_count   INTEGER NOT NULL,
  reason        TEXT NOT NULL,
  since         TEXT NOT NULL,
  PRIMARY KEY (name, outbox, lane, hold)
) WITHOUT ROWID;
CREATE INDEX sluicebox_hold_id ON sluicebox_hold (name, outbox, id);

UPDATE sluicebox_meta SET version = 2;
