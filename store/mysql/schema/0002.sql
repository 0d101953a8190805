-- Step 2: named checkpoints and replays.

-- The number of requests for a named checkpoint, a replay or a change of one.
CREATE TABLE IF NOT EXISTS sluicebox_wish (
  name VARBINARY(40) NOT NULL PRIMARY KEY,
  n    BIGINT NOT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Named checkpoints. A request writes keep and wish ('make' or 'drop'), the leader
-- writes the rest.
CREATE TABLE IF NOT EXISTS sluicebox_named (
  name       VARBINARY(40) NOT NULL,
  checkpoint VARBINARY(63) NOT NULL,
  keep       BOOLEAN NOT NULL,
  wish       VARBINARY(16) NOT NULL,
  state      VARBINARY(16) NOT NULL,
  origin     LONGTEXT NOT NULL,
  position   LONGTEXT NOT NULL,
  seq        BIGINT NOT NULL,
  made_at    DATETIME(6),
  why        LONGTEXT NOT NULL,
  kept_bytes BIGINT NOT NULL,
  PRIMARY KEY (name, checkpoint)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Replays. A request writes wish ('run', 'pause' or 'cancel') and spec, the leader
-- writes the rest. nth is the number of the request and orders the replays.
CREATE TABLE IF NOT EXISTS sluicebox_replay (
  name            VARBINARY(40) NOT NULL,
  job             VARBINARY(64) NOT NULL,
  nth             BIGINT NOT NULL,
  wish            VARBINARY(16) NOT NULL,
  spec            LONGTEXT NOT NULL,
  state           VARBINARY(16) NOT NULL,
  why             LONGTEXT NOT NULL,
  source          VARBINARY(16) NOT NULL,
  until_origin    LONGTEXT NOT NULL,
  until_position  LONGTEXT NOT NULL,
  until_seq       BIGINT NOT NULL,
  until_at        DATETIME(6),
  cursor_position LONGTEXT NOT NULL,
  cursor_skip     BIGINT NOT NULL,
  total           BIGINT NOT NULL,
  sent            BIGINT NOT NULL,
  skipped         BIGINT NOT NULL,
  refused         BIGINT NOT NULL,
  asked_at        DATETIME(6) NOT NULL,
  began_at        DATETIME(6),
  finished_at     DATETIME(6),
  PRIMARY KEY (name, job)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Rows of a replay that are still to be sent, ordered by n. lane is as in
-- sluicebox_parked.
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

-- Rows of a replay that the receiver refused.
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

INSERT INTO sluicebox_meta (one, version) VALUES (1, 2) ON DUPLICATE KEY UPDATE version = 2;
