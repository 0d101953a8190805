package ingest_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ingest"
)

func compressed(t *testing.T, body string) string {
	t.Helper()
	var short bytes.Buffer
	w := gzip.NewWriter(&short)
	_, err := io.WriteString(w, body)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return short.String()
}

func TestCompressedBodies(t *testing.T) {
	f := serve(t, nil)
	gz := []string{"Content-Encoding", "gzip"}
	if a := f.post(ingest.PostboxPath, "shop-token", compressed(t, message("", "")), gz...); a.status != http.StatusCreated {
		t.Errorf("answer %d %s", a.status, a.text)
	}
	whole := compressed(t, message("id", `"cut"`))
	if a := f.post(ingest.PostboxPath, "shop-token", whole[:len(whole)-9], gz...); a.status != http.StatusBadRequest {
		t.Errorf("a body that is cut off: answer %d %s", a.status, a.text)
	}
	bomb := compressed(t, message("payload", `"`+strings.Repeat("0", 1<<20)+`"`))
	if a := f.post(ingest.PostboxPath, "shop-token", bomb, gz...); a.status != http.StatusRequestEntityTooLarge || !strings.Contains(a.Error, "compressed more than 200 to 1") {
		t.Errorf("a bomb: answer %d %s", a.status, a.text)
	}
	if len(f.table.rows) != 1 {
		t.Errorf("%d rows, want 1", len(f.table.rows))
	}
}

// endless is a body without an end.
type endless struct{ sent atomic.Int64 }

