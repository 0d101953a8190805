package layouts

import "github.com/sluicebox/sluicebox/store"

// modulith is the preset of Spring Modulith's event publications since 2.0. Its own tools
// delete every publication that has a completion date, so a FAILED one has none.
func modulith() Preset {
	words := map[store.Status]string{
		store.Pending: "PUBLISHED", store.Processing: "PROCESSING", store.Completed: "COMPLETED", store.Failed: "FAILED",
	}
	return Preset{
		Name: "modulith", Kind: "event",
		Doc: "The event publications of Spring Modulith 2. A publication has no group, so publications have no order among each other.",
		Tables: &store.Layout{
			Columns: store.Columns{ID: "id", Payload: "serialized_event", Status: "status", Delivered: "completion_date"},
			State:   store.StateWords, Words: words,
			Attributes: publicationAttributes(),
			OrderBy:    []string{"publication_date"},
		},
		Documents: &store.Layout{
			Columns: store.Columns{ID: "_id", Payload: "event", Status: "status", Delivered: "completionDate"},
			State:   store.StateWords, Words: words,
			Attributes: []store.AttributeColumn{
				{Column: "event._class", Name: store.AttributeType}, {Column: "publicationDate", Name: store.AttributeTime},
				{Column: "listenerId", Name: "listenerId"},
			},
			OrderBy: []string{"publicationDate"},
		},
		Schemas: map[Database]Schema{
			Postgres: {Table: "event_publication", Create: `
CREATE TABLE {table} (
    id                     UUID PRIMARY KEY,
    listener_id            TEXT NOT NULL,
    event_type             TEXT NOT NULL,
    serialized_event       TEXT NOT NULL,
    publication_date       TIMESTAMPTZ NOT NULL,
    completion_date        TIMESTAMPTZ,
    status                 TEXT,
    completion_attempts    INT,
    last_resubmission_date TIMESTAMPTZ
);`, Indexes: []string{`CREATE INDEX ON {table} (completion_date);`}},
			MySQL: {Table: "EVENT_PUBLICATION", Create: `
CREATE TABLE {table} (
    ID                     VARCHAR(36) PRIMARY KEY,
    LISTENER_ID            VARCHAR(512) NOT NULL,
    EVENT_TYPE             VARCHAR(512) NOT NULL,
    SERIALIZED_EVENT       VARCHAR(4000) NOT NULL,
    PUBLICATION_DATE       TIMESTAMP(6) NOT NULL,
    COMPLETION_DATE        TIMESTAMP(6) NULL DEFAULT NULL,
    STATUS                 VARCHAR(20),
    COMPLETION_ATTEMPTS    INT,
    LAST_RESUBMISSION_DATE TIMESTAMP(6) NULL DEFAULT NULL,
    INDEX EVENT_PUBLICATION_BY_COMPLETION_DATE_IDX (COMPLETION_DATE)
);`},
			MongoDB: {Table: "event_publication"},
		},
	}
}

// modulithV1 is the preset of Spring Modulith's event publications before 2.0, which have no
// status.
func modulithV1() Preset {
	return Preset{
		Name: "modulith-v1", Kind: "event",
		Doc: "The event publications of Spring Modulith 1, and of later releases with `use-legacy-structure`.",
		Tables: &store.Layout{
			Columns:    store.Columns{ID: "id", Payload: "serialized_event", Delivered: "completion_date"},
			State:      store.StateTimestamps,
			Attributes: publicationAttributes(),
			OrderBy:    []string{"publication_date"},
		},
		Schemas: map[Database]Schema{
			Postgres: {Table: "event_publication", Create: `
CREATE TABLE {table} (
    id               UUID PRIMARY KEY,
    listener_id      TEXT NOT NULL,
    event_type       TEXT NOT NULL,
    serialized_event TEXT NOT NULL,
    publication_date TIMESTAMPTZ NOT NULL,
    completion_date  TIMESTAMPTZ
);`},
			MySQL: {Table: "EVENT_PUBLICATION", Create: `
CREATE TABLE {table} (
    ID               VARCHAR(36) PRIMARY KEY,
    LISTENER_ID      VARCHAR(512) NOT NULL,
    EVENT_TYPE       VARCHAR(512) NOT NULL,
    SERIALIZED_EVENT VARCHAR(4000) NOT NULL,
    PUBLICATION_DATE TIMESTAMP(6) NOT NULL,
    COMPLETION_DATE  TIMESTAMP(6) NULL DEFAULT NULL
);`},
		},
	}
}

// publicationAttributes are the attributes of an event publication in a table.
func publicationAttributes() []store.AttributeColumn {
	return []store.AttributeColumn{
		{Column: "event_type", Name: store.AttributeType}, {Column: "publication_date", Name: store.AttributeTime},
		{Column: "listener_id", Name: "listener_id"},
	}
}
