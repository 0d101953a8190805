package blackbox

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// blobs relays tables of bytes to webhooks, each in another format, and to the platform.
const blobs = `
name: %s
source: {url: %q, mode: %[5]s, poll-interval: 20ms}
outboxes:
  - {table: raw, sink: raw, layout: custom, kind: blob, state: timestamps, columns: &columns {id: id, group: grp, payload: body, delivered: sent_at, failed: dead_at, error: why}, order-by: [made]}
  - {table: event, sink: event, layout: custom, kind: blob, state: timestamps, columns: *columns, order-by: [made]}
  - {table: list, sink: list, layout: custom, kind: blob, state: timestamps, columns: *columns, order-by: [made]}
  - {table: headers, sink: headers, layout: custom, kind: blob, state: timestamps, columns: *columns, order-by: [made]}
  - {table: batch, sink: batch, layout: custom, kind: blob, state: timestamps, columns: *columns, order-by: [made]}
  - {table: platform, sink: platform, layout: custom, kind: EVENT, state: timestamps, columns: *columns, order-by: [made]}
sinks:
  raw: {type: webhook, url: %[3]s/raw, content-type: application/octet-stream}
  event: {type: webhook, url: %[3]s/event, format: cloudevents-structured, cloudevents-source: /s}
  list: {type: webhook, url: %[3]s/list, format: json-array}
  headers: {type: webhook, url: %[3]s/headers, format: cloudevents, cloudevents-source: /s, content-type: application/octet-stream}
  batch: {type: webhook, url: %[3]s/batch, format: cloudevents-batch, cloudevents-source: /s, api-batch-size: 1}
  platform: {type: flowcatalyst, api-base-url: %[3]s, api-batch-size: 1}
dispatch: {max-retries: 1, backoff: {initial: 20ms, max: 100ms}}
admin: {listen: %[4]s}
`

// blob is a payload, as SQL and as it should arrive.
type blob struct {
	id        string
	pg, mysql string
	// raw is the body in format raw. event is the end of an event, and list is the body of a
	// list. A text that begins with a blank is the error of the row instead.
	raw         []byte
	event, list string
}

func allBlobs() []blob {
	large := bytes.Repeat([]byte("\x00\xff\r\n"), 10<<18)
	const empty, bytesText = " payload is empty and not JSON", " payload is not UTF-8 and so not JSON"
	based := func(b []byte) string { return `,"data_base64":"` + base64.StdEncoding.EncodeToString(b) + `"}` }
	return []blob{
		{"null", "NULL", "NULL", nil, `"type":"blob"}`, empty},
		{"empty", "''", "''", nil, `"type":"blob"}`, empty},
		{"bytes", `'\x00ff'`, "x'00ff'", []byte("\x00\xff"), based([]byte("\x00\xff")), bytesText},
		{"latin1", `'\x22ff22'`, "x'22ff22'", []byte("\"\xff\""), based([]byte("\"\xff\"")), bytesText},
		{"large", "decode(repeat('00ff0d0a', 10 << 18), 'hex')", "repeat(x'00ff0d0a', 10 << 18)", large, based(large), bytesText},
		{"text", "'no json'", "'no json'", []byte("no json"), " payload is not JSON", " payload is not JSON"},
		{"json", `'{"a": 1.0}'`, `'{"a": 1.0}'`, []byte(`{"a": 1.0}`), `,"data":{"a": 1.0}}`, `[{"a": 1.0}]`},
	}
}

// want returns the end of the body that a table sends for a payload, or its error.
func (b *blob) want(table string) string {
	switch table {
	case "event":
		return b.event
	case "batch":
		if strings.HasPrefix(b.event, " ") {
			return b.event
		}
		return b.event + "]"
	case "list":
		return b.list
	case "platform":
		if strings.HasPrefix(b.list, " ") {
			return " not sent: payload"
		}
		return b.list
	}
	return string(b.raw) // of raw and headers
}

// blobTables are the tables of blobs.
func blobTables() []string { return []string{"raw", "event", "list", "headers", "batch", "platform"} }

// blobBodies are the bodies of requests by table and id.
type blobBodies struct {
	mu  sync.Mutex
	all map[string][]byte
}

