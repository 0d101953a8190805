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

-- The leader. Every write of a relay holds a share lock on its row.
CREATE TABLE sluicebox.leader (
  name      text PRIMARY KEY,
  epoch     bigint NOT NULL,
  raised_at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- The checkpoint: the position below which every row is settled or spilled.
CREATE TABLE sluicebox.checkpoint (
  name       text PRIMARY KEY,
  origin     text NOT NULL,
  position   text NOT NULL,
  seq        bigint NOT NULL,
  updated_at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- Spilled rows: rows that left the relay's memory, ordered by seq. lane is the SHA-256 of
-- kind, NULL flag and group.
CREATE TABLE sluicebox.parked (
  name          text NOT NULL,
  outbox        text NOT NULL,
  lane          bytea NOT NULL,
  seq           bigint NOT NULL,
  id            text NOT NULL,
  kind          text NOT NULL,
  message_group text,
  xid           bigint NOT NULL,
  state         text NOT NULL,
  attempts      integer NOT NULL DEFAULT 0,
  error         text,
  payload       bytea,
  PRIMARY KEY (name, outbox, lane, seq)
);
CREATE INDEX parked_id ON sluicebox.parked (name, outbox, id);

INSERT INTO sluicebox.meta (version) VALUES (1);
