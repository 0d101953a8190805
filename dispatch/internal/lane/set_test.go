package lane

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicebox/sluicebox/dispatch/internal/breaker"
	"github.com/sluicebox/sluicebox/dispatch/internal/replay"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// setModel is the reference model of a set: the rows of each lane in order, and where each
// lane must be.
type setModel struct {
	t      *rapid.T
	s      *Set
	cfg    Config
	limits sink.Limits
	now    time.Time
	jobs   replay.Jobs[Owner]

	left     map[Name][]string // ids in order, by lane
	added    int
	locked   map[string]bool // tables
	held     map[Name]bool
	claiming []*Request
	sending  []*Request
	down     bool // the receivers are down
	opened   bool // a breaker has opened, so lanes that were probed wait behind others
}

func newSetModel(t *rapid.T) *setModel {
	m := &setModel{
		t: t, now: time.Unix(1e9, 0), jobs: replay.NewJobs[Owner](),
		down: rapid.Bool().Draw(t, "down"),
		left: map[Name][]string{}, locked: map[string]bool{}, held: map[Name]bool{},
		limits: sink.Limits{MaxItems: rapid.IntRange(1, 6).Draw(t, "items"), MaxBytes: rapid.IntRange(1, 90).Draw(t, "bytes")},
	}
	m.limits.Mode = rapid.SampledFrom([]sink.Mode{sink.Atomic, sink.Ordered, sink.PerItem, sink.Prefix}).Draw(t, "mode")
	m.limits.MaxLanes, m.limits.MaxRun = rapid.IntRange(0, 3).Draw(t, "lanes"), rapid.IntRange(0, 3).Draw(t, "run")
	m.cfg = Config{
		BatchRows: rapid.IntRange(1, 7).Draw(t, "batch"), Senders: rapid.IntRange(1, 4).Draw(t, "senders"), ClaimAhead: 1,
		BufferRows: 40, BufferBytes: int64(rapid.IntRange(1, 1000).Draw(t, "buffer")), RowLanes: rapid.Bool().Draw(t, "row lanes"),
		Breaker: &breaker.Config{
			Backoff:       func(n int) time.Duration { return time.Second << min(n-1, 5) },
			RetryAfterMax: time.Minute, MaxConcurrentEager: 2, PingInterval: time.Second, MaxPings: 1,
		},
		Limits: func(kind string) sink.Limits {
			l := m.limits
			if l.Endpoint = kind; kind == "JOB" { // its rows name their endpoints
				l.EndpointOf = func(msg *sink.Message) string { return string(msg.Payload[:1]) }
			}
			return l
		},
		Random: func() float64 { return 0.5 },
	}
	m.s = NewSet(m.cfg)
	return m
}

// item returns a new row of one of twelve keys.
func (m *setModel) item(t *rapid.T) store.Item {
	kind := rapid.SampledFrom([]string{"EVENT", "JOB"}).Draw(t, "kind")
	m.added++
	return store.Item{
		Ref:  store.Ref{Outbox: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "outbox"), ID: fmt.Sprint(m.added)},
		Kind: kind, Group: rapid.SampledFrom([]store.Group{{}, store.GroupOf("g"), store.GroupOf("h")}).Draw(t, "group"),
		Payload: payload(m.added, 3), PayloadSize: rapid.IntRange(3, 50).Draw(t, "size"),
	}
}

// payload returns the payload of the n-th row. Its first byte is the endpoint: a, b or c.
func payload(n, size int) []byte {
	p := make([]byte, size)
	p[0] = "abc"[n/3%3]
	return p
}

// endpoint returns the endpoint of a row.
func endpoint(rw *Row) string {
	n, _ := strconv.Atoi(rw.ID)
	if rw.Kind == "JOB" {
		return string(payload(n, 1))
	}
	return rw.Kind
}

func (m *setModel) append(t *rapid.T) {
	rw := &Row{Item: m.item(t)}
	rw.Payload = payload(m.added, rw.PayloadSize)
	l, _ := m.s.Ensure(m.s.NameOf(&rw.Item))
	m.s.Memory.Enter(rw, rapid.SampledFrom([]Account{Buffered, Reloaded}).Draw(t, "account"))
	m.enter(l, rw)
}

