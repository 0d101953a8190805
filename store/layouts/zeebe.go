package layouts

import "github.com/sluicebox/sluicebox/store"

// zeebe is the preset of the process messages of the outbox example for Zeebe. The example's
// processor repeats a message until it is sent, so its table has no word for FAILED, and its
// status column refuses other words.
func zeebe() Preset {
	return Preset{
		Name: "zeebe", Kind: "message",
		Doc: "The process messages of easy-zeebe's outbox example: one group per correlation id, `type` is the message's name.",
		Tables: &store.Layout{
			Columns: store.Columns{
				ID: "message_id", Group: "correlation_id", Payload: "variables", Status: "status", Settled: "updated_at", RetryCount: "retry_count",
			},
			State: store.StateWords,
			Words: map[store.Status]string{store.Pending: "PENDING", store.Completed: "SENT"},
			Attributes: []store.AttributeColumn{
				{Column: "message_name", Name: store.AttributeType}, {Column: "created_at", Name: store.AttributeTime},
				{Column: "correlation_id", Name: "correlation_id"},
			},
			OrderBy: []string{"created_at"},
			Filled:  []store.FilledColumn{{Column: "updated_at", Fill: store.FillTime}},
		},
		Schemas: map[Database]Schema{
			Postgres: {Table: "process_message", Create: `
CREATE TABLE {table} (
    message_id     UUID PRIMARY KEY,
    message_name   VARCHAR(255) NOT NULL,
    correlation_id VARCHAR(255) NOT NULL,
    variables      TEXT NOT NULL,
    created_at     TIMESTAMP(6) NOT NULL,
    updated_at     TIMESTAMP(6) NOT NULL,
    retry_count    INT NOT NULL,
    status         VARCHAR(255) NOT NULL CHECK (status IN ('PENDING', 'SENT'))
);`},
		},
	}
}
