-- Step 1 of the relay's tables. Every key starts with the relay's name, so that
-- several relays can share the database. Keys are bytes, because a collation may treat
-- different texts as equal.

-- The leader. Every write of a relay holds a share lock on its row.
CREATE TABLE IF NOT EXISTS sluicebox_leader (
  name      VARBINARY(40) NOT NULL PRIMARY KEY,
  epoch     BIGINT NOT NULL,
  raised_at DATETIME(6) NOT NULL,
  holder    VARBINARY(255) NOT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The checkpoint: the position below which every row is settled or spilled.
CREATE TABLE IF NOT EXISTS sluicebox_checkpoint (
  name       VARBINARY(40) NOT NULL PRIMARY KEY,
  origin     LONGTEXT NOT NULL,
  position   LONGTEXT NOT NULL,
  seq        BIGINT NOT NULL,
  updated_at DATETIME(6) NOT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The markers that the relay writes into the binlog and reads back from it.
CREATE TABLE IF NOT EXISTS sluicebox_marker (
  name  VARBINARY(40) NOT NULL PRIMARY KEY,
  token VARBINARY(255) NOT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Spilled rows: rows that left the relay's memory, ordered by seq. lane is 4 bytes of
-- the SHA-256 of the kind, followed by 16 bytes of the SHA-256 of kind, NULL flag and
-- group. The payload is stored only for outboxes without a state.
CREATE TABLE IF NOT EXISTS sluicebox_parked (
  name          VARBINARY(40) NOT NULL,
  outbox        VARBINARY(255) NOT NULL,
  lane          BINARY(20) NOT NULL,
  seq           BIGINT NOT NULL,
  id            LONGBLOB NOT NULL,
  kind          LONGBLOB NOT NULL,
  message_group LONGBLOB,
  retry_count   BIGINT NOT NULL,
  payload_size  BIGINT NOT NULL,
  committed_at  DATETIME(6),
  payload       LONGBLOB,
  PRIMARY KEY (name, outbox, lane, seq),
  KEY sluicebox_parked_id (name, outbox, id(512)),
  KEY sluicebox_parked_seq (name, outbox, seq)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Lanes on hold until an operator releases them. hold is 'blocked' or 'paused', and a
-- lane may have one of each.
CREATE TABLE IF NOT EXISTS sluicebox_hold (
  name          VARBINARY(40) NOT NULL,
  outbox        VARBINARY(255) NOT NULL,
  lane          BINARY(20) NOT NULL,
  hold          VARBINARY(16) NOT NULL,
  kind          LONGBLOB NOT NULL,
  message_group LONGBLOB,
  id            LONGBLOB NOT NULL,
  retry_count   BIGINT NOT NULL,
  reason        LONGTEXT NOT NULL,
  since         DATETIME(6) NOT NULL,
  PRIMARY KEY (name, outbox, lane, hold),
  KEY sluicebox_hold_id (name, outbox, id(512))
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The version of these tables, in one row. It comes last because CREATE TABLE commits
-- implicitly: an interrupted step runs again.
CREATE TABLE IF NOT EXISTS sluicebox_meta (
  one     TINYINT NOT NULL PRIMARY KEY,
  version INT NOT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

INSERT INTO sluicebox_meta (one, version) VALUES (1, 1) ON DUPLICATE KEY UPDATE version = 1;
