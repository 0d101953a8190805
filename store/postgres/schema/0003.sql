-- Step 3: parked is recreated, because no release wrote to it. xid is 0 if the transaction
-- that inserted the row was visible when the row was spilled, and its 64-bit number
-- otherwise. The payload is stored only for outboxes without a state.
DROP TABLE sluicebox.parked;

-- The table fills and empties, and deleted rows are in front of those that are read: vacuum
-- early.
CREATE TABLE sluicebox.parked (
  seq           bigint NOT NULL,
  xid           bigint NOT NULL,
  retry_count   bigint NOT NULL,
  payload_size  bigint NOT NULL,
  committed_at  timestamptz,
  name          text COLLATE "C" NOT NULL,
  outbox        text COLLATE "C" NOT NULL,
  lane          bytea NOT NULL,
  id            text COLLATE "C" NOT NULL,
  kind          text NOT NULL,
  message_group text,
  payload       bytea,
  PRIMARY KEY (name, outbox, lane, seq)
) WITH (
  autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_insert_threshold = 20000, autovacuum_vacuum_insert_scale_factor = 0.05
);

-- A statement can use the first only if it names the collation, and the second only if it
-- names the expressions. So each statement has a single index to choose from, whatever the
-- statistics say: a lane must never be read through an index that has other lanes too.
CREATE INDEX parked_id ON sluicebox.parked (name COLLATE "POSIX", outbox COLLATE "POSIX", id COLLATE "POSIX");
CREATE INDEX parked_seq ON sluicebox.parked ((name || ''), (seq + 0));

UPDATE sluicebox.meta SET version = 3;
