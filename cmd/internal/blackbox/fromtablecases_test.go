package blackbox

// everydayTable is an outbox table as a service's team has written it.
type everydayTable struct {
	name  string
	on    string // postgres, mysql, mariadb or sqlite
	table string // as --from-table names it
	ddl   string
	// insert inserts a row. {n} is its number, {g} the number of its group, {payload} its
	// payload as a text in quotes and {hex} the payload's bytes in hexadecimal.
	insert string
	// before are rows that the service's own sender has delivered.
	before string
	// answers are the values for keys marked DECIDE.
	answers map[string]string
	// expect are lines of the proposal.
	expect []string
	// open is a condition on rows that are not as the relay leaves delivered ones.
	open string
}

// everydayTables returns the tables of TestInitFromTable.
func everydayTables() []everydayTable {
	return []everydayTable{
		{
			name: "bigint id, jsonb payload, sent_at alone", on: "postgres", table: "orders_outbox",
			ddl: `CREATE TABLE orders_outbox (
				id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer_id bigint NOT NULL, payload jsonb NOT NULL,
				created_at timestamptz NOT NULL DEFAULT now(), sent_at timestamptz)`,
			insert: "INSERT INTO orders_outbox (customer_id, payload) VALUES ({g}, {payload})",
			expect: []string{"kind: orders ", "id: id ", "group: customer_id ", "delivered: sent_at ", "state: timestamps ", "order-by: [created_at] "},
			open:   "sent_at IS NULL",
		},
		{
			name: "uuid id, bytea payload, enum status, aggregate", on: "postgres", table: "shop.outbox",
			ddl: `CREATE SCHEMA shop;
				CREATE TYPE shop.outbox_status AS ENUM ('NEW', 'IN_PROGRESS', 'SENT', 'DEAD');
				CREATE TABLE shop.outbox (
				event_id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_type text NOT NULL, aggregate_id text NOT NULL, event_type text NOT NULL,
				body bytea NOT NULL, headers jsonb, status shop.outbox_status NOT NULL DEFAULT 'NEW', attempts smallint NOT NULL DEFAULT 0,
				last_error text, locked_at timestamptz, occurred_at timestamptz NOT NULL DEFAULT clock_timestamp())`,
			insert: `INSERT INTO shop.outbox (aggregate_type, aggregate_id, event_type, body, headers) VALUES ('order', '{g}', 'paid', '\x{hex}', '{"trace": "t{n}"}')`,
			expect: []string{"group: [aggregate_type, aggregate_id] ", "kind: aggregate_type ", "type: event_type ", "attributes: [headers.*] ",
				"pending: NEW # sure", "processing: IN_PROGRESS # sure", "completed: SENT # sure", "failed: DEAD # sure", "claimed: locked_at ", "retry-count: attempts ", "error: last_error "},
			open: "status <> 'SENT'",
		},
		{
			name: "camelCase", on: "postgres", table: "outboxEvents",
			ddl: `CREATE TABLE "outboxEvents" (
				"eventId" text PRIMARY KEY, "aggregateId" text NOT NULL, "eventType" text NOT NULL, "eventData" json NOT NULL,
				"createdAt" timestamp NOT NULL DEFAULT clock_timestamp(), "publishedAt" timestamp, "retryCount" integer NOT NULL DEFAULT 0)`,
			insert: `INSERT INTO "outboxEvents" ("eventId", "aggregateId", "eventType", "eventData") VALUES ('e-{n}', 'order-{g}', 'OrderPaid', {payload})`,
			expect: []string{"id: eventId ", "payload: eventData ", "group: aggregateId ", "type: eventType ", "delivered: publishedAt ", "retry-count: retryCount "},
			open:   `"publishedAt" IS NULL`,
		},
		{
			name: "partitioned, smallint status", on: "postgres", table: "event_outbox",
			ddl: `CREATE TABLE event_outbox (
				id bigint GENERATED ALWAYS AS IDENTITY, created_at timestamptz NOT NULL DEFAULT now(), stream_id text NOT NULL,
				payload jsonb NOT NULL, status smallint NOT NULL DEFAULT 0, PRIMARY KEY (id, created_at)) PARTITION BY RANGE (created_at);
				CREATE TABLE event_outbox_old PARTITION OF event_outbox FOR VALUES FROM (MINVALUE) TO ('2020-01-01');
				CREATE TABLE event_outbox_new PARTITION OF event_outbox FOR VALUES FROM ('2020-01-01') TO (MAXVALUE);
				COMMENT ON COLUMN event_outbox.status IS '0 = new, 1 = sending, 2 = sent, 3 = failed'`,
			insert: "INSERT INTO event_outbox (stream_id, payload) VALUES ('s{g}', {payload})",
			expect: []string{"id: id # sure: a unique index of the partitioned table begins with it", "pending: 0 # sure", "processing: 1 # sure", "completed: 2 # sure", "failed: 3 # sure"},
			open:   "status <> 2",
		},
		{
			name: "generated column, boolean", on: "postgres", table: "notifications",
			ddl: `CREATE TABLE notifications (
				id bigserial PRIMARY KEY, data jsonb NOT NULL, account_id text GENERATED ALWAYS AS (data->>'Group') STORED,
				published boolean NOT NULL DEFAULT false, error_message text)`,
			insert: "INSERT INTO notifications (data) VALUES ({payload})",
			expect: []string{"kind: notifications ", "group: data # likely: account_id is a generated column", "group-path: Group ", "status: published ", "state: boolean ", "order-by: [id] # sure"},
			open:   "NOT published",
		},
		{
			name: "varchar status", on: "mysql", table: "outbox",
			ddl: `CREATE TABLE outbox (
				id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, message_key VARCHAR(64) NOT NULL, payload JSON NOT NULL,
				status VARCHAR(16) NOT NULL DEFAULT 'queued', created_at DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), delivered_at DATETIME(3) NULL)`,
			insert: "INSERT INTO outbox (message_key, payload) VALUES ('k{g}', {payload})",
			before: "INSERT INTO outbox (message_key, payload, status, delivered_at) VALUES ('k0', '{}', 'done', NOW())",
			expect: []string{"pending: queued # sure: the default of the column", "completed: done # likely: found in a sample of the rows", "delivered: delivered_at "},
			open:   "status <> 'done' OR delivered_at IS NULL",
		},
		{
			name: "uuid text id, enum, generated column", on: "mysql", table: "PaymentEvents",
			ddl: `CREATE TABLE PaymentEvents (
				EventId CHAR(36) PRIMARY KEY, Payload LONGTEXT NOT NULL, OrderId VARCHAR(40) AS (JSON_UNQUOTE(JSON_EXTRACT(Payload, '$.Group'))) STORED,
				State ENUM('Ready', 'Delivered', 'Failed') NOT NULL DEFAULT 'Ready', Retries INT NOT NULL DEFAULT 0, ErrorMessage TEXT, CreatedAt TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6))`,
			insert: "INSERT INTO PaymentEvents (EventId, Payload) VALUES (UUID(), {payload})",
			expect: []string{"id: EventId ", "group: OrderId ", "pending: Ready ", "completed: Delivered # sure", "failed: Failed # sure", "retry-count: Retries ", "error: ErrorMessage "},
			open:   "State <> 'Delivered'",
		},
		{
			name: "tinyint(1), blob payload", on: "mariadb", table: "message_outbox",
			ddl: `CREATE TABLE message_outbox (
				id VARCHAR(26) PRIMARY KEY, topic VARCHAR(100) NOT NULL, message_key VARCHAR(100), message LONGBLOB NOT NULL,
				is_sent TINYINT(1) NOT NULL DEFAULT 0, created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), attempts INT NOT NULL DEFAULT 0)`,
			insert: "INSERT INTO message_outbox (id, topic, message_key, message) VALUES (LPAD({n}, 26, '0'), 'orders', 'k{g}', X'{hex}')",
			expect: []string{"payload: message ", "group: [topic, message_key] ", "kind: topic ", "status: is_sent ", "state: boolean "},
			open:   "NOT is_sent",
		},
		{
			name: "varchar status with a constraint", on: "mariadb", table: "outbox_entries",
			ddl: `CREATE TABLE outbox_entries (
				seq BIGINT AUTO_INCREMENT PRIMARY KEY, entity_type VARCHAR(50) NOT NULL, entity_id BIGINT NOT NULL, content MEDIUMTEXT NOT NULL,
				status VARCHAR(20) NOT NULL CHECK (status IN ('PENDING', 'PROCESSING', 'PROCESSED', 'ERROR')), last_error VARCHAR(500), processing_started_at DATETIME NULL)`,
			insert: "INSERT INTO outbox_entries (entity_type, entity_id, content, status) VALUES ('order', {g}, {payload}, 'PENDING')",
			expect: []string{"id: seq ", "group: [entity_type, entity_id] ", "pending: PENDING # sure: a constraint allows it", "processing: PROCESSING ", "completed: PROCESSED ", "failed: ERROR ", "claimed: processing_started_at "},
			open:   "status <> 'PROCESSED'",
		},
		{
			name: "INTEGER PRIMARY KEY, processed_at", on: "sqlite", table: "outbox",
			ddl: `CREATE TABLE outbox (
				id INTEGER PRIMARY KEY, group_key TEXT, payload TEXT NOT NULL, created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),
				processed_at TEXT, failed_at TEXT, error TEXT)`,
			insert: "INSERT INTO outbox (group_key, payload) VALUES ('{g}', {payload})",
			expect: []string{"group: group_key ", "delivered: processed_at ", "failed: failed_at ", "error: error "},
			open:   "processed_at IS NULL",
		},
		{
			name: "numbers that nothing explains", on: "sqlite", table: "deliveries",
			ddl: `CREATE TABLE deliveries (
				uuid TEXT NOT NULL PRIMARY KEY, body BLOB NOT NULL, customer TEXT NOT NULL, status INTEGER NOT NULL DEFAULT 0, tries INTEGER NOT NULL DEFAULT 0)`,
			insert:  "INSERT INTO deliveries (uuid, body, customer) VALUES ('u{n}', X'{hex}', 'c{g}')",
			answers: map[string]string{"completed": "7"},
			expect:  []string{"id: uuid ", "payload: body ", "group: customer ", "pending: 0 # sure", "completed: 1 # DECIDE"},
			open:    "status <> 7",
		},
		{
			name: "generated column, words of a constraint", on: "sqlite", table: "events",
			ddl: `CREATE TABLE events (
				id TEXT NOT NULL PRIMARY KEY, json JSON NOT NULL, tenant_id TEXT GENERATED ALWAYS AS (json_extract(json, '$.Group')) STORED, type TEXT NOT NULL,
				status TEXT NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'published', 'dead')), timestamp INTEGER NOT NULL DEFAULT (unixepoch()))`,
			insert: "INSERT INTO events (id, json, type) VALUES (printf('%09d', {n}), {payload}, 'paid')",
			expect: []string{"payload: json ", "group: tenant_id ", "type: type ", "time: timestamp ", "pending: pending ", "completed: published # sure", "failed: dead # sure"},
			open:   "status <> 'published'",
		},
	}
}
