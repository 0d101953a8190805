package blackbox

import (
	"encoding/json"
	"fmt"
	"sync/atomic"
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
	// statement for the row $1 in the same transaction. document is the project's document,
	// deleted in the same transaction if remove is set.
	insert, remove string
	args           func(r *layoutRow) []any
	document       func(r *layoutRow) bson.M
	// delivered and failed are conditions for a row after a delivery, and for the row $1 after
	// it was refused.
	delivered, failed                 string
	deliveredDocument, failedDocument bson.M
	// typ is the event type of all rows, and typeField the field of the sink that has it.
	typ, typeField string
	// lanePrefix stands before a row's own group. ungrouped: rows have no group.
	lanePrefix string
	ungrouped  bool
	// stateless: the relay writes nothing into the table.
	stateless bool
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
	return []*layoutCase{
		catboxCase(), crabletCase(), debeziumCase(false), debeziumCase(true), eventuateCase(), modulithCase(), modulithV1Case(),
		namastackCase(), postboxCase(), zeebeCase(),
	}
}

func namastackCase() *layoutCase {
	return &layoutCase{
		layout: "namastack", id: uuid.NewString,
		typ: "com.example.OrderPaid", typeField: "{type}",
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
		typ: "com.example.OrderPaid", typeField: "{type}", ungrouped: true,
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

func modulithV1Case() *layoutCase {
	return &layoutCase{
		layout: "modulith-v1", id: uuid.NewString,
		typ: "com.example.OrderPaid", typeField: "{type}", ungrouped: true,
		insert: `INSERT INTO {table} (id, event_type, listener_id, publication_date, serialized_event)
			VALUES ($1, 'com.example.OrderPaid', 'com.example.Externalizer.on(java.lang.Object)', now(), $2)`,
		args:      func(r *layoutRow) []any { return []any{r.ID, r.payload()} },
		delivered: "completion_date IS NOT NULL", failed: "id = $1 AND completion_date IS NULL",
	}
}

func postboxCase() *layoutCase {
	return &layoutCase{
		layout: "postbox", id: uuid.NewString,
		typ: "order.paid", typeField: "{attr.event_type}", lanePrefix: "1001/",
		insert: `INSERT INTO {table} (id, tenant_id, partition_id, type, payload, payload_size, headers)
			VALUES ($1, 1001, $2, 'EVENT', $3, length($3), '{"event_type": "order.paid"}')`,
		args:      func(r *layoutRow) []any { return []any{r.ID, r.group(), r.payload()} },
		delivered: "status = 'PROCESSED' AND processed_at IS NOT NULL AND retry_count = 0 AND error_reason IS NULL",
		failed:    "id = $1 AND status = 'FAILED' AND processed_at IS NOT NULL AND retry_count = 1 AND error_reason LIKE '%no such customer%'",
	}
}

func zeebeCase() *layoutCase {
	return &layoutCase{
		layout: "zeebe", id: uuid.NewString,
		typ: "Message_OrderPaid", typeField: "{type}",
		insert: `INSERT INTO {table} (message_id, message_name, correlation_id, variables, created_at, updated_at, retry_count, status)
			VALUES ($1, 'Message_OrderPaid', $2, $3, now(), now() - interval '1 day', 0, 'PENDING')`,
		args:      func(r *layoutRow) []any { return []any{r.ID, r.group(), r.payload()} },
		delivered: "status = 'SENT' AND retry_count = 0 AND updated_at > now() - interval '1 hour'",
		failed:    "message_id = $1 AND status = 'PENDING' AND retry_count = 1",
	}
}

func catboxCase() *layoutCase {
	return &layoutCase{
		layout: "catbox", dispatch: "takeover: timeout, processing-timeout-seconds: 2",
		typ: "OrderPaid", typeField: "{type}", lanePrefix: "order/",
		insert: `INSERT INTO {table} (aggregate_type, aggregate_id, event_type, payload, created_at, permanent_failure_count)
			VALUES ('order', $1, 'OrderPaid', $2, now(), 0)`,
		args:      func(r *layoutRow) []any { return []any{r.group(), r.payload()} },
		delivered: "sent_at IS NOT NULL AND in_progress_until IS NULL AND permanent_failure_count = 0 AND last_error IS NULL",
		failed:    "id = $1 AND sent_at IS NULL AND in_progress_until IS NULL",
	}
}

// eventuateIDs counts the ids of Eventuate, which ascend.
var eventuateIDs atomic.Int64

func eventuateCase() *layoutCase {
	return &layoutCase{
		layout: "eventuate", id: func() string { return fmt.Sprintf("%016x-0242ac1100020000", eventuateIDs.Add(1)) },
		typ: "com.example.OrderPaid", typeField: "{attr.event-type}",
		insert: `INSERT INTO {table} (id, destination, headers, payload, creation_time, published) VALUES ($1, 'orders', $2, $3, $4, 0)`,
		args: func(r *layoutRow) []any {
			headers, _ := json.Marshal(map[string]string{"ID": r.ID, "PARTITION_ID": r.group(), "event-type": "com.example.OrderPaid"}) // texts
			return []any{r.ID, string(headers), r.payload(), time.Now().UnixMilli()}
		},
		delivered: "published = 1", failed: "id = $1 AND published = 0",
	}
}

// debeziumCase is the writer that keeps its rows. deleted deletes each row in the
// transaction that inserts it.
func debeziumCase(deleted bool) *layoutCase {
	c := &layoutCase{
		layout: "debezium", stateless: true, id: uuid.NewString,
		typ: "OrderPaid", typeField: "{type}", lanePrefix: "order/",
		insert: `INSERT INTO {table} (id, aggregatetype, aggregateid, type, payload) VALUES ($1, 'order', $2, 'OrderPaid', $3)`,
		args:   func(r *layoutRow) []any { return []any{r.ID, r.group(), r.payload()} },
		document: func(r *layoutRow) bson.M {
			return bson.M{"aggregatetype": "order", "aggregateid": r.group(), "type": "OrderPaid", "payload": bson.M{"Group": r.Group, "N": r.N, "Bad": r.Bad, "Pad": r.Pad}}
		},
	}
	if deleted {
		c.variant = "deleted"
		c.remove = `DELETE FROM {table} WHERE id = $1`
	}
	return c
}

func crabletCase() *layoutCase {
	return &layoutCase{
		layout: "crablet", stateless: true,
		typ: "OrderPaid", typeField: "{type}", ungrouped: true,
		insert: `INSERT INTO {table} (type, tags, data, transaction_id, occurred_at) VALUES ('OrderPaid', ARRAY['order_id=' || $1::text], $2, pg_current_xact_id(), now())`,
		args:   func(r *layoutRow) []any { return []any{r.group(), r.payload()} },
	}
}
