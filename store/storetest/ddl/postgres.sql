-- flowcatalyst
CREATE TABLE outbox_events (
    id VARCHAR(64) PRIMARY KEY,
    type VARCHAR(20) NOT NULL DEFAULT 'EVENT',
    message_group VARCHAR(255),
    payload TEXT NOT NULL,
    status VARCHAR(20) NOT NULL DEFAULT 'PENDING',
    retry_count INT NOT NULL DEFAULT 0,
    created_at TIMESTAMP NOT NULL DEFAULT clock_timestamp(),
    processed_at TIMESTAMP,
    error_message TEXT
);
CREATE INDEX idx_outbox_events_status ON outbox_events (status, message_group, created_at);
-- outbox-messages
CREATE TABLE outbox_messages (
    id VARCHAR(26) PRIMARY KEY,
    type VARCHAR(20) NOT NULL,
    message_group VARCHAR(255),
    payload TEXT NOT NULL,
    status SMALLINT NOT NULL DEFAULT 0,
    retry_count SMALLINT NOT NULL DEFAULT 0,
    created_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    updated_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    error_message TEXT,
    client_id VARCHAR(26),
    payload_size INT,
    headers JSONB
);
CREATE INDEX ON outbox_messages (status, message_group, created_at) WHERE status IN (0, 9);
-- quoted
CREATE TABLE "Out ""Box""" (
    "table" TIMESTAMPTZ NOT NULL DEFAULT now(),
    "Meta 'data'" JSON,
    "select" TEXT,
    "Order" TEXT PRIMARY KEY,
    "größe" TIMESTAMP,
    "deliveredAt" TIMESTAMPTZ,
    "$1" BIGINT NOT NULL DEFAULT 0
);
