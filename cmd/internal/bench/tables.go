package bench

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	mongostore "github.com/sluicebox/sluicebox/store/mongo"
)

// outboxOf returns the outbox table of a layout, with the column types of its users.
func outboxOf(layout string) *outboxTable {
	if layout == layoutNumbers {
		return numbersTable()
	}
	return wordsTable()
}

func numbersTable() *outboxTable {
	return &outboxTable{
		name: "outbox_messages", pending: "0",
		postgres: []string{`CREATE TABLE outbox_messages (
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
)`,
			"CREATE INDEX ON outbox_messages (status, message_group, created_at) WHERE status IN (0, 9)",
			"CREATE INDEX ON outbox_messages (status, created_at) WHERE status IN (0, 9)",
			"CREATE INDEX ON outbox_messages (client_id, status, created_at)"},
		mysql: []string{`CREATE TABLE outbox_messages (
	id VARCHAR(26) PRIMARY KEY,
	type VARCHAR(20) NOT NULL,
	message_group VARCHAR(255),
	payload LONGTEXT NOT NULL,
	status SMALLINT NOT NULL DEFAULT 0,
	retry_count SMALLINT NOT NULL DEFAULT 0,
	created_at DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
	updated_at DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
	error_message TEXT,
	client_id VARCHAR(26),
	payload_size INT,
	headers JSON,
	INDEX (status, message_group, created_at),
	INDEX (status, created_at),
	INDEX (client_id, status, created_at)
)`},
		mongo: collection{mongostore.OutboxMessages(), []bson.D{
			indexKeys("status", "messageGroup", "createdAt"), indexKeys("status", "createdAt"), indexKeys("clientId", "status", "createdAt"),
		}},
	}
}

func wordsTable() *outboxTable {
	return &outboxTable{
		name: "outbox_events", pending: "'PENDING'", completed: "'COMPLETED'",
		postgres: []string{`CREATE TABLE outbox_events (
	id VARCHAR(13) PRIMARY KEY,
	type VARCHAR(20) NOT NULL,
	message_group VARCHAR(255),
	payload TEXT NOT NULL,
	status VARCHAR(20) NOT NULL,
	retry_count INT NOT NULL DEFAULT 0,
	created_at TIMESTAMP NOT NULL,
	processed_at TIMESTAMP,
	error_message TEXT
)`,
			"CREATE INDEX ON outbox_events (status, message_group, created_at)"},
		mysql: []string{`CREATE TABLE outbox_events (
	id VARCHAR(13) PRIMARY KEY,
	type VARCHAR(20) NOT NULL,
	message_group VARCHAR(255),
	payload LONGTEXT NOT NULL,
	status VARCHAR(20) NOT NULL,
	retry_count INT NOT NULL DEFAULT 0,
	created_at TIMESTAMP NOT NULL,
	processed_at TIMESTAMP NULL,
	error_message TEXT,
	INDEX (status, message_group, created_at)
)`},
		mongo: collection{mongostore.FlowCatalyst(), []bson.D{indexKeys("status", "messageGroup", "createdAt")}},
	}
}

// indexKeys returns the keys of a MongoDB index.
func indexKeys(fields ...string) (d bson.D) {
	for _, name := range fields {
		d = append(d, bson.E{Key: name, Value: 1})
	}
	return d
}