func (e *endless) Read(p []byte) (int, error) {
	e.sent.Add(int64(len(p)))
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// A body that is too large is refused once its limit is read, and before if it says its length.
func TestBodiesThatAreTooLarge(t *testing.T) {
	f := serve(t, nil)
	const limit = 2<<20 + 64<<10
	body := &endless{}
	a, err := f.send(ingest.PostboxPath, "shop-token", body)
	if err == nil && a.status != http.StatusRequestEntityTooLarge {
		t.Errorf("answer %d %s", a.status, a.text)
	}
	if sent := body.sent.Load(); sent < limit || sent > limit+16<<20 { // and what the sockets hold
		t.Errorf("%d bytes were sent, want about %d", sent, limit)
	}
	f.expectStatus("413")

	conn := f.dial()
	_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer shop-token\r\nContent-Type: application/json\r\nContent-Length: 100000000\r\nExpect: 100-continue\r\n\r\n", ingest.PostboxPath)
	if text, _ := io.ReadAll(conn); !strings.HasPrefix(string(text), "HTTP/1.1 413 ") {
		t.Errorf("a length of 100 MB: answer %q", text)
	}
}

func (f *fixture) dial() net.Conn {
	f.t.Helper()
	conn, err := net.Dial("tcp", f.server.Addr())
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (f *fixture) expectStatus(status string) {
	f.t.Helper()
	until(f.t, "answered with "+status, func() bool {
		f.observed.mu.Lock()
		defer f.observed.mu.Unlock()
		for code, n := range f.observed.statuses {
			if n > 0 && fmt.Sprint(code) == status {
				return true
			}
		}
		return false
	})
}

// slow is the head of a request whose body does not end.
const slow = "POST " + ingest.PostboxPath + " HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer shop-token\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"

// A body that does not end occupies its connection until read-timeout.
func TestSlowBodies(t *testing.T) {
	f := serve(t, func(c *ingest.Config, _ *fakeTable) { c.ReadTimeout = 100 * time.Millisecond })
	conn := f.dial()
	if _, err := io.WriteString(conn, slow); err != nil {
		t.Fatal(err)
	}
	if text, _ := io.ReadAll(conn); !strings.HasPrefix(string(text), "HTTP/1.1 408 ") || !strings.Contains(string(text), "Connection: close") {
		t.Errorf("answer %q", text)
	}
	header := f.dial()
	if _, err := io.WriteString(header, slow[:60]); err != nil {
		t.Fatal(err)
	}
	if text, _ := io.ReadAll(header); strings.Contains(string(text), " 20") {
		t.Errorf("a header without its end: answer %q", text)
	}
}

// Requests beyond max-memory are refused, and connections beyond max-connections wait.
func TestMemoryAndConnectionsAreBounded(t *testing.T) {
	f := serve(t, func(c *ingest.Config, table *fakeTable) {
		c.MaxMemory, c.MaxConnections = 5<<20, 2
		table.begun, table.release = make(chan struct{}, 10), make(chan struct{})
	})
	large := message("payload", `"`+strings.Repeat("a", 1<<20)+`"`) // a buffer of 2 MiB and its copy
	var requests sync.WaitGroup
	requests.Go(func() {
		if a, err := f.send(ingest.PostboxPath, "shop-token", strings.NewReader(large)); err != nil || a.status != http.StatusCreated {
			t.Errorf("the first: answer %+v %v", a, err)
		}
	})
	<-f.table.begun
	if a := f.post(ingest.PostboxPath, "shop-token", large); a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") != "2" || !strings.Contains(a.Error, "ingest.max-memory") {
		t.Errorf("the second: answer %d %s", a.status, a.text)
	}
	if a, err := f.send(ingest.PostboxPath, "shop-token", &endless{}); err == nil && a.status != http.StatusRequestEntityTooLarge {
		t.Errorf("a body that is too large while memory is short: answer %d %s", a.status, a.text)
	}
	f.expectStatus("413")
	requests.Go(func() {
		_, _ = f.send(ingest.PostboxPath, "shop-token", strings.NewReader(message("id", `"small"`)))
	})
	until(t, "waiting for a write", func() bool { return f.server.Waiting("postbox") == 1 })
	third := f.dial()
	_, _ = fmt.Fprintf(third, "POST / HTTP/1.1\r\nHost: a\r\n\r\n")
	_ = third.SetReadDeadline(time.Now().Add(50 * time.Millisecond)) // no event shows that nothing comes
	if _, err := third.Read(make([]byte, 1)); !isTimeout(err) {
		t.Errorf("a connection beyond the limit was answered: %v", err)
	}
	close(f.table.release)
	requests.Wait()
	f.client.CloseIdleConnections()
	_ = third.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := third.Read(make([]byte, 1)); err != nil {
		t.Errorf("a connection that waited: %v", err)
	}
}

func isTimeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

// Requests that come while a write is in flight share the next one. A repeated id waits for the
// one after it.
func TestRequestsThatWaitShareAWrite(t *testing.T) {
	f := serve(t, func(_ *ingest.Config, table *fakeTable) {
		table.begun, table.release = make(chan struct{}, 10), make(chan struct{})
	})
	var requests sync.WaitGroup
	send := func(id string) {
		requests.Go(func() {
			if a, err := f.send(ingest.PostboxPath, "shop-token", strings.NewReader(message("id", `"`+id+`"`))); err != nil || a.status >= 300 {
				t.Errorf("%s: answer %+v %v", id, a, err)
			}
		})
	}
	send("first")
	<-f.table.begun
	for i := range 50 {
		send(fmt.Sprint(i))
	}
	until(t, "50 waiting", func() bool { return f.server.Waiting("postbox") == 50 })
	send("7")
	until(t, "51 waiting", func() bool { return f.server.Waiting("postbox") == 51 })
	close(f.table.release)
	requests.Wait()
	var sizes []int
	for _, ids := range f.table.writes {
		sizes = append(sizes, len(ids))
	}
	if fmt.Sprint(sizes) != "[1 50 1]" || f.observed.rows != 52 {
		t.Errorf("writes of %v rows, want [1 50 1]; %d observed", sizes, f.observed.rows)
	}
}

// A write that fails is answered with 503, and the next request is written.
func TestDatabaseAway(t *testing.T) {
	f := serve(t, func(_ *ingest.Config, table *fakeTable) { table.err = errors.New("gone") })
	a := f.post(ingest.PostboxPath, "shop-token", message("", ""))
	if a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") != "2" || strings.Contains(a.text, "gone") {
		t.Errorf("answer %d %s", a.status, a.text)
	}
	f.table.mu.Lock()
	f.table.err = nil
	f.table.mu.Unlock()
	if a := f.post(ingest.PostboxPath, "shop-token", message("", "")); a.status != http.StatusCreated {
		t.Errorf("afterwards: answer %d %s", a.status, a.text)
	}
}

