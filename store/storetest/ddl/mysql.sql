-- flowcatalyst
CREATE TABLE outbox_events (
    id VARCHAR(64) PRIMARY KEY,
    type VARCHAR(20) NOT NULL DEFAULT 'EVENT',
    message_group VARCHAR(255),
    payload LONGTEXT NOT NULL,
    status VARCHAR(20) NOT NULL DEFAULT 'PENDING',
    retry_count INT NOT NULL DEFAULT 0,
    created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    processed_at TIMESTAMP(6) NULL,
    error_message TEXT,
    INDEX idx_outbox_events_status (status, message_group, created_at)
) DEFAULT CHARSET=utf8mb4;
-- outbox-messages
CREATE TABLE outbox_messages (
    id VARCHAR(26) PRIMARY KEY,
    type VARCHAR(20) NOT NULL,
    message_group VARCHAR(255),
    payload LONGTEXT NOT NULL,
    status SMALLINT NOT NULL DEFAULT 0,
    retry_count SMALLINT NOT NULL DEFAULT 0,
    created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    updated_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    error_message TEXT,
    client_id VARCHAR(26),
    payload_size INT,
    headers JSON,
    INDEX idx_outbox_messages (status, message_group, created_at)
);
-- quoted
CREATE TABLE `Out "Box"` (
    `table` DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    `Meta 'data'` JSON,
    `select` LONGTEXT,
    `Order` VARCHAR(64) PRIMARY KEY,
    `größe` DATETIME(6),
    `deliveredAt` DATETIME(6),
    `$1` BIGINT NOT NULL DEFAULT 0
) CHARACTER SET utf8mb4;
