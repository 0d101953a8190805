-- flowcatalyst
CREATE TABLE outbox_events (
    id VARCHAR(64) PRIMARY KEY,
    type VARCHAR(20) NOT NULL DEFAULT 'EVENT',
    message_group VARCHAR(255),
    payload TEXT NOT NULL DEFAULT '{}',
    status VARCHAR(20) NOT NULL DEFAULT 'PENDING',
    retry_count INT NOT NULL DEFAULT 0,
    created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    processed_at TIMESTAMP,
    error_message TEXT
);
CREATE INDEX idx_outbox_events_status ON outbox_events (status, message_group, created_at);
-- outbox-messages
CREATE TABLE outbox_messages (
    id VARCHAR(26) PRIMARY KEY,
    type VARCHAR(20) NOT NULL,
    message_group VARCHAR(255),
    payload TEXT,
    status SMALLINT NOT NULL DEFAULT 0,
    retry_count SMALLINT NOT NULL DEFAULT 0,
    created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    updated_at TIMESTAMP,
    error_message TEXT
);
-- quoted
CREATE TABLE "Out ""Box""" (
    "table" TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
    "Meta 'data'" TEXT,
    "select" TEXT,
    "Order" TEXT PRIMARY KEY,
    "größe" TEXT,
    "deliveredAt" INTEGER,
    "$1" INT NOT NULL DEFAULT 0
);
