package blackbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// chaosRow is a row of the workload.
type chaosRow struct {
	id, table, kind, group string // no group: ""
	n                      int64  // in the group
	payload                string
	at                     time.Time // created_at, ascending in the group

	committed time.Time
	mayFail   bool // the row cannot be delivered
	overdue   bool // a failure of the run has named it
	noOrder   bool // an operator may have moved it in its group
}

// chaosStore writes rows, each call in a session of its own.
type chaosStore interface {
	// begin inserts rows and leaves the transaction open.
	begin(ctx context.Context, rows []*chaosRow) (end func(commit bool) error, err error)
	// exists reports whether an error says that a row exists already.
	exists(err error) bool
	// states reads the state of every row that was created at a time or later.
	states(ctx context.Context, since time.Time, take func(id, state string)) error
}

// chaosWriters is how many services write.
const chaosWriters = 8

// Groups of the workload. A hot one gets half of its writer's rows.
const (
	chaosGroups = 200
	chaosHot    = chaosWriters
)

// truth has what the workload committed and what the receiver accepted since the last phase, and
// little of the phases before.
type truth struct {
	mu       sync.Mutex
	rows     map[string]*chaosRow
	order    []*chaosRow // by commit
	oldest   int         // in order; all before have arrived or cannot
	last     map[string]int64
	lastTime map[string]time.Time
	arrivals []chaosArrival
	arrived  map[string]bool
	newest   time.Time       // when the youngest row that arrived was committed
	replayed int             // arrivals of replays
	marks    []string        // begin the ids of what arrives at the further destinations of the jobs
	lates    map[string]bool // ids of arrivals that were answered late; see lateAnswer

	seed    maphash.Seed
	retired map[uint64]int32 // by the hash of what arrived in earlier phases: see retire
}

// chaosArrival is an accepted row.
type chaosArrival struct {
	id, sum string
	at      time.Time
}

func newTruth() *truth {
	return &truth{rows: map[string]*chaosRow{}, last: map[string]int64{}, lastTime: map[string]time.Time{}, arrived: map[string]bool{}, lates: map[string]bool{},
		seed: maphash.MakeSeed(), retired: map[uint64]int32{}}
}

// row makes the next row of a group.
func (w *truth) row(group int, jobs bool) *chaosRow {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &chaosRow{table: "outbox_events", kind: "EVENT", group: fmt.Sprint("group-", group)}
	if jobs {
		r.table, r.kind = "outbox_dispatch_jobs", "DISPATCH_JOB"
	}
	lane := r.lane()
	w.last[lane]++
	r.n = w.last[lane]
	r.id = fmt.Sprintf("%s%05d%08d", r.kind[:1], group, r.n)
	r.at = time.Now().UTC().Truncate(time.Millisecond)
	if least := w.lastTime[lane].Add(time.Millisecond); r.at.Before(least) {
		r.at = least
	}
	w.lastTime[lane] = r.at
	r.fill("")
	return r
}

// fill sets the payload in the form that MySQL gives a JSON value, so that it is the same everywhere.
func (r *chaosRow) fill(pad string) {
	r.payload = fmt.Sprintf(`{"n": %d, "id": %q, "pad": %q}`, r.n, r.id, pad)
}

func (r *chaosRow) lane() string { return r.kind + " " + r.group }

// commit notes rows that were committed.
func (w *truth) commit(rows []*chaosRow) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for _, r := range rows {
		r.committed = now
		w.rows[r.id] = r
		if w.arrived[r.id] {
			w.newest = now
		}
	}
	w.order = append(w.order, rows...)
}

// accept notes an accepted item of the receiver.
func (w *truth) accept(id string, body []byte, replay bool) {
	if replay {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.replayed++
		return
	}
	w.acceptAt(id, body, time.Now())
}

// acceptAt is accept for what arrived earlier.
func (w *truth) acceptAt(id string, body []byte, at time.Time) {
	sum := sumOf(body)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.arrivals = append(w.arrivals, chaosArrival{id, sum, at})
	w.arrived[id] = true
	if r := w.rows[id]; r != nil && r.committed.After(w.newest) {
		w.newest = r.committed
	}
}

// late notes that rows which arrived were answered late.
func (w *truth) late(ids []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		w.lates[id] = true
	}
}

func sumOf(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:8])
}