// A shutdown answers the rows that wait. A body that is not complete gets 503, and no connection
// is accepted any more.
func TestShutdownAnswersWhatWaits(t *testing.T) {
	f := serve(t, func(_ *ingest.Config, table *fakeTable) {
		table.begun, table.release = make(chan struct{}, 10), make(chan struct{})
	})
	var requests sync.WaitGroup
	send := func(id string) {
		requests.Go(func() {
			a, err := f.send(ingest.PostboxPath, "shop-token", strings.NewReader(message("id", `"`+id+`"`)))
			if err != nil || a.status != http.StatusCreated || a.header.Get("Connection") != "close" {
				t.Errorf("%s: answer %+v %v", id, a, err)
			}
		})
	}
	send("first")
	<-f.table.begun // alone in its write
	send("second")
	send("third")
	until(t, "2 waiting", func() bool { return f.server.Waiting("postbox") == 2 })
	half := f.dial()
	const begins = "HTTP/1.1 100 Continue\r\n\r\n" // the server reads the body
	if _, err := io.WriteString(half, strings.Replace(slow, "\r\n\r\n{", "\r\nExpect: 100-continue\r\n\r\n", 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(half, make([]byte, len(begins))); err != nil {
		t.Fatal(err)
	}
	f.stop()
	if text, _ := io.ReadAll(half); !strings.HasPrefix(string(text), "HTTP/1.1 503 ") || !strings.Contains(string(text), "Retry-After: 2") {
		t.Errorf("half a body: answer %q", text)
	}
	until(t, "refusing connections", func() bool { // the answer may come before the listener closes
		conn, err := net.Dial("tcp", f.server.Addr())
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	close(f.table.release)
	requests.Wait()
	if err := <-f.ended; err != nil {
		t.Errorf("Run returned %v", err)
	}
	f.ended <- nil
}

// settledRows is a table that knows which rows are settled.
type settledRows struct {
	settled map[string]bool
	asked   int
	err     error
}

func (s *settledRows) ReadSettled(_ context.Context, rows []store.ClaimRow) ([]bool, error) {
	s.asked++
	all := make([]bool, len(rows))
	for i := range rows {
		all[i] = s.settled[rows[i].ID]
	}
	return all, s.err
}

// Rows lag once the first of them behind the last settled one is older than max-lag. A blocked
// group does not count, and the table is asked rarely.
func TestLag(t *testing.T) {
	now := time.Unix(0, 0)
	table := &settledRows{settled: map[string]bool{}}
	p := ingest.NewProgress(time.Minute, table, func() time.Time { return now })
	expect := func(what string, lagging bool, asked int) {
		t.Helper()
		if got := p.Lagging(t.Context()); got != lagging || table.asked != asked {
			t.Errorf("%s: lagging %t after %d questions, want %t after %d", what, got, table.asked, lagging, asked)
		}
	}
	expect("no row", false, 0)
	p.Wrote("blocked")
	now = now.Add(20 * time.Second)
	p.Wrote("second")
	p.Wrote("too soon")
	expect("young rows", false, 0)
	now = now.Add(41 * time.Second)
	expect("an old row", true, 1)
	expect("at once again", true, 1)
	table.settled["second"] = true
	now = now.Add(time.Second)
	expect("a later row is settled", false, 2)
	p.Wrote("third")
	now = now.Add(2 * time.Minute)
	table.err = errors.New("gone")
	expect("the database is away", false, 3)
	table.err = nil
	now = now.Add(time.Second)
	expect("the database is back", true, 4)
}

// Beyond max-lag a request gets 429, before its body is read.
func TestLagIsAnswered(t *testing.T) {
	f := serve(t, func(c *ingest.Config, _ *fakeTable) { c.MaxLag = time.Millisecond })
	if a := f.post(ingest.PostboxPath, "shop-token", message("", "")); a.status != http.StatusCreated {
		t.Fatalf("answer %d %s", a.status, a.text)
	}
	until(t, "lagging", func() bool {
		a := f.post(ingest.PostboxPath, "shop-token", "")
		return a.status == http.StatusTooManyRequests && a.header.Get("Retry-After") == "10"
	})
}
