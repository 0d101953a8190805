package layouts

import "github.com/sluicebox/sluicebox/store"

// crablet is the preset of Crablet's event store, which is never updated.
func crablet() Preset {
	return Preset{
		Name: "crablet", Kind: "event",
		Doc: "The event store of Crablet. Events have no state and no group: with `ungrouped: fifo`, the default, they are sent in the order " +
			"of their commits. The relay does not write crablet_outbox_topic_progress.",
		Tables: &store.Layout{
			Columns: store.Columns{ID: "position", Payload: "data", Transaction: "transaction_id"},
			State:   store.StateNone,
			Attributes: []store.AttributeColumn{
				{Column: "type", Name: store.AttributeType}, {Column: "occurred_at", Name: store.AttributeTime},
				{Column: "tags", Name: "tags"}, {Column: "correlation_id", Name: "correlation_id"}, {Column: "causation_id", Name: "causation_id"},
			},
			OrderBy: []string{"position"},
			NewID:   store.IDDatabase,
		},
		Schemas: map[Database]Schema{
			Postgres: {Table: "crablet_events", Create: `
CREATE TABLE {table} (
    type           TEXT NOT NULL CHECK (length(type) <= 64),
    tags           TEXT[] NOT NULL,
    data           JSONB NOT NULL,
    transaction_id XID8 NOT NULL,
    position       BIGSERIAL PRIMARY KEY,
    occurred_at    TIMESTAMPTZ NOT NULL DEFAULT CURRENT_TIMESTAMP,
    correlation_id UUID,
    causation_id   BIGINT
);`, Indexes: []string{
				`CREATE INDEX ON {table} (transaction_id, position);`,
				`CREATE INDEX ON {table} (type, position);`,
				`CREATE INDEX ON {table} USING GIN (tags);`,
				`CREATE INDEX ON {table} (correlation_id) WHERE correlation_id IS NOT NULL;`,
			}},
		},
	}
}
