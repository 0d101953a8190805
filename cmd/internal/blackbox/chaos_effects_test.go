package blackbox

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// effects counts how often the counted kinds of faults acted.
type effects struct {
	mu sync.Mutex
	n  map[string]int
}

func (e *effects) add(kind string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.n[kind]++
}

func (e *effects) all() map[string]int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.n)
}

func (e *effects) text(kind string) string {
	if n := e.all()[kind]; n > 0 {
		return fmt.Sprint(n)
	}
	return "-"
}

// effectTimeout is how much longer a fault lasts that has not acted, for example because another one at the
// same time lets no request through.
const effectTimeout = 10 * time.Second

// awaitEffects waits until the faults of a step have acted, unless it keeps all relays down.
func (c *chaos) awaitEffects(of []chaosKind, before map[string]int) {
	c.t.Helper()
	for end := time.Now().Add(effectTimeout); time.Now().Before(end) && c.someRelayIsWanted(); c.sleep(50 * time.Millisecond) {
		now := c.effects.all()
		if !slices.ContainsFunc(of, func(k chaosKind) bool { return k.counted && now[k.name] == before[k.name] }) {
			return
		}
	}
}

// expectEffects fails the run if a kind of its schedule never acted, or no row was sent over HTTP.
func (c *chaos) expectEffects(kinds []chaosKind) {
	c.t.Helper()
	all := c.effects.all()
	for _, k := range kinds {
		if times := c.report.kinds[k.name]; k.counted && times != nil && all[k.name] == 0 {
			c.wrong("%q came %d times and had no effect", k.name, len(times.recovered))
		}
	}
	if c.posts.rows.Load() == 0 {
		c.wrong("no row was written over HTTP")
	}
}

// able removes the kinds that a run cannot have. A database is on a disk that can be full only where it is
// in memory anyway, or if KINDS names the fault.
func (p chaosPlan) able(t *testing.T, kinds []chaosKind) []chaosKind {
	t.Helper()
	if !p.items() {
		kinds = withoutNeed(kinds, needItems)
	}
	if os.Getenv("SLUICEBOX_TEST_DATA") != "" && !slices.Contains(p.only, diskFull) {
		return withoutNeed(kinds, needDisk)
	}
	if slices.ContainsFunc(kinds, func(k chaosKind) bool { return k.needs == needDisk }) {
		if _, err := servers.MountDisk(t, t.TempDir(), 1<<20); err != nil {
			t.Logf("the disk of the database is never full: %v", err)
			return withoutNeed(kinds, needDisk)
		}
	}
	return kinds
}

// hasKind reports whether a schedule has a kind.
func hasKind(steps []chaosStep, name string) bool {
	return slices.ContainsFunc(steps, func(s chaosStep) bool { return slices.Contains(s.Kinds, name) })
}

// diskFull is the kind that fills the disk of the database.
const diskFull = "database's disk full"

// chaosDisk holds the rows of an hour at 1000 rows/s. The disk takes memory only for what is on it.
const chaosDisk = 8 << 30

// diskKinds fill the disk of the database until a transaction fails or waits. The server may crash of it, or wait for
// room, so it is killed and started again once there is room.
func diskKinds() []chaosKind {
	return []chaosKind{{
		name: diskFull, least: 2 * time.Second, most: 5 * time.Second, counted: true, needs: needDisk, on: hasServer,
		inject: func(c *chaos, _ *rand.Rand) func() {
			refused := func() { c.effects.add(diskFull) }
			c.refused.Store(&refused)
			c.disk.Fill(0)
			return func() {
				c.refused.Store(nil)
				c.disk.Free()
				c.server.Stop("immediate")
				c.server.Restart(nil)
			}
		},
	}}
}

// Groups of the rows over HTTP, which no other writer has, and how often they get rows.
const (
	postGroups   = 6000
	postedGroups = 5
	postInterval = 100 * time.Millisecond
)

// ingestPosts counts the rows that were sent over HTTP.
type ingestPosts struct{ rows, requests, repeats atomic.Int64 }

func (p *ingestPosts) String() string {
	return fmt.Sprintf("%d rows, %d requests, %d of them repeated", p.rows.Load(), p.requests.Load(), p.repeats.Load())
}

// poster writes rows over HTTP, one of each group in a request.
func (w *workload) poster(ctx context.Context) {
	tick := time.NewTicker(postInterval)
	defer tick.Stop()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		w.busy.RLock()
		if !w.stopped.Load() {
			w.post(client, n)
		}
		w.busy.RUnlock()
	}
}

// post sends rows until a relay has taken all of them. Each attempt goes to the other relay.
func (w *workload) post(client *http.Client, n int) {
	jobs := n%2 == 1
	var rows []*chaosRow
	var body []map[string]string
	for i := range postedGroups {
		r := w.row(postGroups+i, jobs)
		rows = append(rows, r)
		body = append(body, map[string]string{"id": r.id, "group": r.group, "payload": r.payload})
	}
	text, err := json.Marshal(body)
	for try := 0; err == nil; try++ {
		w.posts.requests.Add(1)
		var p *posted
		p, err = post(client, w.ingests(n+try)+"/api/v1/ingest/"+rows[0].table, "service-token", bytes.NewReader(text))
		switch {
		case err == nil && (p.status == http.StatusCreated || p.status == http.StatusOK):
			w.posts.rows.Add(int64(len(rows)))
			w.commit(rows)
			return
		case err == nil && p.status/100 == 4 && p.status != http.StatusRequestTimeout && p.status != http.StatusTooManyRequests || try > 600:
			err = fmt.Errorf("%d %s: %w", p.status, p.body, errWrongRow)
		case err == nil && p.status == http.StatusMultiStatus && bytes.Contains(p.body, []byte(`"status":4`)):
			err = fmt.Errorf("%s: %w", p.body, errWrongRow)
		default: // a relay is down, or has no database
			err = nil
			w.posts.repeats.Add(1)
			time.Sleep(100 * time.Millisecond)
		}
	}
	err = fmt.Errorf("post %s: %w", rows[0].id, err)
	w.errs.CompareAndSwap(nil, &err)
}
