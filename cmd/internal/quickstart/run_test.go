package quickstart

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/app"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/cmd/internal/demodb"
)

// fakeDatabase is a database that hands its rows to the tests' relays over a channel.
type fakeDatabase struct {
	mu        sync.Mutex
	counts    map[string]int
	rows      chan order
	commitErr error  // returned by commit
	cleanUps  []bool // the keep argument of each cleanUp
}

func newFakeDatabase() *fakeDatabase {
	return &fakeDatabase{counts: map[string]int{}, rows: make(chan order, 100_000)}
}

func (m *fakeDatabase) setUp(context.Context) (string, error)     { return "a note", nil }
func (m *fakeDatabase) session(context.Context) (session, error)  { return m, nil }
func (m *fakeDatabase) isStreaming(context.Context) (bool, error) { return true, nil }
func (m *fakeDatabase) close()                                    {}
func (m *fakeDatabase) cleanUp(_ context.Context, keep bool) error {
	m.cleanUps = append(m.cleanUps, keep)
	return nil
}
func (m *fakeDatabase) countByStatus(context.Context) (map[string]int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	states := map[string]int{}
	for word, n := range m.counts {
		states[word] = n
	}
	return states, nil
}

func (m *fakeDatabase) commit(_ context.Context, o order) error {
	if m.commitErr != nil && o.n > 1 {
		return m.commitErr
	}
	m.add("PENDING", 1)
	m.rows <- o
	return nil
}

func (m *fakeDatabase) add(word string, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts[word] += n
}

// relayOf returns a relay that sends committed rows, one per request, and retries each until
// it is accepted. spoil may replace the rows of a request.
func (m *fakeDatabase) relayOf(t *testing.T, spoil func(order) []order) func(context.Context, app.Options) error {
	return func(ctx context.Context, o app.Options) error {
		url := o.Config.FlowCatalyst("flowcatalyst").BaseURL + eventsPath
		for {
			select {
			case <-ctx.Done():
				return nil
			case row := <-m.rows:
				for _, one := range spoil(row) {
					for status := 0; status != 201; {
						status, _ = post(t, url, batch([]order{one}))
					}
				}
				m.add("PENDING", -1)
				m.add(completed, 1)
			}
		}
	}
}

func unchanged(o order) []order { return []order{o} }

// runWith runs a quickstart over a fakeDatabase with a relay.
func runWith(ctx context.Context, t *testing.T, o Options, m *fakeDatabase, relay func(context.Context, app.Options) error) (stdout, stderr string, err error) {
	t.Helper()
	t.Setenv("TMPDIR", t.TempDir())
	var out, errs bytes.Buffer
	q := &quickstart{opts: o, oracle: newOracle(o.Groups), faults: newFaults(o.FailRate), db: m, env: Environment{
		Stdout: &out, Stderr: &errs, Command: "sluicebox", Relay: relay,
	}}
	folder, err := os.MkdirTemp("", "")
	if err != nil {
		t.Fatal(err)
	}
	q.folder, q.dbInfo = folder, databaseInfo{name: demodb.NewName(namePrefix), url: "sqlite:///none", table: "t", description: "memory"}
	err = q.run(ctx)
	return out.String(), errs.String(), err
}

func shortOptions() Options { return Options{For: 200 * time.Millisecond, Rate: 500, Groups: 7} }

func TestRun(t *testing.T) {
	m := newFakeDatabase()
	o := shortOptions()
	o.FailRate = 0.3
	stdout, stderr, err := runWith(t.Context(), t, o, m, m.relayOf(t, unchanged))
	if err != nil {
		t.Fatal(err)
	}
	orders, _, _ := strings.Cut(stdout, " orders were committed") // a busy machine commits fewer
	if n, err := strconv.Atoi(orders); err != nil || n < 1 || n > 101 {
		t.Errorf("%d orders, want at least 1, %v, in:\n%s", n, err, stdout)
	}
	for _, text := range []string{"All " + orders + " rows were delivered", "requests failed on purpose", orders + " COMPLETED", "Try next:", "sluicebox run -c sluicebox.yaml"} {
		if !strings.Contains(stdout, text) {
			t.Errorf("no %q in:\n%s", text, stdout)
		}
	}
	if !strings.Contains(stderr, "a note\n") || !strings.Contains(stderr, "500 orders a second in 7 message groups, for 200ms; writers: 6") {
		t.Errorf("stderr is:\n%s", stderr)
	}
	if len(m.cleanUps) != 1 || m.cleanUps[0] {
		t.Errorf("left %v", m.cleanUps)
	}
	nothingLeft(t)
}

