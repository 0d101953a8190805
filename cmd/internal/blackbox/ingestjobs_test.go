package blackbox

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// A dispatch job of a postbox goes to the URL in its payload, with the body in it. Events go to the
// platform as they are. A job to a host that allow-hosts does not list is FAILED, and no answer or
// row shows the address.
func TestIngestDispatchJobs(t *testing.T) {
	t.Parallel()
	aVersion(t, func(t *testing.T, version int) {
		s := newIngestScene(t, postgresHost(version), "")
		customer := sinktest.NewReceiver(t)
		path := make(chan string, 10)
		customer.Script(func(r *sinktest.Request) sinktest.Answer {
			path <- r.Path + " " + string(r.Body)
			return sinktest.Answer{Status: http.StatusNoContent}
		})
		s.config = strings.Replace(s.config, "layout: postbox, sink: hooks}", `layout: postbox, routes: [
    {name: events, sink: hooks, when: {kind: EVENT}}, {name: jobs, sink: jobs, when: {kind: DISPATCH_JOB}}]}`, 1)
		s.config = strings.Replace(s.config, "sinks:\n", fmt.Sprintf(`sinks:
  jobs: {type: webhook, url: '{payload.url}', body: '{payload.body}', allow-hosts: [%q], retry: {compat: postbox}, max-retries: 1}
`, strings.TrimPrefix(customer.URL(), "http://")), 1)
		r := s.run()
		const body = `{"total": 1.50,  "text": "größer"}`
		for id, payload := range map[string]string{
			"job-1": `{"url": "` + customer.URL() + `/paid?key=secret", "body": ` + body + `}`,
			"job-2": `{"url": "http://169.254.169.254/secret", "body": {}}`,
			"job-3": `{"url": "` + customer.URL() + `/secret"}`,
			"evt-1": body,
		} {
			kind := map[bool]string{true: "EVENT", false: "DISPATCH_JOB"}[strings.HasPrefix(id, "evt")]
			message, err := json.Marshal(map[string]any{"id": id, "tenantId": 1001, "partitionId": id, "type": kind, "payload": payload})
			if err != nil {
				t.Fatal(err)
			}
			p, err := post(http.DefaultClient, r.url+postboxPath, "shop-token", strings.NewReader(string(message)))
			if err != nil || p.status != http.StatusCreated {
				t.Fatalf("%s: %+v %v", id, p, err)
			}
		}
		http.DefaultClient.CloseIdleConnections()
		within(t, testTimeout, func() string {
			states, err := s.conn.texts("SELECT id || ' ' || status FROM postbox_messages ORDER BY id")
			if got := strings.Join(states, ", "); err != nil || got != "evt-1 PROCESSED, job-1 PROCESSED, job-2 FAILED, job-3 FAILED" {
				return fmt.Sprint(got, err)
			}
			return ""
		})
		if n := count(t, s.conn, "SELECT count(*) FROM postbox_messages WHERE error_reason LIKE '%in allow-hosts%' OR error_reason LIKE '%member body%'"); n != 2 {
			t.Errorf("%d reasons, want that of another host and that of no body", n)
		}
		if n := count(t, s.conn, "SELECT count(*) FROM postbox_messages WHERE error_reason LIKE '%secret%'"); n > 0 || strings.Contains(r.said(), "secret") {
			t.Errorf("%d rows, or the log, show an address:\n%s", n, r.said())
		}
		if got := <-path; got != "/paid "+body || len(path) > 0 {
			t.Errorf("the customer got %q and %d more, want the body of the job", got, len(path))
		}
		if got := s.to.Accepted(); len(got) != 1 || string(got[0].Payload) != body {
			t.Errorf("the platform got %+v, want the event", got)
		}
		expectStop(t, r.relay)
	})
}
