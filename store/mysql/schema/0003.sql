-- Step 3, for tables that steps 1 and 2 made in an earlier form. Those with ids, kinds and
-- groups are made anew, because these are bytes of any length now: no charset refuses one.
-- What was parked is found by a snapshot of the outboxes, since the checkpoint is forgotten.
UPDATE sluicebox_checkpoint SET origin = '', position = '';
DROP TABLE IF EXISTS sluicebox_parked, sluicebox_hold, sluicebox_replay_row, sluicebox_replay_error;

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

CREATE TABLE IF NOT EXISTS sluicebox_replay_row (
  name          VARBINARY(40) NOT NULL,
  job           VARBINARY(64) NOT NULL,
  outbox        VARBINARY(255) NOT NULL,
  lane          BINARY(20) NOT NULL,
  n             BIGINT NOT NULL,
  id            LONGBLOB NOT NULL,
  kind          LONGBLOB NOT NULL,
  message_group LONGBLOB,
  payload_size  BIGINT NOT NULL,
  committed_at  DATETIME(6),
  payload       LONGBLOB,
  PRIMARY KEY (name, job, outbox, lane, n),
  UNIQUE KEY sluicebox_replay_row_n (name, job, n)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE IF NOT EXISTS sluicebox_replay_error (
  name          VARBINARY(40) NOT NULL,
  job           VARBINARY(64) NOT NULL,
  n             BIGINT NOT NULL,
  outbox        VARBINARY(255) NOT NULL,
  id            LONGBLOB NOT NULL,
  kind          LONGBLOB NOT NULL,
  message_group LONGBLOB,
  reason        LONGTEXT NOT NULL,
  at            DATETIME(6) NOT NULL,
  PRIMARY KEY (name, job, n)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

INSERT INTO sluicebox_meta (one, version) VALUES (1, 3) ON DUPLICATE KEY UPDATE version = 3;