func (m *setModel) replay(t *rapid.T) {
	j := m.jobs.Open("job")
	rw := &Row{Item: m.item(t), Job: j, ReplayN: int64(m.added)}
	rw.PayloadSize = len(rw.Payload)
	m.jobs.Enter(j, rw.ReplayN, rw.Lane(), rw.PayloadSize)
	l := m.s.EnsureReplay(j, &rw.Item)
	if l.OnHold() { // its live lane is
		m.held[l.Name] = true
	}
	m.enter(l, rw)
}

func (m *setModel) enter(l *Lane, rw *Row) {
	l.Rows = append(l.Rows, rw)
	m.left[l.Name] = append(m.left[l.Name], rw.ID)
	m.next(l)
}

// next moves an idle lane on, like the core.
func (m *setModel) next(l *Lane) {
	switch {
	case l.State != Idle:
	case m.held[l.Name]:
		l.Hold()
	case len(l.Rows) > 0:
		m.s.Queue(l)
	default:
		m.s.Remove(l)
		delete(m.left, l.Name)
	}
}

func (m *setModel) release(l *Lane) {
	l.Rest()
	m.next(l)
}

// claim begins requests and checks what they carry.
func (m *setModel) claim(t *rapid.T) {
	unsent := len(m.s.Requests.Unsent())
	reqs := m.s.NextClaims(rapid.IntRange(1, 20).Draw(t, "most"), m.now)
	m.claiming = append(m.claiming, reqs...)
	oldest := uint64(0) // the lane that was last in turn
	for _, req := range slices.Concat(reqs, m.s.Requests.Unsent()[unsent:]) {
		m.checkRequest(req)
		if first := req.Runs[0].Lane; req.Probe == breaker.None && req.LargeBytes == 0 && first.Job == nil {
			oldest = max(oldest, first.ReadyOrder)
		}
	}
	for _, recv := range m.s.Endpoints.All() {
		for _, l := range recv.Untried() {
			if l.ReadyOrder < oldest && !m.opened && !recv.Named { // those have part of the senders
				t.Fatalf("lane %s waits, though it was ready before another", l.Name)
			}
		}
	}
	if n := m.s.Requests.Len(); n > m.cfg.Senders+m.cfg.ClaimAhead && len(reqs) > 0 {
		t.Fatalf("requests in flight: got %d, want at most %d", n, m.cfg.Senders+m.cfg.ClaimAhead)
	}
}

func (m *setModel) checkRequest(req *Request) {
	n, bytes, first := req.Size(), 0, req.Runs[0].Lane
	for _, r := range req.Runs {
		l := r.Lane
		if l.Name.Kind != first.Name.Kind || l.Job != first.Job || len(r.Rows) == 0 || len(req.Runs) > 1 && (l.sharesNone(m.limits.Mode) || l.Isolated != first.Isolated) ||
			m.limits.Mode == sink.PerItem && len(r.Rows) > 1 || l.Job == nil && m.locked[l.Name.Outbox] || m.held[l.Name] {
			m.t.Fatalf("a run of %d rows of lane %s in a request of %s", len(r.Rows), l.Name, first.Name)
		}
		if most := m.limits.MaxRun; most > 0 && len(r.Rows) > most && len(req.Runs) > 1 {
			m.t.Fatalf("a run of %d rows in a request of %d lanes, %d are allowed", len(r.Rows), len(req.Runs), most)
		}
		for i, rw := range r.Rows {
			bytes += rw.PayloadSize
			if m.left[l.Name][i] != rw.ID {
				m.t.Fatalf("lane %s: row %d of the run: got %s, want %s", l.Name, i, rw.ID, m.left[l.Name][i])
			}
		}
	}
	if most := m.limits.MaxLanes; most > 0 && len(req.Runs) > most {
		m.t.Fatalf("a request of %d lanes, %d are allowed", len(req.Runs), most)
	}
	limit := m.limits.MaxBytes
	if first.Job == nil {
		limit = min(limit, int(m.s.Memory.RequestShare()))
	}
	if n > max(1, min(m.cfg.BatchRows, m.limits.MaxItems)) || n > 1 && bytes > limit || n > 1 && req.Probe != breaker.None {
		m.t.Fatalf("a request of %d rows, %d bytes, probe %d", n, bytes, req.Probe)
	}
}

