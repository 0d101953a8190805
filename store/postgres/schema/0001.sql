-- Step 1 of the relay's own tables. Every key starts with the relay's name, so
-- that several relays may share the schema.

-- Only where it is missing: CREATE SCHEMA asks for a right on the database even
-- if the schema is there.
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

-- Who leads. Every write of a relay holds a share lock on its row.
CREATE TABLE sluicebox.leader (
  name      text PRIMARY KEY,
  epoch     bigint NOT NULL,
  raised_at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- The place below which every row is settled or parked.
CREATE TABLE sluicebox.checkpoint (
  name       text PRIMARY KEY,
  origin     text NOT NULL,
  position   text NOT NULL,
  seq        bigint NOT NULL,
  updated_at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- The rows of lanes that were moved out of memory, in the order of seq. The
-- lane is the SHA-256 of kind, NULL flag and group.
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