// TestNext: the suggested URLs have the source's scheme.
func TestNext(t *testing.T) {
	for source, want := range map[config.URL]string{"": "postgres", "postgresql://db/shop": "postgres", "mysql://db": "mysql", "MariaDB://u:canary@db/shop": "mariadb"} {
		got := nextStepsText("it's", source)
		if !strings.Contains(got, "--source "+want+"://USER@HOST/DATABASE\n") || !strings.Contains(got, "    url: "+want+"://relay@") || strings.Contains(got, "canary") {
			t.Errorf("%s:\n%s", source, got)
		}
	}
}

// nothingLeft expects no files in the folder for temporary folders.
func nothingLeft(t *testing.T) {
	t.Helper()
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestRunJSON(t *testing.T) {
	m := newFakeDatabase()
	o := shortOptions()
	o.JSON = true
	stdout, stderr, err := runWith(t.Context(), t, o, m, m.relayOf(t, unchanged))
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(strings.NewReader(stdout))
	d.DisallowUnknownFields()
	var r result
	if err := d.Decode(&r); err != nil || d.More() {
		t.Fatalf("%v: %s", err, stdout)
	}
	if r.Committed < 1 || r.Committed > 101 || r.Delivered != r.Committed || r.Duplicates+r.OutOfOrder+r.Failed != 0 ||
		r.P50 <= 0 || r.P99 < r.P50 || r.RowsPerS <= 0 || r.RowsPerS > 501 {
		t.Errorf("the result is %+v", r)
	}
	if stderr != "a note\n" {
		t.Errorf("stderr is %q", stderr)
	}
}

// TestRunFindsFaults: a relay that duplicates, swaps or invents rows is detected.
func TestRunFindsFaults(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil func() func(order) []order
		want  string
	}{
		"double": {func() func(order) []order {
			return func(o order) []order {
				if o == (order{3, 4}) {
					return []order{o, o}
				}
				return []order{o}
			}
		}, "1 row arrived again\nrow 0000300000004 arrived again"},
		"swap": {func() func(order) []order {
			var held []order
			return func(o order) []order {
				if o == (order{3, 4}) {
					held = []order{o}
					return nil
				}
				if o == (order{3, 5}) {
					return append([]order{o}, held...)
				}
				return []order{o}
			}
		}, "1 row arrived after a later row of its group"},
		"invent": {func() func(order) []order {
			return func(o order) []order {
				if o == (order{3, 4}) {
					return []order{o, {3, 99}}
				}
				return []order{o}
			}
		}, "1 row arrived that was not committed"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newFakeDatabase()
			stdout, _, err := runWith(t.Context(), t, shortOptions(), m, m.relayOf(t, tt.spoil()))
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(stdout, tt.want) || strings.Contains(stdout, "Try next") {
				t.Errorf("got %v, want %q; printed:\n%s", err, tt.want, stdout)
			}
		})
	}
}

// TestAwaitGivesUp: a lost row is waited for until no other has arrived for stallTimeout.
func TestAwaitGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, _ := oracleWith(5)
		q := &quickstart{oracle: o, db: newFakeDatabase()}
		begin := time.Now()
		go func() {
			time.Sleep(20 * time.Second)
			o.recordRequest(rows(1, 2), time.Now())
			time.Sleep(20 * time.Second)
			o.recordRequest(rows(4, 5), time.Now())
		}()
		done, err := q.await(t.Context(), q.allSettled)
		if took := time.Since(begin); done || err != nil || took < 70*time.Second || took > 71*time.Second {
			t.Errorf("after %s: %t, %v", took, done, err)
		}
		s, _ := o.currentState()
		if err := resultError(&s, map[string]int{completed: 5}); err == nil || !strings.Contains(err.Error(), "not delivered, for example: 0000100000003") {
			t.Errorf("resultError: got %v", err)
		}
	})
}