func (b *blobBodies) take(r *sinktest.Request) sinktest.Answer {
	b.mu.Lock()
	defer b.mu.Unlock()
	table := strings.TrimPrefix(r.Path, "/")
	if strings.HasPrefix(table, "api/") {
		table = "platform"
	}
	b.all[table+"/"+cmp.Or(r.Header.Get("Webhook-Id"), r.Header.Get("Idempotency-Key"))] = r.Body
	return sinktest.Answer{}
}

// Payloads of any bytes arrive as they are, from the log, from the table and for a replay. A row
// whose payload cannot be part of the format is FAILED with the reason, and the rows behind it
// go on.
func TestPayloadsOfAnyBytes(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"stream", "poll"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			onHosts(t, servers.Spread(t, hosts()), func(t *testing.T, h host) { testBlobs(t, h, mode) })
		})
	}
}

func testBlobs(t *testing.T, h host, mode string) {
	database := h.database(t)
	at, now, bytea := "timestamptz", "now()", "bytea"
	if !h.kind.postgres {
		at, now, bytea = "datetime(6)", "now(6)", "longblob"
	}
	conn, to, bodies := connect(t, database), sinktest.NewReceiver(t), blobBodies{all: map[string][]byte{}}
	to.Script(bodies.take)
	for _, table := range blobTables() {
		h.kind.run(t, database, fmt.Sprintf(`CREATE TABLE %s (id VARCHAR(64) PRIMARY KEY, grp VARCHAR(64) NOT NULL, body %s,
			made %[3]s NOT NULL DEFAULT %[4]s, sent_at %[3]s, dead_at %[3]s, why TEXT)`, table, bytea, at, now))
	}
	r := start(t, fmt.Sprintf(blobs, nameFor(database), database, to.URL(), adminKey, mode))
	r.waitFor("source connected")
	for _, b := range allBlobs() {
		value := b.pg
		if !h.kind.postgres {
			value = b.mysql
		}
		for _, table := range blobTables() {
			if _, err := conn.exec(fmt.Sprintf("INSERT INTO %s (id, grp, body) VALUES ('%s', 'g', %s)", table, b.id, value)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, table := range blobTables() {
		awaitZero(t, "rows of "+table+" are not settled", func() int {
			return count(t, conn, "SELECT count(*) FROM "+table+" WHERE sent_at IS NULL AND dead_at IS NULL")
		})
	}
	checkBlobs(t, conn, &bodies)

	bodies.mu.Lock()
	clear(bodies.all)
	bodies.mu.Unlock()
	if job := r.replay("--since=1h", "--source=table"); job.code != 0 {
		t.Errorf("the replay ends with code %d: %s", job.code, job.stderr)
	}
	checkBlobs(t, conn, &bodies)
	expectStop(t, r)
}

// checkBlobs compares all rows with what has arrived.
func checkBlobs(t *testing.T, conn *conn, bodies *blobBodies) {
	t.Helper()
	bodies.mu.Lock()
	defer bodies.mu.Unlock()
	for _, b := range allBlobs() {
		for _, table := range blobTables() {
			checkBlob(t, conn, table, b.id, b.want(table), bodies.all)
		}
	}
}

// checkBlob compares a row with the end of the body that should have arrived, or its error.
func checkBlob(t *testing.T, conn *conn, table, id, want string, bodies map[string][]byte) {
	t.Helper()
	body, arrived := bodies[table+"/"+id]
	if reason, failed := strings.CutPrefix(want, " "); failed {
		n := count(t, conn, fmt.Sprintf("SELECT count(*) FROM %s WHERE id = '%s' AND dead_at IS NOT NULL AND why LIKE '%%%s%%'", table, id, reason))
		if n != 1 || arrived {
			t.Errorf("%s, %s: %d rows FAILED with %q, want 1; arrived: %t", table, id, n, reason, arrived)
		}
		return
	}
	part := table == "event" || table == "batch"
	if !arrived || !strings.HasSuffix(string(body), want) || !part && string(body) != want {
		t.Errorf("%s, %s: %.100q of %d bytes, want %.100q of %d; arrived: %t", table, id, body, len(body), want, len(want), arrived)
	}
}
