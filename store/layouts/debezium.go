package layouts

import "github.com/sluicebox/sluicebox/store"

// debezium is the preset of the table that Debezium's outbox event router reads. The router
// names no time column; Quarkus' extension adds timestamp and tracingspancontext.
func debezium() Preset {
	layout := func(id string) *store.Layout {
		return &store.Layout{
			Columns:   store.Columns{ID: id, Group: "aggregatetype", Payload: "payload"},
			GroupRest: []string{"aggregateid"},
			State:     store.StateNone,
			Attributes: []store.AttributeColumn{
				{Column: "aggregatetype", Name: store.AttributeKind}, {Column: "type", Name: store.AttributeType},
				{Column: "aggregateid", Name: "aggregateid"},
			},
		}
	}
	return Preset{
		Name: "debezium",
		Doc: "The table of Debezium's outbox event router. Its rows have no state: the service keeps them, or deletes each in the " +
			"transaction that inserts it. Quarkus' extension adds two columns: `columns: {time: timestamp, attributes: [tracingspancontext]}`.",
		Tables: layout("id"), Documents: layout("_id"),
		Schemas: map[Database]Schema{
			Postgres: {Table: "outbox", Create: `
CREATE TABLE {table} (
    id            UUID PRIMARY KEY,
    aggregatetype VARCHAR(255) NOT NULL,
    aggregateid   VARCHAR(255) NOT NULL,
    type          VARCHAR(255) NOT NULL,
    payload       JSONB
);`},
			MySQL: {Table: "outbox", Create: `
CREATE TABLE {table} (
    id            CHAR(36) PRIMARY KEY,
    aggregatetype VARCHAR(255) NOT NULL,
    aggregateid   VARCHAR(255) NOT NULL,
    type          VARCHAR(255) NOT NULL,
    payload       JSON
) DEFAULT CHARSET = utf8mb4;`},
			MongoDB: {Table: "outbox"},
		},
	}
}