// lag is the age of the oldest committed row that has not arrived and could, with its id.
func (w *truth) lag() (time.Duration, string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for ; w.oldest < len(w.order); w.oldest++ {
		if r := w.order[w.oldest]; !w.arrived[r.id] && !r.mayFail && !r.overdue {
			return time.Since(r.committed), r.id
		}
	}
	return 0, ""
}

// overdue makes lag forget the rows that have not arrived.
func (w *truth) overdue() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.order[w.oldest:] {
		r.overdue = !w.arrived[r.id]
	}
}

// fresh reports whether a row has arrived that was committed after a time.
func (w *truth) fresh(since time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.newest.After(since)
}

// knobs change what the writers write.
type knobs struct {
	stopped atomic.Bool
	odd     atomic.Pointer[func(r *chaosRow, rnd *rand.Rand)] // changes some rows
	refused atomic.Pointer[func()]                            // called when a transaction fails, or waits for long
}

// workload is the writers.
type workload struct {
	*truth
	knobs
	store chaosStore
	rate  int // rows per second

	work   sync.WaitGroup
	cancel context.CancelFunc
	errs   atomic.Pointer[error] // that no fault explains
	again  atomic.Int64          // transactions that were tried again
	posts  ingestPosts
	// ingests is the address of a relay that takes rows, by turns; nil: none does.
	ingests func(n int) string
	busy    sync.RWMutex // read-locked by each transaction
}

// start starts the writers.
func (w *workload) start(seed uint64) {
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	for n := range chaosWriters {
		w.work.Go(func() { w.writer(ctx, n, rand.New(rand.NewPCG(seed, uint64(100+n)))) })
	}
	if w.ingests != nil {
		w.work.Go(func() { w.poster(ctx) })
	}
}

// stop ends the writers. No transaction is open after it.
func (w *workload) stop() {
	w.cancel()
	w.work.Wait()
}

// most is how many rows a transaction has at most.
const chaosMostRows = 5

func (w *workload) writer(ctx context.Context, n int, rnd *rand.Rand) {
	every := time.Duration(float64(time.Second) * chaosWriters * (chaosMostRows + 1) / 2 / float64(w.rate))
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		w.busy.RLock()
		if !w.stopped.Load() {
			w.transaction(ctx, n, rnd)
		}
		w.busy.RUnlock()
	}
}

// pause stops the writers between two transactions until resume.
func (w *workload) pause() {
	w.stopped.Store(true)
	w.busy.Lock()
	defer w.busy.Unlock() // it has waited for open transactions
}

func (w *workload) resume() { w.stopped.Store(false) }

// transaction writes rows into groups that only this writer has.
func (w *workload) transaction(ctx context.Context, n int, rnd *rand.Rand) {
	rows := make([]*chaosRow, 1+rnd.IntN(chaosMostRows))
	for i := range rows {
		group := n
		if rnd.IntN(2) == 0 {
			group = n + chaosHot*(1+rnd.IntN(chaosGroups/chaosHot-1))
		}
		rows[i] = w.row(group, rnd.IntN(2) == 0)
		if odd := w.odd.Load(); odd != nil {
			(*odd)(rows[i], rnd)
		}
	}
	w.write(ctx, rows)
}

// write commits rows. If the outcome of a commit is unknown, it inserts them again: they exist if
// they were committed, and an insert waits for a transaction that is still open.
func (w *workload) write(ctx context.Context, rows []*chaosRow) {
	for try := 0; ; try++ {
		attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		late := time.AfterFunc(lateWrite, w.hindered)
		end, err := w.store.begin(attempt, rows)
		if err == nil {
			err = end(true)
		}
		late.Stop()
		cancel()
		if err == nil || w.store.exists(err) && try > 0 {
			w.commit(rows)
			return
		}
		w.again.Add(1)
		w.hindered()
		if w.store.exists(err) || errors.Is(err, errWrongRow) || try > 600 {
			err = fmt.Errorf("write %s: %w", rows[0].id, err)
			w.errs.CompareAndSwap(nil, &err)
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// lateWrite is when a transaction that waits counts as hindered. MySQL waits for room on a full disk.
const lateWrite = 2 * time.Second

func (w *workload) hindered() {
	if note := w.refused.Load(); note != nil {
		(*note)()
	}
}

// errWrongRow says that the database does not take such a row.
var errWrongRow = errors.New("the row is wrong")
