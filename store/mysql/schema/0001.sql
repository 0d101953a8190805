-- Step 1 of the relay's tables. Every key starts with the relay's name, so that several
-- relays can share the database. Keys are bytes, because a collation may treat different
-- texts as equal.

-- The leader. Every write of a relay holds a share lock on its row.
CREATE TABLE IF NOT EXISTS sluicebox_leader (
  name      VARBINARY(45) NOT NULL PRIMARY KEY,
  epoch     BIGINT NOT NULL,
  raised_at DATETIME(6) NOT NULL,
  holder    VARBINARY(255) NOT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The checkpoint, named checkpoints, replays and their errors, holds, and the count of
-- requests, each a JSON object. The version grows with each write. The type JSON differs
-- between the servers.
CREATE TABLE IF NOT EXISTS sluicebox_record (
  name       VARBINARY(45) NOT NULL,
  kind       VARBINARY(100) NOT NULL,
  record_key VARBINARY(100) NOT NULL,
  body       LONGTEXT NOT NULL,
  version    BIGINT NOT NULL,
  PRIMARY KEY (name, kind, record_key)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The spilled rows in lanes, ordered by n, which is their seq; queue is ''. lane is 4 bytes of
-- the SHA-256 of the kind, followed by 16 bytes of the SHA-256 of kind, NULL flag and group.
-- Each statement names its index: the primary key has the rows of a lane and the lanes,
-- sluicebox_queue_n has a row by its number and the rows in order, sluicebox_queue_id tells
-- whether a row is spilled.
CREATE TABLE IF NOT EXISTS sluicebox_queue (
  name          VARBINARY(45) NOT NULL,
  queue         VARBINARY(100) NOT NULL,
  outbox        VARBINARY(255) NOT NULL,
  lane          BINARY(20) NOT NULL,
  n             BIGINT NOT NULL,
  id            LONGBLOB NOT NULL,
  kind          LONGBLOB NOT NULL,
  message_group LONGBLOB,
  retry_count   BIGINT NOT NULL,
  payload_size  BIGINT NOT NULL,
  committed_at  DATETIME(6),
  payload       LONGBLOB,
  attributes    LONGBLOB,
  PRIMARY KEY (name, queue, outbox, lane, n),
  UNIQUE KEY sluicebox_queue_n (name, queue, n, outbox),
  KEY sluicebox_queue_id (name, outbox, id(512))
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The rows of replays, likewise; queue is the key of the replay's record. No index has their
-- ids, because nothing looks them up by id.
CREATE TABLE IF NOT EXISTS sluicebox_replay (
  name          VARBINARY(45) NOT NULL,
  queue         VARBINARY(100) NOT NULL,
  outbox        VARBINARY(255) NOT NULL,
  lane          BINARY(20) NOT NULL,
  n             BIGINT NOT NULL,
  id            LONGBLOB NOT NULL,
  kind          LONGBLOB NOT NULL,
  message_group LONGBLOB,
  retry_count   BIGINT NOT NULL,
  payload_size  BIGINT NOT NULL,
  committed_at  DATETIME(6),
  payload       LONGBLOB,
  attributes    LONGBLOB,
  PRIMARY KEY (name, queue, outbox, lane, n),
  UNIQUE KEY sluicebox_replay_n (name, queue, n, outbox)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The markers that the relay writes into the binlog and reads back from it.
CREATE TABLE IF NOT EXISTS sluicebox_marker (
  name  VARBINARY(45) NOT NULL PRIMARY KEY,
  token VARBINARY(255) NOT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The version of these tables, in one row. It comes last because CREATE TABLE commits
-- implicitly: an interrupted step runs again.
CREATE TABLE IF NOT EXISTS sluicebox_meta (
  one     TINYINT NOT NULL PRIMARY KEY,
  version INT NOT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

INSERT INTO sluicebox_meta (one, version) VALUES (1, 1) ON DUPLICATE KEY UPDATE version = 1;
