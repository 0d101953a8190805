package blackbox

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// hooks relays a team's own table to a webhook.
const hooks = `
name: %s
source: {url: %q}
outboxes:
  - table: Deliveries
    layout: custom
    kind: order
    sink: hooks
    state: timestamps
    columns: {id: row_key, group: body, payload: body, claimed: taken_at, delivered: sent_at, failed: dead_at, retry-count: tries, error: why}
    group-path: group
    order-by: [made]
sinks:
  hooks: {type: webhook, url: %q, secrets: [%s], metadata-headers: [kind, group, attempt], id-prefix: shop-, max-retries: 1, backoff: {initial: 50ms}}
admin: {listen: %s}
`

// signingKey is the secret shared by receiver and relay, in the format of Standard Webhooks
// 1.0.0.
const signingKey = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="

// deliveries is a database with a table.
type deliveries struct {
	source string
	exec   func(statement string)
	count  func(query string) int
}

// A team's own table is relayed to a webhook: one signed request per row, in the order of its
// group. The state is kept in timestamp columns. By hand:
//
//	go test -v -run 'TestWebhook' ./cmd/internal/blackbox
func TestWebhook(t *testing.T) {
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		testWebhook(t, sqliteDeliveries(t))
	})
	onHosts(t, servers.Spread(t, hosts()), func(t *testing.T, h host) { testWebhook(t, hostDeliveries(t, h)) })
}

func testWebhook(t *testing.T, d deliveries) {
	const rows, first = 300, 1_000_000 // ids of equal length
	bad, stale := fmt.Sprint("shop-", first+rows/2), fmt.Sprint("shop-", first+rows/3)
	to := sinktest.NewReceiver(t)
	var ofBad, ofStale atomic.Int64
	to.Script(func(r *sinktest.Request) sinktest.Answer {
		if wrong := verify(r); wrong != "" {
			t.Errorf("request %d: %s", r.N, wrong)
		}
		switch r.Items[0].ID {
		case bad:
			ofBad.Add(1)
			return sinktest.Answer{Status: http.StatusUnprocessableEntity, Body: []byte("no such customer")}
		case stale: // a conflict, which is no receipt
			ofStale.Add(1)
			return sinktest.Answer{Status: http.StatusConflict, Body: []byte("stale version")}
		}
		return sinktest.Answer{Status: http.StatusNoContent}
	})
	r := start(t, fmt.Sprintf(hooks, nameFor(d.source), d.source, to.URL()+"/orders?key=1", signingKey, adminKey))
	r.waitFor("source connected")
	for i := first + 1; i <= first+rows; i += 10 {
		var values []string
		for n := i; n < i+10; n++ {
			values = append(values, fmt.Sprintf(`(%d, '{"id": %d, "group": "customer %d"}')`, n, n, n%20))
		}
		d.exec(`INSERT INTO "Deliveries" (row_key, body) VALUES ` + strings.Join(values, ", "))
	}
	arrive(t, to, rows-2)
	within(t, testTimeout, func() string {
		sent := d.count(`SELECT count(*) FROM "Deliveries" WHERE sent_at IS NOT NULL AND dead_at IS NULL AND taken_at IS NOT NULL AND why IS NULL`)
		dead := 0
		for id, why := range map[int]string{first + rows/2: "422%no such customer", first + rows/3: "409%stale version"} {
			dead += d.count(fmt.Sprintf(`SELECT count(*) FROM "Deliveries" WHERE row_key = %d AND sent_at IS NULL AND dead_at IS NOT NULL AND tries = 1 AND why LIKE '%%%s%%'`, id, why))
		}
		if sent != rows-2 || dead != 2 {
			return fmt.Sprintf("%d rows are sent and %d are dead", sent, dead)
		}
		return ""
	})
	if again := checkNumbered(t, to.Accepted()); again > 0 {
		t.Errorf("%d rows arrived more than once, want 0", again)
	}
	// A 409 counts only once the receiver has accepted another row; before, it is sent again.
	c, rejected, refused := to.Counts(), ofBad.Load(), ofStale.Load()
	if rejected != 2 || refused < 2 || c.Distinct != rows-2 || int64(c.Requests) != rows-2+rejected+refused {
		t.Errorf("%d rows: 422 for %d requests, want 2, and 409 for %d, want 2 or more: %+v", rows, rejected, refused, c)
	}
	expectStop(t, r)
}

// verify checks a request against Standard Webhooks 1.0.0 and against its body.
func verify(r *sinktest.Request) string {
	id, at := r.Header.Get("Webhook-Id"), r.Header.Get("Webhook-Timestamp")
	seconds, err := strconv.ParseInt(at, 10, 64)
	if since := time.Since(time.Unix(seconds, 0)); err != nil || since < -time.Minute || since > time.Minute {
		return fmt.Sprintf("its time is %q", at)
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(signingKey, "whsec_"))
	if err != nil {
		return err.Error()
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + at + "." + string(r.Body)))
	if want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); r.Header.Get("Webhook-Signature") != want {
		return fmt.Sprintf("it is signed %q, want %q", r.Header.Get("Webhook-Signature"), want)
	}
	var p struct {
		ID    int
		Group string
	}
	if err := json.Unmarshal(r.Body, &p); err != nil {
		return fmt.Sprintf("its body is %q: %v", r.Body, err)
	}
	group, err := url.PathUnescape(r.Header.Get("Sluicebox-Group"))
	if id != fmt.Sprint("shop-", p.ID) || r.Header.Get("Idempotency-Key") != id || group != p.Group || r.Kind != "order" || err != nil {
		return fmt.Sprintf("its headers are %v, its body is %s", r.Header, r.Body)
	}
	return ""
}

// deliveriesTable has placeholders for the type of a time, the current time, and the type of a
// payload.
const deliveriesTable = `CREATE TABLE "Deliveries" (
	row_key BIGINT PRIMARY KEY, body %[3]s NOT NULL, made %[1]s NOT NULL DEFAULT %[2]s,
	taken_at %[1]s, sent_at %[1]s, dead_at %[1]s, tries INT NOT NULL DEFAULT 0, why TEXT)`

func hostDeliveries(t *testing.T, h host) deliveries {
	database := h.database(t)
	table := fmt.Sprintf(deliveriesTable, "timestamptz", "now()", "jsonb")
	if !h.kind.postgres {
		table = fmt.Sprintf(deliveriesTable, "datetime(6)", "now(6)", "json")
	}
	return hostTable(t, h, database, table)
}

// hostTable creates a table in a database of a server.
func hostTable(t *testing.T, h host, database, ddl string) deliveries {
	t.Helper()
	h.kind.run(t, database, ddl)
	c := connect(t, database)
	return deliveries{database, func(statement string) { h.kind.run(t, database, statement) }, func(query string) int { return count(t, c, query) }}
}

func sqliteDeliveries(t *testing.T) deliveries {
	return sqliteTable(t, fmt.Sprintf(deliveriesTable, "DATETIME", "(strftime('%Y-%m-%d %H:%M:%f', 'now'))", "TEXT"))
}

// sqliteTable creates an SQLite file with a table.
func sqliteTable(t *testing.T, ddl string) deliveries {
	t.Helper()
	path := filepath.Join(t.TempDir(), "team.db")
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(WAL)&_pragma=busy_timeout(10000)&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	exec := func(statement string) {
		if _, err := db.ExecContext(context.Background(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	exec(ddl)
	return deliveries{"sqlite://" + path, exec, func(query string) int {
		n := 0
		if err := db.QueryRowContext(context.Background(), query).Scan(&n); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		return n
	}}
}
