package dispatch

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// rowsOfSize returns rows with payloads of the given sizes, each in its own group.
func rowsOfSize(name string, sizes ...int) (rows []store.Item) {
	for i, size := range sizes {
		it := items(fmt.Sprint(name, i), fmt.Sprint(name, i))[0]
		it.Payload, it.PayloadSize, it.Txn = make([]byte, size), size, 1
		rows = append(rows, it)
	}
	return rows
}

// manualCore is a core whose requests end when the test calls accept.
type manualCore struct {
	*core
	t    *testing.T
	now  time.Time
	reqs []*request
}

func newManualCore(t *testing.T, cfg Config) *manualCore {
	limits := sink.Limits{Mode: sink.Atomic, MaxItems: 10, MaxBytes: 1 << 30}
	return &manualCore{core: newTestCore(cfg, func(string) sink.Limits { return limits }, func() float64 { return 0 }), t: t, now: time.Unix(1, 0)}
}

// startRequests starts all requests that may begin and returns the ids in flight.
func (h *manualCore) startRequests() (ids []string) {
	for _, req := range h.nextClaims(1000, h.now) {
		var answers []store.ClaimAnswer
		for _, run := range req.Runs {
			for _, rw := range run.Rows {
				a := store.ClaimAnswer{Result: store.Claimed}
				if rw.Payload == nil {
					a.Payload = make([]byte, rw.PayloadSize)
				}
				answers = append(answers, a)
			}
		}
		h.claimed(req, answers, h.now, h.now)
	}
	for req := h.nextRequest(h.now); req != nil; req = h.nextRequest(h.now) {
		h.reqs = append(h.reqs, req)
	}
	for _, req := range slices.Concat(h.reqs, h.unsent()) {
		for _, m := range req.Messages() {
			ids = append(ids, m.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// accept ends the request with a row: the receiver accepts it.
func (h *manualCore) accept(id string) {
	h.t.Helper()
	i := slices.IndexFunc(h.reqs, func(req *request) bool { return req.Messages()[0].ID == id })
	if i < 0 {
		h.t.Fatalf("row %s is not under way", id)
	}
	req := h.reqs[i]
	h.reqs = slices.Delete(h.reqs, i, i+1)
	h.answered(req, &sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}, h.now)
}

func (h *manualCore) expect(want string, when string) {
	h.t.Helper()
	if got := strings.Join(h.startRequests(), " "); got != want {
		h.t.Errorf("%s, in flight: got %q, want %q", when, got, want)
	}
}

// Large rows in flight share BufferBytes, but one may always go. All other requests share
// another BufferBytes. A large row waits for large rows before it, but not for smaller rows
// or for large rows after it.
func TestLargeRowsTakeTurns(t *testing.T) {
	cfg := DefaultConfig()
	cfg.BufferBytes, cfg.MaxConcurrentGroups, cfg.APIBatchSize = 1000, 8, 1 // 100 per request
	h := newManualCore(t, cfg)
	h.append(rowsOfSize("L", 600, 5000, 300), nil)
	h.append(rowsOfSize("s", 90, 90, 100), nil)
	h.expect("L0 s0 s1 s2", "at first") // 600 and 300 would fit, but 5000 came first
	h.accept("s0")
	h.append(rowsOfSize("m", 80), nil)
	h.expect("L0 m0 s1 s2", "beside a large row")
	h.accept("L0")
	h.expect("L1 m0 s1 s2", "when none is left in front of a huge one")
	h.append(rowsOfSize("M", 400, 400, 400), nil)
	h.expect("L1 m0 s1 s2", "beside a huge row")
	h.accept("L1")
	h.expect("L2 M0 m0 s1 s2", "behind a huge row")
	h.accept("M0")
	h.expect("L2 M1 m0 s1 s2", "after one of two")
	for _, id := range []string{"L2", "M1", "m0", "s1", "s2"} {
		h.accept(id)
	}
	h.expect("M2", "at the end")
	h.accept("M2")
	h.expect("", "then")
	if h.largeInFlight() != 0 || h.heldBytes() != 0 {
		t.Errorf("%d bytes of large rows and %d of all are counted, though all were delivered", h.largeInFlight(), h.heldBytes())
	}
}

// Whatever the number and size of waiting rows, and however they fail, payloads in memory
// stay within BufferBytes for waiting rows plus twice that for requests.
func TestPayloadBytesAreBounded(t *testing.T) {
	cfg := DefaultConfig()
	cfg.BufferBytes = 1000
	h := newManualCore(t, cfg)
	var sizes []int
	for i := range 400 {
		sizes = append(sizes, []int{5, 60, 77, 78, 500, 999}[i%6])
	}
	h.append(rowsOfSize("r", sizes...), nil)
	most := int64(0)
	for n := 0; h.heldRows() > 0; n++ {
		if n > 100_000 {
			t.Fatalf("%d rows do not leave", h.heldRows())
		}
		h.now = h.now.Add(time.Second)
		h.tick(h.now)
		h.startRequests()
		most = max(most, h.heldBytes())
		for _, req := range h.reqs {
			res := sink.Result{Outcome: sink.Outcome{Class: sink.Unavailable}}
			if n%7 != 0 {
				res.Class = sink.Delivered
			}
			h.answered(req, &res, h.now)
		}
		h.reqs = nil
		for batch := h.nextOutcomes(1000); batch != nil; batch = h.nextOutcomes(1000) {
			results := make([]store.SettleResult, len(batch))
			for i := range results {
				results[i] = store.Written
			}
			h.written(results, h.now)
		}
	}
	if most > 3*cfg.BufferBytes {
		t.Errorf("%d bytes of payload were in memory, where the buffer has %d", most, cfg.BufferBytes)
	}
	if h.heldBytes() != 0 {
		t.Errorf("%d bytes are left", h.heldBytes())
	}
}

// Payloads read by a claim leave memory again if their rows are not sent: rows behind an
// invisible row, and rows that the receiver did not get to.
func TestUnsentPayloadsLeaveMemory(t *testing.T) {
	cfg := DefaultConfig()
	cfg.BufferBytes = 1000
	h := newManualCore(t, cfg)
	for i := range 400 {
		rows := rowsOfSize(fmt.Sprint("r", i, " "), 30, 30)
		rows[1].Group = rows[0].Group
		h.append(rows, nil)
	}
	for reqs := h.nextClaims(10, h.now); reqs != nil; reqs = h.nextClaims(10, h.now) {
		for _, req := range reqs {
			answers := make([]store.ClaimAnswer, 0, req.Size())
			for _, run := range req.Runs {
				answers = append(answers, store.ClaimAnswer{Result: store.NotYetVisible})
				for range run.Rows[1:] {
					answers = append(answers, store.ClaimAnswer{Result: store.Claimed, Payload: make([]byte, 30)})
				}
			}
			h.claimed(req, answers, h.now, h.now)
		}
	}
	if h.heldBytes() > cfg.BufferBytes {
		t.Errorf("%d bytes wait behind rows that are not visible, where the buffer has %d", h.heldBytes(), cfg.BufferBytes)
	}
	for range 400 {
		h.now = h.now.Add(time.Second)
		h.tick(h.now)
		h.startRequests()
		for _, req := range h.reqs { // it accepts one and does not get to the others
			res := sink.Result{Items: make([]sink.Outcome, req.Size())}
			for i := range res.Items {
				res.Items[i].Class = sink.NotSent
			}
			res.Items[0].Class = sink.Delivered
			h.answered(req, &res, h.now)
		}
		h.reqs = nil
		if h.heldBytes() > 3*cfg.BufferBytes {
			t.Fatalf("%d bytes of payload are in memory, where the buffer has %d", h.heldBytes(), cfg.BufferBytes)
		}
		if batch := h.nextOutcomes(1000); batch != nil {
			h.written(slices.Repeat([]store.SettleResult{store.Written}, len(batch)), h.now)
		}
	}
}

// A payload leaves memory once its row is delivered, before the outcome is written.
func TestDeliveredPayloadLeavesMemory(t *testing.T) {
	h := newManualCore(t, DefaultConfig())
	h.append(rowsOfSize("r", 100_000), nil)
	h.startRequests()
	h.accept("r0")
	if h.heldBytes() != 0 || h.heldRows() != 1 {
		t.Errorf("got %d bytes of %d rows, want 0 of 1", h.heldBytes(), h.heldRows())
	}
}

// Rows with a long id, kind or group count as several rows, both from the log and after a
// reload.
func TestLongGroupsCountAgainstTheBuffer(t *testing.T) {
	cfg := DefaultConfig()
	cfg.BufferRows, cfg.BufferBytes = 100, 1<<20
	h := newManualCore(t, cfg)
	group := strings.Repeat("g", 1<<18)
	h.append(items(group, "1", "2", "3"), nil)
	if n := h.bufferedRows(); n < 75 || n > 80 {
		t.Errorf("three rows of a quarter of the buffer count as %d of 100", n)
	}
	for _, l := range h.lanesByAge() {
		for i, rw := range l.Rows {
			rw.Seq = store.Seq(i + 1)
		}
		h.shrink(l, 0)
	}
	h.nextSpills(10)
	h.spillsWritten(make([]bool, 3))
	if n := h.bufferedRows(); n != 0 {
		t.Errorf("spilled rows count as %d", n)
	}
	back := items(group, "1", "2", "3")
	for i := range back {
		back[i].Seq = store.Seq(i + 1)
	}
	h.now = h.now.Add(time.Minute)
	if _, each := h.nextReloads(h.now); each == 0 {
		t.Fatal("nothing is read back")
	}
	h.addReloaded([][]store.Item{back}, 10)
	if n, room := h.bufferedRows(), h.reloadRoom(h.now); n != 0 || room > -25 {
		t.Errorf("rows that were read back count as %d, and leave room for %d of 50", n, room)
	}
}
