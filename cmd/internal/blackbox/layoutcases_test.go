package blackbox

import (
	"time"

	"github.com/google/uuid"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// layoutCase is the writer of a project and the states that the project expects.
type layoutCase struct {
	layout, variant string
	// id returns a new id; nil if the database assigns the ids.
	id func() string
	// insert is the project's statement for {table}, with the arguments args. remove is a
	// statement for the row $1 in the same transaction. document is the project's document.
	insert, remove string
	args           func(r *layoutRow) []any
	document       func(r *layoutRow) bson.M
	// delivered and failed are conditions for a row after a delivery, and for the row $1 after
	// it was refused.
	delivered, failed                 string
	deliveredDocument, failedDocument bson.M
	// dispatch has further keys of the configuration.
	dispatch string
}

// name names the case in tests.
func (c *layoutCase) name() string {
	if c.variant == "" {
		return c.layout
	}
	return c.layout + " " + c.variant
}

// layoutCases returns a case for each layout.
func layoutCases() []*layoutCase {
	return []*layoutCase{namastackCase(), modulithCase(), postboxCase()}
}

func namastackCase() *layoutCase {
	return &layoutCase{
		layout: "namastack", id: uuid.NewString,
		insert: `INSERT INTO {table} (id, status, record_key, record_type, payload, context, partition_no, created_at, completed_at, failure_count, failure_reason, next_retry_at, handler_id)
			VALUES ($1, 'NEW', $2, 'com.example.OrderPaid', $3, '{"traceId": "1"}', 1, now(), NULL, 0, NULL, now(), 'orders')`,
		args: func(r *layoutRow) []any { return []any{r.ID, r.group(), r.payload()} },
		document: func(r *layoutRow) bson.M {
			now := time.Now()
			return bson.M{
				"_id": r.ID, "status": "NEW", "recordKey": r.group(), "recordType": "com.example.OrderPaid", "payload": r.payload(),
				"partitionNo": 1, "createdAt": now, "failureCount": 0, "nextRetryAt": now, "handlerId": "orders",
			}
		},
		delivered:         "status = 'COMPLETED' AND completed_at IS NOT NULL AND failure_count = 0 AND failure_reason IS NULL",
		failed:            "id = $1 AND status = 'FAILED' AND completed_at IS NULL AND failure_count = 1 AND failure_reason LIKE '%no such customer%'",
		deliveredDocument: bson.M{"status": "COMPLETED", "completedAt": bson.M{"$type": "date"}, "failureCount": 0},
		failedDocument:    bson.M{"status": "FAILED", "completedAt": nil, "failureCount": 1, "failureReason": bson.M{"$regex": "no such customer"}},
	}
}

func modulithCase() *layoutCase {
	return &layoutCase{
		layout: "modulith", id: uuid.NewString,
		insert: `INSERT INTO {table} (id, event_type, listener_id, publication_date, serialized_event, status, completion_attempts, last_resubmission_date)
			VALUES ($1, 'com.example.OrderPaid', 'com.example.Externalizer.on(java.lang.Object)', now(), $2, 'PUBLISHED', 1, now())`,
		args: func(r *layoutRow) []any { return []any{r.ID, r.payload()} },
		document: func(r *layoutRow) bson.M {
			id := uuid.MustParse(r.ID)
			event := bson.M{"_class": "com.example.OrderPaid", "Group": r.Group, "N": r.N, "Bad": r.Bad}
			return bson.M{
				"_id": bson.Binary{Subtype: bson.TypeBinaryUUID, Data: id[:]}, "publicationDate": time.Now(), "listenerId": "orders", "event": event,
				"status": "PUBLISHED", "completionAttempts": 1, "_class": "org.springframework.modulith.events.mongodb.MongoDbEventPublication",
			}
		},
		delivered:         "status = 'COMPLETED' AND completion_date IS NOT NULL",
		failed:            "id = $1 AND status = 'FAILED' AND completion_date IS NULL",
		deliveredDocument: bson.M{"status": "COMPLETED", "completionDate": bson.M{"$type": "date"}},
		failedDocument:    bson.M{"status": "FAILED", "completionDate": nil},
	}
}

func postboxCase() *layoutCase {
	return &layoutCase{
		layout: "postbox", id: uuid.NewString,
		insert: `INSERT INTO {table} (id, tenant_id, partition_id, type, payload, payload_size, headers)
			VALUES ($1, 1001, $2, 'EVENT', $3, length($3), '{"event_type": "order.paid"}')`,
		args:      func(r *layoutRow) []any { return []any{r.ID, r.group(), r.payload()} },
		delivered: "status = 'PROCESSED' AND processed_at IS NOT NULL AND retry_count = 0 AND error_reason IS NULL",
		failed:    "id = $1 AND status = 'FAILED' AND processed_at IS NOT NULL AND retry_count = 1 AND error_reason LIKE '%no such customer%'",
	}
}
