package blackbox

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// A sink that speaks the first API cannot get the rows of today's table: all commands
// name the key and its line, and exit with 78, before a row is lost to it.
func TestTheWireOfAnotherTable(t *testing.T) {
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
		if code != 78 || !strings.Contains(said, "yaml:7: sinks.platform.wire: is array, but the outbox outbox_messages has the layout outbox-messages") {
			t.Errorf("%v exits with %d: %s", args, code, said)
		}
	}
}

// A receiver that gives back its secrets, in whatever form, gets them into neither the row
// nor the log nor the API.
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
	r.waitFor("reading")
	rows := 2 * len(names)
	for i := range rows {
		d.exec(fmt.Sprintf(`INSERT INTO "Deliveries" (row_key, body) VALUES (%d, '{}')`, 1000+i))
	}
	within(t, patience, func() string {
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
			if form := sinktest.Readable(text, secret); form != "" {
				t.Errorf("%s shows %s", what, form)
			}
		}
	}
	expectStop(t, r)
}
