package blackbox

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// ingestKey is the placeholder in a configuration for a free address of ingest.
const ingestKey = "INGEST"

// ingestConfig relays a postbox to a webhook, and takes its rows over HTTP.
const ingestConfig = `
name: ingest
source: {mode: stream, url: %q}
outboxes:
  - {name: postbox, table: postbox_messages, layout: postbox, sink: hooks}
  - {name: other, table: other_messages, layout: postbox, sink: hooks}
sinks:
  hooks: {type: webhook, url: %q, headers: {X-Group: '{group}', X-Type: '{attr.event_type}'}, max-concurrent-groups: 64, backoff: {initial: 50ms}}
ingest:
  listen: INGEST
  clients:
    - {name: shop, token: shop-token, outboxes: [postbox], tenants: [1001]}
    - {name: other, token: other-token, outboxes: [other]}
%s
admin: {listen: ADMIN}
`

// ingestScene is a postbox with a receiver of its rows.
type ingestScene struct {
	t      *testing.T
	server *servers.Server
	conn   *conn
	to     *sinktest.Receiver
	config string
}

// ingestRelay is a relay with the address of its ingest.
type ingestRelay struct {
	*relay
	url string
}

func newIngestScene(t *testing.T, version int, rest string) *ingestScene {
	t.Helper()
	s := &ingestScene{t: t, server: servers.Start(t, version, nil), to: sinktest.NewReceiver(t)}
	out, errs, code := command(t, nil, "init", "--outbox", "postbox", "--source", s.server.URL, "--apply")
	if code != 0 {
		t.Fatalf("init --outbox: exit code %d, want 0\n%s%s", code, out, errs)
	}
	s.conn = connect(t, s.server.URL)
	if _, err := s.conn.exec("CREATE TABLE other_messages (LIKE postbox_messages INCLUDING ALL)"); err != nil {
		t.Fatal(err)
	}
	s.config = fmt.Sprintf(ingestConfig, s.server.URL, s.to.URL(), rest)
	return s
}

// run starts a relay and waits until it takes rows.
func (s *ingestScene) run() *ingestRelay {
	s.t.Helper()
	address := freeAddress(s.t)
	r := &ingestRelay{start(s.t, strings.ReplaceAll(s.config, ingestKey, address)), "http://" + address}
	r.waitFor("ingest listening")
	return r
}

// postboxMessage is the nth message of its client, from 1. Each client has a group.
func postboxMessage(client, n int) (id string, body []byte) {
	id = fmt.Sprintf("evt-%d-%d", client, n)
	body, _ = json.Marshal(map[string]any{ // texts and numbers
		"id": id, "tenantId": 1001, "partitionId": fmt.Sprint("p", client), "type": "EVENT",
		"payload": fmt.Sprintf(`{"n": %d, "text": "größer \u0001"}`, n), "headers": map[string]any{"event_type": "order.created", "n": n},
	})
	return id, body
}

// posted is the answer to a request.
type posted struct {
	status     int
	retryAfter string
	body       []byte
	ID         string `json:"id"`
	CreatedAt  string `json:"created_at"`
	Error      string `json:"error"`
}

// post sends a body to a path of ingest.
func post(client *http.Client, url, token string, body io.Reader, header ...string) (*posted, error) {
	req, err := http.NewRequest(http.MethodPost, url, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	p := &posted{status: resp.StatusCode, retryAfter: resp.Header.Get("Retry-After")}
	if p.body, err = io.ReadAll(resp.Body); err == nil && strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
		_ = json.Unmarshal(p.body, p) // a list has none of the members
	}
	return p, err
}

const postboxPath = "/api/v1/postbox/ingest"

// ingestLoad are clients that send messages at a rate and repeat each until it is answered.
type ingestLoad struct {
	clients, each int
	pause         time.Duration
	urls          func() []string // of the replicas, at least one

	mu      sync.Mutex
	created map[string]string // created_at by id
	took    []time.Duration   // of the answered requests
	repeats int
}

