package blackbox

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// A sink with the first FlowCatalyst API cannot receive rows of outbox-messages tables. Every
// command names the key and its line and exits with 78, before any row is lost.
func TestTheWireOfAnotherTableIsRefused(t *testing.T) {
	t.Parallel()
	config := configFile(t, `source: {url: "sqlite:///nowhere/at-all.db"}
outboxes:
  - {table: outbox_messages, layout: outbox-messages, sink: platform}
sinks:
  platform:
    type: flowcatalyst
    wire: array
    api-base-url: http://127.0.0.1:1
`)
	for _, args := range [][]string{{"config", "check"}, {"run"}, {"doctor"}} {
		out, stderr, code := command(t, nil, append(args, "-c", config)...)
		said := strings.Join(strings.Fields(out+stderr), " ")
		if code != 78 || !strings.Contains(said, "yaml:7: sinks.platform.wire: is array, but outbox outbox_messages has the layout outbox-messages") {
			t.Errorf("%v exits with %d: %s", args, code, said)
		}
	}
}

// A receiver returns its secrets, in any encoding. They appear neither in the row nor in the
// log nor in the API.
func TestAReceiverThatEchoesSecrets(t *testing.T) {
	t.Parallel()
	const key, password = "k3y/0f-the+hook", "pa55w0rd~sesame"
	d := sqliteDeliveries(t)
	to := sinktest.NewReceiver(t)
	forms := sinktest.Escapes()
	var names []string
	for name := range forms {
		names = append(names, name)
	}
	to.Script(func(r *sinktest.Request) sinktest.Answer {
		escape, echo := forms[names[r.N%len(names)]], []string{r.Path, key, r.Header.Get("Authorization"), password, signingKey}[r.N%5]
		return sinktest.Answer{Status: http.StatusBadRequest, Body: fmt.Appendf(nil, `{"error":"no hook at %s"}`, escape(echo))}
	})
	basic := base64.StdEncoding.EncodeToString([]byte("relay:" + password))
	r := start(t, fmt.Sprintf(`
name: %s
source: {url: %q}
outboxes:
  - {table: Deliveries, layout: custom, kind: order, sink: hooks, state: timestamps, order-by: [made],
     columns: {id: row_key, payload: body, delivered: sent_at, failed: dead_at, error: why}}
sinks:
  hooks: {type: webhook, url: "%s/services/%s", headers: {Authorization: "Basic %s"}, secrets: [%s], max-retries: 0, ungrouped: parallel, backoff: {initial: 10ms, max: 50ms}}
admin: {listen: %s}
`, nameFor(d.source), d.source, to.URL(), url.PathEscape(key), basic, signingKey, adminKey))
	r.waitFor("source connected")
	rows := 2 * len(names)
	for i := range rows {
		d.exec(fmt.Sprintf(`INSERT INTO "Deliveries" (row_key, body) VALUES (%d, '{}')`, 1000+i))
	}
	within(t, testTimeout, func() string {
		if n := d.count(`SELECT count(*) FROM "Deliveries" WHERE dead_at IS NOT NULL`); n != rows {
			return fmt.Sprintf("%d of %d rows are FAILED", n, rows)
		}
		return ""
	})
	if n := d.count(`SELECT count(*) FROM "Deliveries" WHERE why LIKE '400 Bad Request from POST http%[redacted]%'`); n != rows {
		t.Errorf("%d of %d errors are without the secret", n, rows)
	}
	_, letters := r.get("/api/v1/deadletters?outbox=Deliveries&limit=500")
	_, ready := r.get("/readyz?verbose")
	for _, secret := range []string{key, password, basic, strings.TrimPrefix(signingKey, "whsec_")} {
		for what, text := range map[string]string{"the log": r.said(), "the API": letters, "readiness": ready} {
			if form := sinktest.LeakedSecret(text, secret); form != "" {
				t.Errorf("%s shows %s", what, form)
			}
		}
	}
	expectStop(t, r)
}

// sinksOfFiles are three sinks on one database. The first needs a CA file, the second a token
// file.
const sinksOfFiles = `
name: %s
source: {url: %q}
outboxes:
  - {table: Deliveries, layout: custom, kind: order, sink: secure, state: timestamps, order-by: [made], columns: &columns {id: row_key, group: body, payload: body, delivered: sent_at, failed: dead_at, error: why}}
  - {table: Tokens, layout: custom, kind: order, sink: token, state: timestamps, order-by: [made], columns: *columns}
  - {table: Plain, layout: custom, kind: order, sink: plain, state: timestamps, order-by: [made], columns: *columns}
sinks:
  secure: {type: webhook, url: "%s/a", ca-file: %q, backoff: {initial: 50ms, max: 1s}}
  token: {type: webhook, url: "%s/b", token: "${file:%s}", backoff: {initial: 50ms, max: 1s}}
  plain: {type: webhook, url: "%s/c"}
admin: {listen: %s}
`

