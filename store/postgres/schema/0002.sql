-- Step 2: lanes on hold until an operator releases them. lane is as in parked. hold is
-- 'blocked' or 'paused', and a lane may have one of each.
CREATE TABLE sluicebox.hold (
  name          text NOT NULL,
  outbox        text NOT NULL,
  lane          bytea NOT NULL,
  hold          text NOT NULL,
  kind          text NOT NULL,
  message_group text,
  id            text NOT NULL,
  retry_count   bigint NOT NULL,
  reason        text NOT NULL,
  since         timestamptz NOT NULL,
  PRIMARY KEY (name, outbox, lane, hold)
);
CREATE INDEX hold_id ON sluicebox.hold (name, outbox, id);

UPDATE sluicebox.meta SET version = 2;
