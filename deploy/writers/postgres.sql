-- The outbox of a service, on PostgreSQL. The writers set the first six columns; the last
-- four are the relay's.
CREATE TABLE outbox (
    id            UUID PRIMARY KEY,
    aggregatetype VARCHAR(255) NOT NULL,
    aggregateid   VARCHAR(255) NOT NULL,
    type          VARCHAR(255) NOT NULL,
    payload       JSONB NOT NULL,
    traceparent   VARCHAR(255),
    created_at    TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    sent_at       TIMESTAMPTZ,
    failed_at     TIMESTAMPTZ,
    retries       INT NOT NULL DEFAULT 0,
    error         TEXT
);
CREATE INDEX outbox_unsettled ON outbox (created_at, id) WHERE sent_at IS NULL AND failed_at IS NULL;