// answerClaims answers all claims. Some heads are not visible yet.
func (m *setModel) answerClaims(t *rapid.T) {
	for _, req := range m.claiming {
		m.s.Requests.Claimed(req)
		kept := req.Runs[:0]
		for _, r := range req.Runs {
			if rapid.IntRange(0, 4).Draw(t, "visible") == 0 {
				r.Lane.InFlight, r.Lane.WakeAt = 0, r.Lane.NextLookup(&store.ClaimAnswer{Result: store.NotYetVisible}, m.now)
				m.s.Wait(r.Lane)
				continue
			}
			for _, rw := range r.Rows {
				n, _ := strconv.Atoi(rw.ID)
				m.s.RecordClaim(rw, &store.ClaimAnswer{Payload: payload(n, rw.PayloadSize)}, m.now)
			}
			r.Rows = m.s.Endpoints.SameEndpoint(r.Rows)
			r.Lane.Send(len(r.Rows))
			kept = append(kept, r)
		}
		recv := req.Receiver()
		if req.Runs = kept; len(kept) > 0 {
			for _, part := range m.s.Endpoints.Split(req) {
				if m.s.Requests.Push(part); part.Receiver().Breaker.Open() {
					m.takeBack(part.Receiver())
				}
			}
		} else {
			m.s.Memory.ReleaseLarge(req)
			recv.Breaker.Withdraw(req.Probe)
		}
	}
	m.claiming = nil
}

// send passes requests to the senders.
func (m *setModel) send(*rapid.T) {
	for req := m.s.Requests.Next(m.now); req != nil; req = m.s.Requests.Next(m.now) {
		m.sending = append(m.sending, req)
		for rw := range req.Rows() {
			if to := req.Receiver().Endpoint; endpoint(rw) != to {
				m.t.Fatalf("row %s of %s is sent to %s", rw.ID, endpoint(rw), to)
			}
		}
		for _, msg := range req.Messages() {
			if (msg.Replay != "") != (req.Job() != nil) || msg.Attempt == 0 {
				m.t.Fatalf("row %s of job %q in a request of job %v, attempt %d", msg.ID, msg.Replay, req.Job(), msg.Attempt)
			}
		}
	}
	if len(m.sending) > m.cfg.Senders {
		m.t.Fatalf("requests being sent: got %d, want at most %d", len(m.sending), m.cfg.Senders)
	}
}

func (m *setModel) answer(t *rapid.T) {
	if len(m.sending) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.sending)-1).Draw(t, "request")
	req := m.sending[i]
	m.sending = slices.Delete(m.sending, i, i+1)
	res := sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}
	if m.down {
		res.Class = sink.Unavailable
	}
	m.s.Requests.Answered(req)
	m.s.Memory.ReleaseLarge(req)
	m.breakerChanged(req.Receiver(), req.RecordResult(&res, m.now))
	for _, r := range req.Runs {
		m.answerRun(r, res.Class)
	}
}

// breakerChanged takes back the requests that a breaker stops when it opens.
func (m *setModel) breakerChanged(recv *Receiver, change breaker.Change) {
	m.s.BreakerChanged(recv, change)
	if change != breaker.Opened {
		return
	}
	m.opened = true
	m.takeBack(recv)
}

// takeBack takes back the claimed requests to a receiver, except probes.
func (m *setModel) takeBack(recv *Receiver) {
	for _, req := range m.s.Requests.TakeUnsent(func(r *Request) bool { return r.Probe == breaker.None && r.Receiver() == recv }) {
		m.s.Memory.ReleaseLarge(req)
		for _, r := range req.Runs {
			m.release(r.Lane)
		}
	}
}

