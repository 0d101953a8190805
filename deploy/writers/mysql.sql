-- The outbox of a service, on MySQL and MariaDB. The writers set the first six columns; the
-- last four are the relay's.
CREATE TABLE outbox (
    id            CHAR(36) PRIMARY KEY,
    aggregatetype VARCHAR(255) NOT NULL,
    aggregateid   VARCHAR(255) NOT NULL,
    type          VARCHAR(255) NOT NULL,
    payload       JSON NOT NULL,
    traceparent   VARCHAR(255),
    created_at    TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    sent_at       TIMESTAMP(6) NULL,
    failed_at     TIMESTAMP(6) NULL,
    retries       INT NOT NULL DEFAULT 0,
    error         TEXT
) DEFAULT CHARSET = utf8mb4;
CREATE INDEX outbox_unsettled ON outbox (sent_at, failed_at, created_at, id);
