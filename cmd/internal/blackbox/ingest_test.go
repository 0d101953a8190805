package blackbox

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// ingestKey is the placeholder in a configuration for a free address of ingest.
const ingestKey = "INGEST"

// ingestConfig relays outboxes to a webhook, and takes their rows over HTTP.
const ingestConfig = `
name: ingest
source: {mode: stream, url: %q}
outboxes:%s
sinks:
  hooks: {type: webhook, url: %q, headers: {X-Group: '{group}', X-Type: '{attr.event_type}'}, max-concurrent-groups: 64, backoff: {initial: 50ms}}
ingest:
  listen: INGEST
  clients:%s
%s
admin: {listen: ADMIN}
`

// ingestScene is an outbox on a server of its own, with a receiver of its rows.
type ingestScene struct {
	t        *testing.T
	database string
	server   ownServer
	conn     *conn // nil for MongoDB
	box      *ingestBox
	to       *sinktest.Receiver
	config   string
}

// ingestRelay is a relay with the address of its ingest.
type ingestRelay struct {
	*relay
	url string
}

func newIngestScene(t *testing.T, h host, rest string) *ingestScene {
	t.Helper()
	s := &ingestScene{t: t, to: sinktest.NewReceiver(t)}
	s.database, s.server = h.start(t, nil)
	if h.kind == nil {
		s.box = recordsIn(t, servers.OpenMongo(t, s.database), s.database)
	} else {
		s.conn = connect(t, s.database)
		s.box = postboxIn(t, s.conn, s.database)
	}
	s.config = fmt.Sprintf(ingestConfig, s.database, s.box.outboxes, s.to.URL(), s.box.clients, rest)
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

// posted is the answer to a request.
type posted struct {
	status     int
	retryAfter string
	body       []byte
	ID         string `json:"id"`
	CreatedAt  string `json:"created_at"`
	Error      string `json:"error"`

	Rows []struct {
		ID        string `json:"id"`
		CreatedAt string `json:"created_at"`
	} `json:"rows"`
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
		if err = json.Unmarshal(p.body, p); len(p.Rows) == 1 {
			p.ID, p.CreatedAt = p.Rows[0].ID, p.Rows[0].CreatedAt
		}
	}
	return p, err
}

const postboxPath = "/api/v1/postbox/ingest"