// run sends all messages. The error is about the first wrong answer.
func (l *ingestLoad) run() error {
	l.created = map[string]string{}
	transport := &http.Transport{MaxIdleConnsPerHost: l.clients}
	defer transport.CloseIdleConnections()
	http := &http.Client{Transport: transport, Timeout: 15 * time.Second}
	var all errgroup.Group
	for client := range l.clients {
		all.Go(func() error {
			next := time.Now().Add(rand.N(l.pause))
			for n := 1; n <= l.each; n++ {
				<-time.After(time.Until(next)) // the rate of the load
				next = next.Add(l.pause)
				if err := l.deliver(http, client, n); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return all.Wait()
}

// deliver sends a message until it is answered, each time to a replica at random, and sometimes
// once more.
func (l *ingestLoad) deliver(http *http.Client, client, n int) error {
	id, body := postboxMessage(client, n)
	sent, answered := 0, 0
	for answered == 0 || answered == 1 && n%10 == 0 {
		urls := l.urls()
		began := time.Now()
		p, err := post(http, urls[rand.IntN(len(urls))]+postboxPath, "shop-token", bytes.NewReader(body))
		sent++
		switch {
		case err != nil, p.status == 503:
			<-time.After(20 * time.Millisecond) // as a client that honours Retry-After, but sooner
			continue
		case p.status != 200 && p.status != 201, p.status == 200 && sent == 1, p.status == 201 && answered == 1, p.ID != id, p.CreatedAt == "":
			return fmt.Errorf("%s sent %d times: answer %d %s", id, sent, p.status, p.body)
		}
		l.mu.Lock()
		first := l.created[id]
		l.created[id] = cmp.Or(first, p.CreatedAt)
		l.took = append(l.took, time.Since(began))
		if answered++; p.status == 200 {
			l.repeats++
		}
		l.mu.Unlock()
		if first != "" && first != p.CreatedAt {
			return fmt.Errorf("%s: created_at %s, then %s", id, first, p.CreatedAt)
		}
	}
	return nil
}

// percentile returns a percentile of the times.
func (l *ingestLoad) percentile(of float64) time.Duration {
	slices.Sort(l.took)
	return l.took[int(of*float64(len(l.took)-1))]
}

// Two relays take rows of clients that repeat, while one relay and the database are killed. Every
// row that was answered is in the table once, with the time of its first answer, and is delivered
// in the order of its client. The full run, 120000 rows of 200 clients in 60 s:
//
//	SLUICEBOX_TEST_ROWS=120000 go test -v -run TestIngestKilled ./cmd/internal/blackbox
func TestIngestKilled(t *testing.T) {
	t.Parallel()
	aVersion(t, func(t *testing.T, version int) {
		s := newIngestScene(t, version, "")
		load := &ingestLoad{clients: 20, each: many(t, 1200) / 20, pause: 50 * time.Millisecond}
		if os.Getenv(rowsVariable) != "" {
			load.clients, load.each, load.pause = 200, many(t, 0)/200, 100*time.Millisecond
		}
		var mu sync.Mutex
		replicas := []*ingestRelay{s.run(), s.run()}
		load.urls = func() (urls []string) {
			mu.Lock()
			defer mu.Unlock()
			for _, r := range replicas {
				urls = append(urls, r.url)
			}
			return urls
		}
		done := make(chan error, 1)
		go func() { done <- load.run() }()
		total := load.clients * load.each
		s.await(total / 4)
		replicas[0].kill()
		s.await(total / 2)
		s.server.Stop("immediate")
		s.server.Restart(nil)
		mu.Lock()
		replicas[0] = s.run()
		mu.Unlock()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		s.check(load, total)
		for _, r := range replicas {
			expectStop(t, r.relay)
		}
	})
}

// await waits until the table has n rows.
func (s *ingestScene) await(n int) {
	s.t.Helper()
	within(s.t, testTimeout, func() string {
		var rows int
		if err := s.conn.row("SELECT count(*) FROM postbox_messages").Scan(&rows); err != nil || rows < n {
			return fmt.Sprintf("%d rows, want %d: %v", rows, n, err)
		}
		return ""
	})
}

// check compares the table and the deliveries with the answers.
func (s *ingestScene) check(load *ingestLoad, total int) {
	s.t.Helper()
	rows := 0
	err := s.conn.each(`SELECT id, to_char(created_at, 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), payload_size = octet_length(payload), headers->>'event_type' FROM postbox_messages`, nil, func(scan func(...any) error) error {
		var id, created, event string
		var size bool
		if err := scan(&id, &created, &size, &event); err != nil {
			return err
		}
		rows++
		first, err := time.Parse(time.RFC3339Nano, load.created[id])
		if at, _ := time.Parse(time.RFC3339Nano, created); err != nil || !first.Equal(at) || !size || event != "order.created" {
			s.t.Errorf("row %s: created_at %s, answered %s; payload_size %t, event_type %q", id, created, load.created[id], size, event)
		}
		return nil
	})
	if err != nil || rows != total || len(load.created) != total {
		s.t.Fatalf("%d rows in the table, %d answered, want %d: %v", rows, len(load.created), total, err)
	}
	arrive(s.t, s.to, total)
	last, again := map[string]int{}, 0
	for _, item := range s.to.Log() {
		var client, n int
		if _, err := fmt.Sscanf(item.ID, "evt-%d-%d", &client, &n); err != nil {
			s.t.Fatalf("id %q: %v", item.ID, err)
		}
		group := fmt.Sprint(client)
		if n > last[group]+1 {
			s.t.Errorf("group %s: %d arrived after %d", group, n, last[group])
		}
		if n <= last[group] {
			again++
		}
		last[group] = max(n, last[group])
	}
	s.t.Logf("%d rows, %d repeats answered with 200, %d deliveries again; p50 %s, p99 %s", total, load.repeats, again, load.percentile(0.5), load.percentile(0.99))
}
