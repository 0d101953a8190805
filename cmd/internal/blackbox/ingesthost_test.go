package blackbox

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// ingestBox is an outbox that ingest writes, with what differs between databases.
type ingestBox struct {
	outboxes, clients string // of the configuration
	path              string // of the requests
	// message is the nth message of its client, from 1. Each client has a group.
	message func(client, n int) (id string, body []byte)
	// count counts the rows.
	count func() (int, error)
	// each reads the rows. whole is whether all columns have the values of the message.
	each func(take func(id string, created time.Time, whole bool)) error
}

// mongoHost is a replica set with one member. It has no kind.
func mongoHost() host {
	return host{name: "mongo", start: func(t testing.TB, settings map[string]string) (string, ownServer) {
		set := servers.StartMongo(t, 1, settings)
		return set.Database(), set
	}}
}

// ingestHosts returns a PostgreSQL and one of the other databases, or all selected ones.
func ingestHosts(t *testing.T) (all []host) {
	t.Helper()
	others := []host{mongoHost()}
	for _, f := range servers.Flavours() {
		others = append(others, mysqlHost(f))
	}
	for _, version := range servers.Spread(t, servers.Versions()) {
		all = append(all, postgresHost(version))
	}
	return append(all, servers.Spread(t, others)...)
}

// postboxes are two outboxes of the layout postbox.
const postboxes = `
  - {name: postbox, table: postbox_messages, layout: postbox, sink: hooks}
  - {name: other, table: other_messages, layout: postbox, sink: hooks}`

const postboxClients = `
    - {name: shop, token: shop-token, outboxes: [postbox], tenants: [1001]}
    - {name: other, token: other-token, outboxes: [other]}`

// mysqlPostbox is the postbox's table, which its project has for PostgreSQL only.
const mysqlPostbox = `
CREATE TABLE postbox_messages (
    id           VARCHAR(100) PRIMARY KEY,
    tenant_id    BIGINT NOT NULL,
    partition_id VARCHAR(255) NOT NULL,
    type         VARCHAR(50) NOT NULL,
    payload      LONGTEXT NOT NULL,
    payload_size BIGINT NOT NULL,
    status       VARCHAR(50) NOT NULL DEFAULT 'PENDING',
    created_at   DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    processed_at DATETIME(6),
    retry_count  INT DEFAULT 0,
    error_reason TEXT,
    headers      JSON
) DEFAULT CHARSET = utf8mb4;
CREATE INDEX open ON postbox_messages (status, created_at);`

// postboxIn creates two postboxes in a database.
func postboxIn(t *testing.T, c *conn, database string) *ingestBox {
	t.Helper()
	if c.kind.postgres {
		initOutbox(t, "postbox", database)
	} else {
		c.kind.run(t, database, mysqlPostbox)
	}
	c.kind.run(t, database, fmt.Sprintf(map[bool]string{true: "CREATE TABLE %s (LIKE %s INCLUDING ALL)", false: c.kind.like}[c.kind.postgres], "other_messages", "postbox_messages"))
	rows := fmt.Sprintf("SELECT id, %s, payload_size = octet_length(payload) AND %s LIKE '%%order.created%%' FROM postbox_messages",
		fmt.Sprintf(c.kind.asText, "created_at"), fmt.Sprintf(c.kind.asText, "headers"))
	return &ingestBox{
		outboxes: postboxes, clients: postboxClients, path: postboxPath, message: postboxMessage,
		count: func() (n int, err error) {
			err = c.row("SELECT count(*) FROM postbox_messages").Scan(&n)
			return n, err
		},
		each: func(take func(id string, created time.Time, whole bool)) error {
			return c.each(rows, nil, func(scan func(...any) error) error {
				var id, text string
				var whole bool
				if err := scan(&id, &text, &whole); err != nil {
					return err
				}
				created, err := time.Parse("2006-01-02 15:04:05", text)
				take(id, created, whole)
				return err
			})
		},
	}
}

// recordsIn creates a collection of Namastack's records, because no project has a postbox of
// documents. Its requests take the route of any outbox.
func recordsIn(t *testing.T, db *mongo.Database, database string) *ingestBox {
	t.Helper()
	initOutbox(t, "namastack", database)
	records := db.Collection("outbox_records")
	return &ingestBox{
		outboxes: "\n  - {name: records, table: outbox_records, layout: namastack, sink: hooks}",
		clients:  "\n    - {name: shop, token: shop-token, outboxes: [records]}",
		path:     "/api/v1/ingest/records", message: recordMessage,
		count: func() (int, error) {
			n, err := records.CountDocuments(context.Background(), bson.M{})
			return int(n), err
		},
		each: func(take func(id string, created time.Time, whole bool)) error {
			cursor, err := records.Find(context.Background(), bson.M{})
			if err != nil {
				return err
			}
			var all []struct {
				ID      string    `bson:"_id"`
				Group   string    `bson:"recordKey"`
				Payload string    `bson:"payload"`
				Created time.Time `bson:"createdAt"`
				Context struct {
					Event string `bson:"event_type"`
				} `bson:"context"`
			}
			if err := cursor.All(context.Background(), &all); err != nil {
				return err
			}
			for _, r := range all {
				var client, n int
				_, err := fmt.Sscanf(r.ID, "evt-%d-%d", &client, &n)
				whole := err == nil && r.Payload == messagePayload(n) && r.Group == fmt.Sprint("p", client) && r.Context.Event == "order.created"
				take(r.ID, r.Created, whole)
			}
			return nil
		},
	}
}

// messagePayload is the payload of a client's nth message.
func messagePayload(n int) string { return fmt.Sprintf(`{"n": %d, "text": "größer \u0001"}`, n) }

// postboxMessage is the body of the postbox's route.
func postboxMessage(client, n int) (id string, body []byte) {
	id = fmt.Sprintf("evt-%d-%d", client, n)
	body, _ = json.Marshal(map[string]any{ // texts and numbers
		"id": id, "tenantId": 1001, "partitionId": fmt.Sprint("p", client), "type": "EVENT",
		"payload": messagePayload(n), "headers": map[string]any{"event_type": "order.created", "n": n},
	})
	return id, body
}

// recordMessage is a body of the route of any outbox.
func recordMessage(client, n int) (id string, body []byte) {
	id = fmt.Sprintf("evt-%d-%d", client, n)
	body, _ = json.Marshal([]map[string]any{{ // texts and numbers
		"id": id, "group": fmt.Sprint("p", client), "payload": messagePayload(n),
		"attributes": map[string]any{"type": "order", "handlerId": "orders", "event_type": "order.created", "n": n},
	}})
	return id, body
}
