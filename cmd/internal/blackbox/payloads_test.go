package blackbox

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// blobs relays three tables of bytes to webhooks, each in another format.
const blobs = `
name: %s
source: {url: %q}
outboxes:
  - {table: raw, sink: raw, layout: custom, kind: blob, state: timestamps, columns: &columns {id: id, group: grp, payload: body, delivered: sent_at, failed: dead_at, error: why}}
  - {table: event, sink: event, layout: custom, kind: blob, state: timestamps, columns: *columns}
  - {table: list, sink: list, layout: custom, kind: blob, state: timestamps, columns: *columns}
sinks:
  raw: {type: webhook, url: %[3]s/raw, content-type: application/octet-stream}
  event: {type: webhook, url: %[3]s/event, format: cloudevents-structured, cloudevents-source: /s}
  list: {type: webhook, url: %[3]s/list, format: json-array}
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

// Payloads of any bytes arrive as they are. A row whose payload cannot be part of the format is
// FAILED with the reason, and the rows behind it go on.
func TestPayloadsOfAnyBytes(t *testing.T) {
	t.Parallel()
	onHosts(t, servers.Spread(t, hosts()), func(t *testing.T, h host) {
		database := h.database(t)
		at, bytea := "timestamptz", "bytea"
		if !h.kind.postgres {
			at, bytea = "datetime(6)", "longblob"
		}
		conn, to := connect(t, database), sinktest.NewReceiver(t)
		var mu sync.Mutex
		bodies := map[string][]byte{} // by path and id
		to.Script(func(r *sinktest.Request) sinktest.Answer {
			mu.Lock()
			defer mu.Unlock()
			bodies[strings.TrimPrefix(r.Path, "/")+"/"+r.Header.Get("Webhook-Id")] = r.Body
			return sinktest.Answer{}
		})
		tables := []string{"raw", "event", "list"}
		for _, table := range tables {
			h.kind.run(t, database, fmt.Sprintf(`CREATE TABLE %s (id VARCHAR(64) PRIMARY KEY, grp VARCHAR(64) NOT NULL, body %s,
				sent_at %[3]s, dead_at %[3]s, why TEXT)`, table, bytea, at))
		}
		r := start(t, fmt.Sprintf(blobs, nameFor(database), database, to.URL(), adminKey))
		r.waitFor("source connected")
		for _, b := range allBlobs() {
			value := b.pg
			if !h.kind.postgres {
				value = b.mysql
			}
			for _, table := range tables {
				if _, err := conn.exec(fmt.Sprintf("INSERT INTO %s (id, grp, body) VALUES ('%s', 'g', %s)", table, b.id, value)); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, table := range tables {
			awaitZero(t, "rows of "+table+" are not settled", func() int {
				return count(t, conn, "SELECT count(*) FROM "+table+" WHERE sent_at IS NULL AND dead_at IS NULL")
			})
		}
		mu.Lock()
		defer mu.Unlock()
		for _, b := range allBlobs() {
			for table, want := range map[string]string{"raw": string(b.raw), "event": b.event, "list": b.list} {
				checkBlob(t, conn, table, b.id, want, bodies)
			}
		}
	})
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
	if !arrived || !strings.HasSuffix(string(body), want) || table != "event" && string(body) != want {
		t.Errorf("%s, %s: %.100q of %d bytes, want %.100q of %d; arrived: %t", table, id, body, len(body), want, len(want), arrived)
	}
}
