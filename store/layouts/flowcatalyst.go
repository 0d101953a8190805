package layouts

import "github.com/sluicebox/sluicebox/store"

// flowCatalyst is the preset of the FlowCatalyst outbox processor's two tables.
func flowCatalyst() Preset {
	tables, documents := store.FlowCatalyst(), camel(store.FlowCatalyst())
	documents.Columns.Claimed = "processedAt"
	tables.Filled = []store.FilledColumn{{Column: "type", Fill: store.FillKind}}
	documents.Filled = tables.Filled
	return Preset{
		Name: "flowcatalyst", Doc: "The two tables of the FlowCatalyst outbox processor. The key `kind` says which one a table is.",
		Tables: &tables, Documents: documents,
		Schemas: map[Database]Schema{
			Postgres: {Table: "outbox_events", Create: `
CREATE TABLE {table} (
    id            VARCHAR(13) PRIMARY KEY,
    type          VARCHAR(20) NOT NULL,
    message_group VARCHAR(255),
    payload       TEXT NOT NULL,
    status        VARCHAR(20) NOT NULL,
    retry_count   INT NOT NULL DEFAULT 0,
    created_at    TIMESTAMP NOT NULL,
    processed_at  TIMESTAMP,
    error_message TEXT
);`},
			MySQL: {Table: "outbox_events", Create: `
CREATE TABLE {table} (
    id            VARCHAR(13) PRIMARY KEY,
    type          VARCHAR(20) NOT NULL,
    message_group VARCHAR(255),
    payload       LONGTEXT NOT NULL,
    status        VARCHAR(20) NOT NULL,
    retry_count   INT NOT NULL DEFAULT 0,
    created_at    TIMESTAMP(6) NOT NULL,
    processed_at  TIMESTAMP(6) NULL,
    error_message TEXT
) DEFAULT CHARSET = utf8mb4;`},
			SQLite: {Table: "outbox_events", Create: `
CREATE TABLE {table} (
    id            VARCHAR(13) PRIMARY KEY,
    type          VARCHAR(20) NOT NULL,
    message_group VARCHAR(255),
    payload       TEXT NOT NULL,
    status        VARCHAR(20) NOT NULL,
    retry_count   INT NOT NULL DEFAULT 0,
    created_at    TIMESTAMP NOT NULL,
    processed_at  TIMESTAMP,
    error_message TEXT
);`},
			MongoDB: {Table: "outbox_events"},
		},
	}
}

// outboxMessages is the preset of the table that FlowCatalyst's SDKs write.
func outboxMessages() Preset {
	tables, documents := store.OutboxMessages(), camel(store.OutboxMessages())
	documents.Columns.Kind, documents.Columns.Claimed = "type", "updatedAt"
	return Preset{
		Name: "outbox-messages", Doc: "The table of FlowCatalyst's SDKs.",
		Tables: &tables, Documents: documents,
		Schemas: map[Database]Schema{
			Postgres: {Table: "outbox_messages", Create: `
CREATE TABLE {table} (
    id            VARCHAR(26) PRIMARY KEY,
    type          VARCHAR(20) NOT NULL,
    message_group VARCHAR(255),
    payload       TEXT NOT NULL,
    status        SMALLINT NOT NULL DEFAULT 0,
    retry_count   SMALLINT NOT NULL DEFAULT 0,
    created_at    TIMESTAMPTZ NOT NULL DEFAULT now(),
    updated_at    TIMESTAMPTZ NOT NULL DEFAULT now(),
    error_message TEXT,
    client_id     VARCHAR(26),
    payload_size  INT,
    headers       JSONB
);`},
			MySQL: {Table: "outbox_messages", Create: `
CREATE TABLE {table} (
    id            VARCHAR(26) PRIMARY KEY,
    type          VARCHAR(20) NOT NULL,
    message_group VARCHAR(255),
    payload       LONGTEXT NOT NULL,
    status        SMALLINT NOT NULL DEFAULT 0,
    retry_count   SMALLINT NOT NULL DEFAULT 0,
    created_at    DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    updated_at    DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    error_message TEXT,
    client_id     VARCHAR(26),
    payload_size  INT,
    headers       JSON
) DEFAULT CHARSET = utf8mb4;`},
			SQLite: {Table: "outbox_messages", Create: `
CREATE TABLE {table} (
    id            VARCHAR(26) PRIMARY KEY,
    type          VARCHAR(20) NOT NULL,
    message_group VARCHAR(255),
    payload       TEXT NOT NULL,
    status        SMALLINT NOT NULL DEFAULT 0,
    retry_count   SMALLINT NOT NULL DEFAULT 0,
    created_at    TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    updated_at    TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
    error_message TEXT,
    client_id     VARCHAR(26),
    payload_size  INT,
    headers       TEXT
);`},
			MongoDB: {Table: "outbox_messages"},
		},
	}
}

// outboxMessagesText is the preset of the other form of that collection.
func outboxMessagesText() Preset {
	documents := store.OutboxMessages()
	documents.TextTimes = true
	return Preset{
		Name: "outbox-messages-text", Doc: "The collection of FlowCatalyst's SDKs in its other form: id, snake_case names, and times as RFC 3339 text.",
		Documents: &documents,
		Schemas:   map[Database]Schema{MongoDB: {Table: "outbox_messages"}},
	}
}

// camel returns a layout of FlowCatalyst with the field names of collections with an _id.
func camel(l store.Layout) *store.Layout {
	c := &l.Columns
	c.ID, c.Group, c.RetryCount, c.Error = "_id", "messageGroup", "retryCount", "errorMessage"
	l.OrderBy, l.NewID = []string{"createdAt"}, store.IDUUID
	return &l
}