// toggleBreaker opens the breaker of a receiver or closes it. An endpoint that rows name gets
// no answer once it has no lanes.
func (m *setModel) toggleBreaker(t *rapid.T) {
	recvs := slices.DeleteFunc(slices.Clone(m.s.Endpoints.All()), func(recv *Receiver) bool { return recv.Named && recv.Lanes == 0 })
	if len(recvs) == 0 {
		return
	}
	recv := recvs[rapid.IntRange(0, len(recvs)-1).Draw(t, "endpoint")]
	for open := recv.Breaker.Open(); recv.Breaker.Open() == open; {
		a := breaker.Answer{Started: m.now, Accepted: open, Failure: sink.Outcome{Class: sink.Unavailable}}
		m.breakerChanged(recv, recv.Breaker.Answered(&a, m.now))
	}
}

func (m *setModel) answerRun(r *Run, class sink.Class) {
	l, n := r.Lane, len(r.Rows)
	if class != sink.Delivered {
		l.RecordFailure("down")
		if l.WaitsForBreaker(0) {
			m.release(l)
			return
		}
		l.WakeAt = m.now.Add(m.s.Backoff(l, 0))
		if l.Rest(); m.held[l.Name] {
			m.next(l)
			return
		}
		m.s.Wait(l)
		return
	}
	for _, rw := range r.Rows {
		rw.Finish()
		if l.Job == nil {
			m.s.Memory.Leave(rw)
		}
	}
	m.left[l.Name] = m.left[l.Name][n:]
	l.RemoveDone(n)
	l.RecordDelivered(n, m.cfg.BatchRows)
	m.release(l)
}

func (m *setModel) pass(d time.Duration) {
	m.now = m.now.Add(d)
	for l := m.s.Due(m.now); l != nil; l = m.s.Due(m.now) {
		m.release(l)
	}
}

// pick returns one of the lanes.
func (m *setModel) pick(t *rapid.T) *Lane {
	var lanes []*Lane
	for l := range m.s.All() {
		lanes = append(lanes, l)
	}
	if len(lanes) == 0 {
		return nil
	}
	slices.SortFunc(lanes, func(a, b *Lane) int { return int(a.CreatedOrder) - int(b.CreatedOrder) })
	return rapid.SampledFrom(lanes).Draw(t, "lane")
}

// hold holds a lane or releases it. A request in flight ends first.
func (m *setModel) hold(t *rapid.T) {
	l := m.pick(t)
	if l == nil {
		return
	}
	if m.held[l.Name] {
		delete(m.held, l.Name)
		l.Paused = nil
	} else {
		m.held[l.Name] = true
		l.Paused = &store.Hold{}
	}
	m.s.Dequeue(l)
	m.next(l)
}

// retry claims a waiting lane first.
func (m *setModel) retry(t *rapid.T) {
	if l := m.pick(t); l != nil && (l.State == Waiting || l.State == Ready && l.Receiver.Breaker.Open()) {
		m.s.Dequeue(l)
		m.s.QueueUrgent(l)
	}
}

func (m *setModel) lockTable(t *rapid.T) {
	switch outbox := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "outbox"); {
	case m.locked[outbox]:
		delete(m.locked, outbox)
		m.s.UnlockTable(outbox)
	case len(m.claiming) == 0:
		m.locked[outbox] = true
		m.s.LockTable(outbox)
	}
}

