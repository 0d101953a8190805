package layouts

import "github.com/sluicebox/sluicebox/store"

// postbox is the preset of FlowCatalyst's postbox.
func postbox() Preset {
	return Preset{
		Name: "postbox",
		Doc:  "The messages of FlowCatalyst's postbox module. Each partition of a tenant is a group. The headers are attributes.",
		Tables: &store.Layout{
			Columns: store.Columns{
				ID: "id", Group: "tenant_id", Payload: "payload", Status: "status", Settled: "processed_at",
				RetryCount: "retry_count", Error: "error_reason",
			},
			GroupRest: []string{"partition_id"},
			State:     store.StateWords,
			Words:     map[store.Status]string{store.Pending: "PENDING", store.Completed: "PROCESSED", store.Failed: "FAILED"},
			Attributes: []store.AttributeColumn{
				{Column: "type", Name: store.AttributeKind}, {Column: "created_at", Name: store.AttributeTime},
				{Column: "tenant_id", Name: "tenant_id"}, {Column: "partition_id", Name: "partition_id"}, {Column: "headers", Spread: true},
			},
			OrderBy: []string{"created_at"},
			Filled:  []store.FilledColumn{{Column: "payload_size", Fill: store.FillSize}},
		},
		Schemas: map[Database]Schema{
			Postgres: {Table: "postbox_messages", Create: `
CREATE TABLE {table} (
    id           TEXT PRIMARY KEY,
    tenant_id    BIGINT NOT NULL,
    partition_id VARCHAR(255) NOT NULL,
    type         VARCHAR(50) NOT NULL,
    payload      TEXT NOT NULL,
    payload_size BIGINT NOT NULL,
    status       VARCHAR(50) NOT NULL DEFAULT 'PENDING',
    created_at   TIMESTAMP NOT NULL DEFAULT now(),
    processed_at TIMESTAMP,
    retry_count  INT DEFAULT 0,
    error_reason TEXT,
    headers      JSONB
);`, Indexes: []string{`CREATE INDEX ON {table} (created_at);`}},
		},
	}
}