// ingestLoad are clients that send messages at a rate and repeat each until it is answered.
type ingestLoad struct {
	box           *ingestBox
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
	id, body := l.box.message(client, n)
	sent, answered := 0, 0
	for answered == 0 || answered == 1 && n%10 == 0 {
		urls := l.urls()
		began := time.Now()
		p, err := post(http, urls[rand.IntN(len(urls))]+l.box.path, "shop-token", bytes.NewReader(body))
		sent++
		switch {
		case err == nil && p.status == 503 && p.retryAfter == "":
			return fmt.Errorf("%s: 503 without Retry-After: %s", id, p.body)
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
// in the order of its client. The full run, 120000 rows of 200 clients in 60 s on each database:
//
//	SLUICEBOX_TEST_ROWS=120000 SLUICEBOX_TEST_VERSIONS=all go test -v -parallel 1 -run TestIngestKilled ./cmd/internal/blackbox
func TestIngestKilled(t *testing.T) {
	t.Parallel()
	onHosts(t, ingestHosts(t), func(t *testing.T, h host) {
		s := newIngestScene(t, h, "")
		load := &ingestLoad{box: s.box, clients: 20, each: many(t, 1200) / 20, pause: 50 * time.Millisecond}
		if os.Getenv(rowsVariable) != "" {
			load.clients, load.each, load.pause = 200, many(t, 0)/200, 100*time.Millisecond
		}
		var mu sync.Mutex
		replicas := []*ingestRelay{s.run()}
		replicas[0].waitFor("source connected") // a failure before a relay's first session ends it
		replicas = append(replicas, s.run())
		replicas[1].waitFor("standing by")
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
		s.await(total / 2) // until the test's own session is a new one
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
		if rows, err := s.box.count(); err != nil || rows < n {
			return fmt.Sprintf("%d rows, want %d: %v", rows, n, err)
		}
		return ""
	})
}

// check compares the table and the deliveries with the answers.
func (s *ingestScene) check(load *ingestLoad, total int) {
	s.t.Helper()
	rows := 0
	err := s.box.each(func(id string, created time.Time, whole bool) {
		rows++
		if first, err := time.Parse(time.RFC3339Nano, load.created[id]); err != nil || !first.Equal(created) || !whole {
			s.t.Errorf("row %s: created_at %s, answered %s; whole %t", id, created, load.created[id], whole)
		}
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

// zeros is a body of n blanks.
func zeros(n int64) io.Reader { return io.LimitReader(blanks{}, n) }

type blanks struct{}

func (blanks) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// Bodies that are broken, too large, slow or another tenant's are refused with the answer of
// deploy/ingest.md, in little memory, and the rows of others go on. A payload of the limit is delivered.
// SLUICEBOX_TEST_ROWS=20000 attacks 20 times.
func TestIngestRefuses(t *testing.T) {
	t.Parallel()
	aVersion(t, func(t *testing.T, version int) {
		s := newIngestScene(t, postgresHost(version), "  read-timeout: 2s\n  max-payload: 1MiB")
		r := s.run()
		_, good := postboxMessage(1, 1)
		change := func(from, to string) string { return strings.Replace(string(good), from, to, 1) }
		bomb := gzipped(t, zeros(100<<20))
		largest := strings.Repeat("x", 1<<20-len(messagePayload(1))+len("größer"))
		client := &http.Client{Transport: &http.Transport{}}
		defer client.CloseIdleConnections()
		for name, tt := range map[string]struct {
			path, token, body string
			header            []string
			status            int
			want              string
		}{
			"a wrong token":     {token: "shop-tokem", status: 401},
			"another outbox":    {path: "/api/v1/ingest/other", status: 403, want: "may not write outbox other"},
			"another tenant":    {body: change("1001", "1002"), status: 403, want: "may not write this tenant"},
			"no outbox":         {path: "/api/v1/ingest/nowhere", status: 404},
			"an unknown field":  {body: change(`"type"`, `"typ"`), status: 400, want: `unknown field \"typ\"; did you mean type?`},
			"NUL":               {body: change(`größer`, `\\u0000`), status: 201}, // escaped twice: the payload has an escape
			"a real NUL":        {body: change(`größer`, `\u0000`), status: 400, want: "payload: has U+0000"},
			"broken UTF-8":      {body: change(`größer`, "\xc3"), status: 400, want: "not UTF-8 at byte"},
			"a text too long":   {body: change(`"p1"`, `"`+strings.Repeat("p", 256)+`"`), status: 422, want: "too long"},
			"a header's column": {body: change(`"event_type"`, `"tenant_id"`), status: 422, want: "tenant_id"},
			"no token":          {token: " ", status: 401},
			"the token's start": {token: "shop", status: 401},
			"another case":      {body: change(`"tenantId"`, `"TenantId"`), status: 400, want: "unknown field"},
			"a field twice":     {body: change(`"type"`, `"id":"b","type"`), status: 400, want: "id: is given twice"},
			"null":              {body: change(`"p1"`, "null"), status: 400, want: "partitionId"},
			"another type":      {body: change(`"EVENT"`, `"EVENTS"`), status: 400, want: "DISPATCH_JOB"},
			"a tenant's text":   {body: change("1001", `"1001"`), status: 400, want: "tenantId"},
			"half a pair":       {body: change("größer", `\ud83d`), status: 400, want: "payload"},
			"two messages":      {body: string(good) + string(good), status: 400, want: "not JSON at byte"},
			"a list":            {body: "[" + string(good) + "]", status: 400},
			"nothing":           {body: " ", status: 400, want: "not JSON at byte"},
			"deep JSON":         {body: strings.Repeat("[", 1<<20), status: 400, want: "not JSON at byte"},
			"deep headers":      {body: change(`"n":1`, `"n":`+strings.Repeat("[", 9000)+strings.Repeat("]", 9000)), status: 201},
			"a form":            {header: []string{"Content-Type", "application/x-www-form-urlencoded"}, status: 415},
			"latin1":            {header: []string{"Content-Type", "application/json; charset=latin1"}, status: 415},
			"compressed twice":  {body: gzipped(t, strings.NewReader(gzipped(t, bytes.NewReader(good)))), header: []string{"Content-Encoding", "gzip, gzip"}, status: 415},
			"compressed":        {body: gzipped(t, strings.NewReader(change("evt-1-1", "refused-compressed"))), header: []string{"Content-Encoding", "gzip"}, status: 201},
			"a cut body":        {body: gzipped(t, bytes.NewReader(good))[:60], header: []string{"Content-Encoding", "gzip"}, status: 400},
			"the limit":         {body: change(`größer`, largest), status: 201},
			"above the limit":   {body: change(`größer`, largest+"x"), status: 413, want: "the limit is 1048576"},
			"a bomb":            {body: bomb, header: []string{"Content-Encoding", "gzip"}, status: 413, want: "compressed more than 200 to 1"},
		} {
			if tt.body == "" {
				tt.body = string(good)
			}
			tt.body = strings.Replace(tt.body, "evt-1-1", "refused-"+strings.ReplaceAll(name, " ", "-"), 1)
			p, err := post(client, r.url+cmp.Or(tt.path, postboxPath), cmp.Or(tt.token, "shop-token"), strings.NewReader(tt.body), tt.header...)
			if err != nil || p.status != tt.status || !strings.Contains(string(p.body), tt.want) {
				t.Errorf("%s: answer %+v %v, want %d with %s", name, p, err, tt.status, tt.want)
			}
		}
		s.expectRepeats(r, client)
		s.expectDoctor(r)
		before, rounds := r.peak(), many(t, 1000)/1000
		for round := range rounds {
			s.attack(r, client, bomb, round)
		}
		if grown := r.peak() - before; grown > 64<<20 {
			t.Errorf("attacks took %d MiB", grown>>20)
		}
		t.Logf("peak %d MiB before, %d MiB after %d attacks; now %d MiB", before>>20, r.peak()>>20, rounds, r.resident()>>20)
		r.expectSmall()
		if _, err := s.conn.exec("SELECT 1"); err != nil {
			t.Fatal(err)
		}
		want := 5 + 8*rounds // those with 201 above, that of expectRepeats, and those of attack
		arrive(t, s.to, want)
		rows := count(t, s.conn, "SELECT count(*) FROM postbox_messages")
		if rows != want || r.metric(`sluicebox_ingest_requests_total{status="201"}`) != float64(want) || r.metric(`sluicebox_ingest_requests_total{status="413"}`) < 5 {
			t.Errorf("%d rows, want %d; %v answered", rows, want, r.metric(`sluicebox_ingest_requests_total{status="201"}`))
		}
		expectStop(t, r.relay)
	})
}

// Beyond max-lag the clients get 429 with Retry-After, and once the receiver answers again, 201.
func TestIngestLags(t *testing.T) {
	t.Parallel()
	aVersion(t, func(t *testing.T, version int) {
		s := newIngestScene(t, postgresHost(version), "  max-lag: 500ms")
		var up atomic.Bool
		s.to.Script(func(*sinktest.Request) sinktest.Answer {
			return sinktest.Answer{Status: map[bool]int{true: 204, false: 503}[up.Load()]}
		})
		r := s.run()
		client := &http.Client{Transport: &http.Transport{}}
		defer client.CloseIdleConnections()
		n, taken := 0, 0
		until := func(status int) (p *posted) {
			t.Helper()
			within(t, testTimeout, func() string {
				n++
				_, body := postboxMessage(n, 1)
				var err error
				if p, err = post(client, r.url+postboxPath, "shop-token", bytes.NewReader(body)); err != nil {
					t.Fatal(err)
				}
				if p.status == 201 {
					taken++
				}
				if p.status != status {
					return fmt.Sprintf("answer %d %s, want %d", p.status, p.body, status)
				}
				return ""
			})
			return p
		}
		until(201)
		if p := until(429); p.retryAfter == "" || !strings.Contains(p.Error, "more than 500ms") {
			t.Errorf("answer %s, Retry-After %q", p.body, p.retryAfter)
		}
		up.Store(true)
		until(201)
		arrive(t, s.to, taken)
		if rows := count(t, s.conn, "SELECT count(*) FROM postbox_messages"); rows != taken {
			t.Errorf("%d rows, %d answered with 201", rows, taken)
		}
		expectStop(t, r.relay)
	})
}

// expectRepeats expects 200 with the first time for a message that is sent again, 409 for another one
// with its id, and 405 for another method.
func (s *ingestScene) expectRepeats(r *ingestRelay, client *http.Client) {
	s.t.Helper()
	_, message := postboxMessage(9, 1)
	send := func(body []byte, status int) *posted {
		s.t.Helper()
		p, err := post(client, r.url+postboxPath, "shop-token", bytes.NewReader(body))
		if err != nil || p.status != status {
			s.t.Fatalf("answer %+v %v, want %d", p, err, status)
		}
		return p
	}
	first, again := send(message, 201), send(message, 200)
	if !bytes.Equal(first.body, again.body) || first.CreatedAt == "" || !strings.Contains(string(first.body), fmt.Sprintf(`"payload_size":%d`, len(messagePayload(1)))) {
		s.t.Errorf("first %s, again %s", first.body, again.body)
	}
	send(bytes.Replace(message, []byte("order.created"), []byte("order.changed"), 1), 409)
	resp, err := client.Get(r.url + postboxPath)
	if err != nil {
		s.t.Fatal(err)
	}
	if _ = resp.Body.Close(); resp.StatusCode != http.StatusMethodNotAllowed {
		s.t.Errorf("GET: %d", resp.StatusCode)
	}
}

// expectDoctor expects that doctor names the grant and the column that writes need.
func (s *ingestScene) expectDoctor(r *ingestRelay) {
	s.t.Helper()
	if _, err := s.conn.exec(`CREATE ROLE reader LOGIN; GRANT SELECT, UPDATE ON postbox_messages TO reader;
		ALTER TABLE other_messages ADD shard int NOT NULL`); err != nil {
		s.t.Fatal(err)
	}
	env := []string{"SLUICEBOX_SOURCE_URL=" + strings.Replace(s.database, "postgres@", "reader@", 1)}
	out, _, _ := command(s.t, env, "doctor", "-c", r.file())
	for _, want := range []string{`GRANT INSERT ON "postbox_messages" TO "reader";`, `ALTER TABLE "other_messages" ALTER COLUMN "shard" SET DEFAULT`, "a relay already runs on this machine"} {
		if !strings.Contains(out, want) {
			s.t.Errorf("doctor does not say %q:\n%s", want, out)
		}
	}
}

// attack sends bodies of 100 MB, bombs and bodies that do not end, and good messages beside them.
func (s *ingestScene) attack(r *ingestRelay, client *http.Client, bomb string, round int) {
	s.t.Helper()
	var all errgroup.Group
	for i := range 4 {
		all.Go(func() error {
			p, err := post(client, r.url+postboxPath, "shop-token", zeros(100<<20))
			if err == nil && p.status != 413 { // a connection that is closed while the body is sent is fine
				return fmt.Errorf("a body of 100 MB: answer %d %s", p.status, p.body)
			}
			return nil
		})
		all.Go(func() error {
			p, err := post(client, r.url+postboxPath, "shop-token", strings.NewReader(bomb), "Content-Encoding", "gzip")
			if err != nil || p.status != 413 {
				return fmt.Errorf("a bomb: answer %+v %w", p, err)
			}
			return nil
		})
		all.Go(func() error {
			slow, end := io.Pipe()
			defer func() { _ = end.Close() }()
			p, err := post(client, r.url+postboxPath, "shop-token", slow)
			if err != nil || p.status != 408 {
				return fmt.Errorf("a body without an end: answer %+v %w", p, err)
			}
			return nil
		})
		for head, want := range heads() {
			all.Go(func() error { return expectHead(strings.TrimPrefix(r.url, "http://"), head, want) })
		}
		for n := range 2 {
			all.Go(func() error {
				_, body := postboxMessage(10+i, 1+2*round+n)
				p, err := post(client, r.url+postboxPath, "shop-token", bytes.NewReader(body))
				if err != nil || p.status != 201 {
					return fmt.Errorf("a good message: answer %+v %w", p, err)
				}
				return nil
			})
		}
	}
	if err := all.Wait(); err != nil {
		s.t.Error(err)
	}
}

// heads returns heads of requests, with the beginning of their answers: of a body of 100 MB, which is
// refused at once; and, after read-timeout, of one that does not end and of one without its body.
func heads() map[string]string {
	return map[string]string{
		"Content-Length: 104857600\r\n\r\n": "HTTP/1.1 413 ", "X-Slow: ": "", "Content-Length: 1000\r\n\r\n{": "HTTP/1.1 408 ",
	}
}

// expectHead sends the head of a request and expects the beginning of its answer; "" for none.
func expectHead(address, head, want string) error {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(testTimeout))
	if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer shop-token\r\nContent-Type: application/json\r\n%s", postboxPath, head); err != nil {
		return err
	}
	answer, err := io.ReadAll(io.LimitReader(conn, int64(len("HTTP/1.1 413 "))))
	if err != nil || string(answer) != want {
		return fmt.Errorf("%q: answer %q %w, want %q", head, answer, err, want)
	}
	return nil
}

// gzipped returns a compressed text.
func gzipped(t *testing.T, text io.Reader) string {
	t.Helper()
	var short bytes.Buffer
	w := gzip.NewWriter(&short)
	if _, err := io.Copy(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return short.String()
}