// check checks that each lane is in exactly the place of its state, and checks the counts.
func (m *setModel) check(t *rapid.T) {
	places := map[*Lane][]State{}
	put := func(state State, lanes ...*Lane) {
		for _, l := range lanes {
			places[l] = append(places[l], state)
		}
	}
	put(Ready, m.s.Queued()...)
	put(Waiting, m.s.Timed()...)
	large := int64(0)
	for state, reqs := range map[State][]*Request{Claiming: m.claiming, Sending: slices.Concat(m.sending, m.s.Requests.Unsent())} {
		for _, req := range reqs {
			large += req.LargeBytes
			for _, r := range req.Runs {
				put(state, r.Lane)
			}
		}
	}
	lanes, held, replays, rows, bytes := map[*Receiver]int{}, map[*Receiver]int{}, map[*Receiver]int{}, 0, int64(0)
	for l := range m.s.All() {
		if lanes[l.Receiver]++; l.Job != nil {
			replays[l.Receiver]++
		}
		if l.State == Held {
			held[l.Receiver]++
			put(Held, l)
		}
		if m.s.Get(l.Name) != l || !slices.Equal(places[l], []State{l.State}) {
			t.Fatalf("lane %s, %s: got places %v", l.Name, l.State, places[l])
		}
		if l.IsAside() != (l.State == Ready && l.Job == nil && m.locked[l.Name.Outbox]) {
			t.Fatalf("lane %s, %s: got aside %v, table locked %v", l.Name, l.State, l.IsAside(), m.locked[l.Name.Outbox])
		}
		m.checkRows(l)
		for _, rw := range l.Rows {
			if l.Job == nil {
				rows++
				bytes += int64(len(rw.Payload))
			}
		}
	}
	for _, recv := range m.s.Endpoints.All() {
		if recv.Named && recv.Lanes == 0 && recv.Breaker.Fresh() {
			t.Fatalf("endpoint %s is kept without lanes", recv.Endpoint)
		}
		flight := 0
		for _, req := range slices.Concat(m.claiming, m.sending, m.s.Requests.Unsent()) {
			if req.Receiver() == recv {
				flight++
			}
		}
		if recv.inFlight != flight {
			t.Fatalf("endpoint %s: got %d requests in flight, want %d", recv.Endpoint, recv.inFlight, flight)
		}
		if recv.Lanes != lanes[recv] || recv.Held != held[recv] || recv.ReplayLanes != replays[recv] {
			t.Fatalf("endpoint %s: got %d lanes, %d held, %d of replays, want %d, %d, %d", recv.Endpoint, recv.Lanes, recv.Held, recv.ReplayLanes, lanes[recv], held[recv], replays[recv])
		}
	}
	if mem := &m.s.Memory; mem.Total() != rows || mem.Bytes() != bytes || mem.LargeBytes() != large {
		t.Fatalf("memory: got %d rows, %d bytes, %d large, want %d, %d, %d", mem.Total(), mem.Bytes(), mem.LargeBytes(), rows, bytes, large)
	}
}

func (m *setModel) checkRows(l *Lane) {
	ids := make([]string, len(l.Rows))
	for i, rw := range l.Rows {
		ids[i] = rw.ID
	}
	if !slices.Equal(ids, m.left[l.Name]) {
		m.t.Fatalf("lane %s: got rows %v, want %v", l.Name, ids, m.left[l.Name])
	}
}

// finish repairs everything and expects every row to be delivered.
func (m *setModel) finish(t *rapid.T) {
	m.down = false
	for _, outbox := range []string{"a", "b"} {
		if m.locked[outbox] {
			delete(m.locked, outbox)
			m.s.UnlockTable(outbox)
		}
	}
	for l := range m.s.All() {
		if m.held[l.Name] {
			delete(m.held, l.Name)
			l.Paused = nil
			m.s.Dequeue(l)
			m.next(l)
		}
	}
	for range 100 + 20*m.added {
		for _, step := range []func(*rapid.T){m.claim, m.answerClaims, m.send, m.check} {
			step(t)
		}
		for len(m.sending) > 0 {
			m.answer(t)
			m.send(t)
		}
		if m.pass(time.Minute); len(m.left) == 0 {
			return
		}
	}
	t.Fatalf("rows are left: %v", m.left)
}

func TestSetAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newSetModel(t)
		t.Repeat(map[string]func(*rapid.T){
			"append":        m.append,
			"append more":   m.append,
			"replay":        m.replay,
			"claim":         m.claim,
			"claim more":    m.claim,
			"answer claims": m.answerClaims,
			"send":          m.send,
			"answer":        m.answer,
			"answer more":   m.answer,
			"hold":          m.hold,
			"retry":         m.retry,
			"lock table":    m.lockTable,
			"breaker":       m.toggleBreaker,
			"down":          func(*rapid.T) { m.down = !m.down },
			"time":          func(t *rapid.T) { m.pass(time.Duration(rapid.IntRange(1, 5000).Draw(t, "ms")) * time.Millisecond) },
			"":              m.check,
		})
		m.finish(t)
	})
}