// TestAwaitSettled: rows must have a final status in the table, not just arrive.
func TestAwaitSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, _ := oracleWith(2)
		o.recordRequest(rows(1, 2), time.Now())
		m := newFakeDatabase()
		m.counts["PROCESSING"] = 2
		q := &quickstart{oracle: o, db: m}
		go func() {
			time.Sleep(time.Second)
			m.add("PROCESSING", -1)
			m.add(failed, 1)
			time.Sleep(time.Second)
			m.add("PROCESSING", -1)
			m.add(completed, 1)
		}()
		begin := time.Now()
		if done, err := q.await(t.Context(), q.allSettled); !done || err != nil || time.Since(begin) < 2*time.Second {
			t.Errorf("after %s: %t, %v", time.Since(begin), done, err)
		}
	})
}

func TestRunRelayEnds(t *testing.T) {
	m := newFakeDatabase()
	lost := errors.New("log lost")
	stdout, stderr, err := runWith(t.Context(), t, shortOptions(), m, func(_ context.Context, o app.Options) error {
		o.Log.Info("unseen")
		o.Log.Warn("it is getting dark")
		return lost
	})
	if !errors.Is(err, lost) || !strings.Contains(err.Error(), "relay ended: log lost") || stdout != "" {
		t.Errorf("got %v, and stdout %q", err, stdout)
	}
	if !strings.Contains(stderr, "Relay log:\n") || !strings.Contains(stderr, "it is getting dark") || strings.Contains(stderr, "unseen") {
		t.Errorf("stderr is %q", stderr)
	}
	if len(m.cleanUps) != 1 {
		t.Error("the database was not left")
	}
	nothingLeft(t)
}

func TestRunWriterFails(t *testing.T) {
	m := newFakeDatabase()
	m.commitErr = errors.New("the disk is full")
	_, _, err := runWith(t.Context(), t, shortOptions(), m, m.relayOf(t, unchanged))
	if !errors.Is(err, m.commitErr) || len(m.cleanUps) != 1 {
		t.Errorf("got %v, cleanUp calls %v", err, m.cleanUps)
	}
	nothingLeft(t)
}

func TestRunInterrupted(t *testing.T) {
	m := newFakeDatabase()
	ctx, interrupt := context.WithCancel(t.Context())
	o := shortOptions()
	o.For = time.Hour
	stdout, _, err := runWith(ctx, t, o, m, m.relayOf(t, func(o order) []order {
		if o.n == 3 {
			interrupt()
		}
		return []order{o}
	}))
	if !errors.Is(err, errInterrupted) || stdout != "" || len(m.cleanUps) != 1 || m.cleanUps[0] {
		t.Errorf("got %v, stdout %q, cleanUp calls %v", err, stdout, m.cleanUps)
	}
	nothingLeft(t)
}

func TestRunKeeps(t *testing.T) {
	m := newFakeDatabase()
	o := shortOptions()
	o.Keep = true
	stdout, _, err := runWith(t.Context(), t, o, m, m.relayOf(t, unchanged))
	if err != nil || !strings.Contains(stdout, "Kept: memory\n") || len(m.cleanUps) != 1 || !m.cleanUps[0] {
		t.Errorf("%v, cleanUp calls %v:\n%s", err, m.cleanUps, stdout)
	}
	files, err := filepath.Glob(filepath.Join(os.TempDir(), "*", "sluicebox.yaml"))
	if err != nil || len(files) != 1 || !strings.Contains(stdout, " run -c "+files[0]+"\n") || !strings.Contains(stdout, "rm -r "+filepath.Dir(files[0])+"\n") {
		t.Errorf("kept %v, %v:\n%s", files, err, stdout)
	}
}