// A sink with a missing file does not stop the others. It is not opened, with an alarm that
// names it, and is opened once the file is back. Its rows then arrive in order. A changed token
// is used without a restart.
func TestASinkThatCannotBeOpened(t *testing.T) {
	t.Parallel()
	d, dir := sqliteDeliveries(t), t.TempDir()
	for _, name := range []string{"Tokens", "Plain"} {
		table := strings.Replace(deliveriesTable, "Deliveries", name, 1)
		d.exec(fmt.Sprintf(table, "DATETIME", "(strftime('%Y-%m-%d %H:%M:%f', 'now'))", "TEXT"))
	}
	var to [3]*sinktest.Receiver // of the sinks, in their order
	for i := range to {
		to[i] = sinktest.NewReceiver(t)
	}
	behind, err := url.Parse(to[0].URL())
	if err != nil {
		t.Fatal(err)
	}
	secure := httptest.NewTLSServer(httputil.NewSingleHostReverseProxy(behind))
	t.Cleanup(secure.Close)
	to[1].Script(func(r *sinktest.Request) sinktest.Answer {
		if r.Header.Get("Authorization") != "Bearer new" {
			return sinktest.Answer{Status: http.StatusUnauthorized}
		}
		return sinktest.Answer{}
	})
	ca, token := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "token")
	put := func(path string, text []byte) {
		t.Helper()
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const rows = 50
	insert := func(table string, first int) {
		for i := first; i < first+rows; i++ {
			d.exec(fmt.Sprintf(`INSERT INTO %q (row_key, body) VALUES (%d, 'one group')`, table, i))
		}
	}
	config := fmt.Sprintf(sinksOfFiles, nameFor(d.source), d.source, secure.URL, ca, to[1].URL(), token, to[2].URL(), adminKey)
	// Other commands report it, and that only this sink is affected.
	out, stderr, code := command(t, nil, "config", "check", "-c", configFile(t, config))
	if want := ": sinks.token.token: refers to the file " + token + ": no such file"; code != 78 || !strings.Contains(stderr, want) {
		t.Errorf("config check exits with %d, want 78: %s%s", code, out, stderr)
	}
	_, text, code := doctor(t, config)
	if said := strings.Join(strings.Fields(text), " "); code != 78 || !strings.Contains(said, "ca-file: open "+ca) || !strings.Contains(said, "refers to the file "+token) {
		t.Errorf("doctor exits with %d, want 78:\n%s", code, text)
	}

	r := start(t, config)
	r.waitFor("source connected")
	for table, first := range map[string]int{"Deliveries": 1000, "Tokens": 2000, "Plain": 3000} {
		insert(table, first)
	}
	arrive(t, to[2], rows)
	for sink, want := range map[string]string{"secure": "ca-file: open " + ca, "token": "refers to the file " + token} {
		status, body := r.get("/readyz?verbose")
		if status == 200 || !strings.Contains(body, "sink "+sink+" open") || !strings.Contains(body, want) {
			t.Errorf("/readyz is %d:\n%s", status, body)
		}
		if n := r.metric(fmt.Sprintf("sluicebox_sink_open_failed{sink=%q}", sink)); n != 1 {
			t.Errorf("the metric of %s is %v", sink, n)
		}
		r.waitFor(`msg="sink open failed; retrying" sink=` + sink)
		r.waitFor(`msg="circuit breaker opened" sink=` + sink + ` class=misconfigured`)
	}
	if n := r.metric(`sluicebox_sink_open_failed{sink="plain"}`); n != 0 {
		t.Errorf("the metric of the sink that is open is %v, want 0", n)
	}
	if n := to[0].Counts().Requests + to[1].Counts().Requests; n > 0 {
		t.Errorf("%d requests came from sinks that are not open, want 0", n)
	}

	put(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}))
	arrive(t, to[0], rows)
	put(token, []byte("old\n"))
	within(t, testTimeout, func() string {
		if to[1].Counts().Requests == 0 {
			return "nothing came with the old token"
		}
		return ""
	})
	put(token, []byte("new\n"))
	changed := time.Now()
	arrive(t, to[1], rows)
	t.Logf("a row was accepted %s after the token had changed", to[1].Accepted()[0].At.Sub(changed).Round(time.Millisecond))
	for i, of := range to {
		var ids []string
		for _, got := range of.Accepted() {
			ids = append(ids, got.ID)
		}
		if !slices.IsSorted(ids) || len(ids) != rows {
			t.Errorf("the rows of sink %d came as %q", i, ids)
		}
	}
	within(t, testTimeout, func() string {
		if status, body := r.get("/readyz?verbose"); status != 200 || strings.Contains(body, "sink secure open") {
			return body
		}
		return ""
	})
	if n := d.count(`SELECT (SELECT count(*) FROM "Deliveries" WHERE dead_at IS NOT NULL) + (SELECT count(*) FROM "Tokens" WHERE dead_at IS NOT NULL)`); n > 0 {
		t.Errorf("%d rows are FAILED, want 0", n)
	}
	if n := strings.Count(r.said(), "sink open failed"); n != 2 {
		t.Errorf("the log has %d alarms of two sinks, want 2", n)
	}
	expectStop(t, r)
}
