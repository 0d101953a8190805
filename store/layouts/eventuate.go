package layouts

import "github.com/sluicebox/sluicebox/store"

// eventuate is the preset of the message table of Eventuate Tram. Ids ascend with time, and
// Eventuate's own reader orders rows by them.
func eventuate() Preset {
	return Preset{
		Name: "eventuate",
		Doc: "The message table of Eventuate Tram, in the form in which the application assigns the ids. In the form with database ids, " +
			"write `columns: {id: dbid}`. The headers, for example `event-type`, are attributes. Rows without a PARTITION_ID have no group.",
		Tables: &store.Layout{
			Columns:   store.Columns{ID: "id", Group: "headers", Payload: "payload", Status: "published"},
			GroupPath: []string{"PARTITION_ID"},
			State:     store.StateNumbers,
			Numbers:   map[store.Status]int{store.Pending: 0, store.Completed: 1},
			Attributes: []store.AttributeColumn{
				{Column: "destination", Name: store.AttributeKind}, {Column: "creation_time", Name: store.AttributeTime},
				{Column: "headers", Spread: true},
			},
			OrderBy: []string{"id"},
			Filled:  []store.FilledColumn{{Column: "creation_time", Fill: store.FillMillis}},
		},
		Schemas: map[Database]Schema{
			Postgres: {Table: "message", Create: `
CREATE TABLE {table} (
    id                VARCHAR(255) PRIMARY KEY,
    destination       TEXT NOT NULL,
    headers           TEXT NOT NULL,
    payload           TEXT NOT NULL,
    published         SMALLINT DEFAULT 0,
    message_partition SMALLINT,
    creation_time     BIGINT
);`},
			MySQL: {Table: "message", Create: `
CREATE TABLE {table} (
    id                VARCHAR(255) PRIMARY KEY,
    destination       LONGTEXT NOT NULL,
    headers           LONGTEXT CHARACTER SET utf8mb4 NOT NULL,
    payload           LONGTEXT CHARACTER SET utf8mb4 NOT NULL,
    published         SMALLINT DEFAULT 0,
    message_partition SMALLINT,
    creation_time     BIGINT
);`},
		},
	}
}
