package layouts

import "github.com/sluicebox/sluicebox/store"

// namastack is the preset of Namastack Outbox's records. Its own tools take a record without
// a completed_at for one that still blocks its key, so a FAILED record has none.
func namastack() Preset {
	return Preset{
		Name: "namastack", Kind: "event",
		Doc: "The records of Namastack Outbox for Spring. The members of a record's context are attributes.",
		Tables: &store.Layout{
			Columns: store.Columns{
				ID: "id", Group: "record_key", Payload: "payload", Status: "status", Delivered: "completed_at",
				RetryCount: "failure_count", Error: "failure_reason",
			},
			State: store.StateWords, Words: namastackWords(),
			Attributes: []store.AttributeColumn{
				{Column: "record_type", Name: store.AttributeType}, {Column: "created_at", Name: store.AttributeTime},
				{Column: "handler_id", Name: "handler_id"}, {Column: "context", Spread: true},
			},
			OrderBy: []string{"created_at"},
			Filled:  []store.FilledColumn{{Column: "next_retry_at", Fill: store.FillTime}, {Column: "partition_no", Fill: store.FillZero}},
		},
		Documents: namastackDocuments(),
		Schemas: map[Database]Schema{
			Postgres: {Table: "outbox_record", Create: `
CREATE TABLE {table} (
    id             VARCHAR(255) PRIMARY KEY,
    status         VARCHAR(20) NOT NULL,
    record_key     VARCHAR(255) NOT NULL,
    record_type    VARCHAR(255) NOT NULL,
    payload        TEXT NOT NULL,
    context        TEXT,
    created_at     TIMESTAMPTZ NOT NULL,
    completed_at   TIMESTAMPTZ,
    failure_count  INT NOT NULL,
    failure_reason VARCHAR(1000),
    next_retry_at  TIMESTAMPTZ NOT NULL,
    partition_no   INT NOT NULL,
    handler_id     VARCHAR(1000) NOT NULL
);`},
			MySQL: {Table: "outbox_record", Create: `
CREATE TABLE {table} (
    id             VARCHAR(255) PRIMARY KEY,
    status         VARCHAR(20) NOT NULL,
    record_key     VARCHAR(255) NOT NULL,
    record_type    VARCHAR(255) NOT NULL,
    payload        LONGTEXT CHARACTER SET utf8mb4 NOT NULL,
    context        LONGTEXT CHARACTER SET utf8mb4,
    created_at     TIMESTAMP NOT NULL,
    completed_at   TIMESTAMP NULL DEFAULT NULL,
    failure_count  INT NOT NULL,
    failure_reason VARCHAR(1000),
    next_retry_at  TIMESTAMP NOT NULL,
    partition_no   INT NOT NULL,
    handler_id     VARCHAR(1000) NOT NULL
);`},
			MongoDB: {Table: "outbox_records"},
		},
	}
}

func namastackWords() map[store.Status]string {
	return map[store.Status]string{store.Pending: "NEW", store.Completed: "COMPLETED", store.Failed: "FAILED"}
}

func namastackDocuments() *store.Layout {
	return &store.Layout{
		Columns: store.Columns{
			ID: "_id", Group: "recordKey", Payload: "payload", Status: "status", Delivered: "completedAt",
			RetryCount: "failureCount", Error: "failureReason",
		},
		State: store.StateWords, Words: namastackWords(),
		Attributes: []store.AttributeColumn{
			{Column: "recordType", Name: store.AttributeType}, {Column: "createdAt", Name: store.AttributeTime},
			{Column: "handlerId", Name: "handlerId"}, {Column: "context", Spread: true},
		},
		OrderBy: []string{"createdAt"},
		Filled:  []store.FilledColumn{{Column: "nextRetryAt", Fill: store.FillTime}, {Column: "partitionNo", Fill: store.FillZero}},
	}
}
