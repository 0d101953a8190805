package sluicebox

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
)

const (
	// maxFreshAge is how long after its commit a row may be sent before it is claimed.
	maxFreshAge = time.Second

	// markInterval is the least time between two markers that tell the age of rows, if commit
	// times have whole seconds only (MariaDB). Otherwise a marker is written each
	// clockInterval, and again after clockValidity the clocks count as unknown.
	markInterval  = 400 * time.Millisecond
	clockInterval = 5 * time.Second
	clockValidity = 3 * clockInterval

	// minFlow is how many batches with rows follow each other before a marker is written. The number
	// doubles up to maxFlow with each marker behind which no row was fresh. So sparse rows, or few
	// at a time, cost no markers.
	minFlow, maxFlow = 2, 64

	// clockSlack is how far two clocks may drift apart in clockValidity.
	clockSlack = 10 * time.Millisecond
)

// freshness tells how old the rows of the log are at most, whatever the clocks of the server and
// of this machine show. It writes markers into the log while rows flow; see minFlow. A row behind a marker was
// committed after the marker was written, which this machine's clock measures. If commit times are
// precise, the time between the commits of the marker and of the row counts too, because one clock
// measured both.
//
// The markers also prove the rest of what a row needs to be sent before it is claimed: this leader
// wrote them, so no earlier leader can have settled a row behind them, and the log has brought
// them back, so capture has caught up.
//
// The intake calls freshUntil, onMarker and waits, and the source calls connected. run belongs to
// a goroutine of its own.
type freshness struct {
	source markWriter
	epoch  store.Epoch
	// allowed reports whether rows may be sent before they are claimed at all; see Relay.mayGoUnclaimed.
	allowed func() bool
	wanted  chan struct{}

	connections atomic.Int64               // how often the source has connected
	sent        atomic.Pointer[sentMarker] // in flight

	// The rest belongs to the intake.
	asked time.Time  // when a marker was asked for
	used  bool       // a row was fresh since
	rows  time.Time  // when the last batch with rows came
	flow  int        // batches with rows that followed each other closely
	need  int        // the flow from which on markers are asked for; see minFlow
	full  time.Time  // when the intake last waited for room
	last  sentMarker // brought back by the log; zero before the first
	when  time.Time  // the commit time of last; zero if it is not precise
	whole int        // the latest markers whose commit times have whole seconds
}

// sentMarker is a marker and the time just before it was written.
type sentMarker struct {
	token       string
	at          time.Time
	connections int64 // when it was written
}

func newFreshness(epoch store.Epoch, source markWriter, allowed func() bool) *freshness {
	return &freshness{source: source, epoch: epoch, allowed: allowed, need: minFlow, wanted: make(chan struct{}, 1)}
}

// freshUntil returns until when the rows of a batch may be sent before they are claimed; zero if
// never. It asks for a marker if one is due.
func (f *freshness) freshUntil(b *capture.Batch, now time.Time) time.Time {
	if len(b.Items) == 0 || !f.allowed() {
		return time.Time{}
	}
	f.ask(now)
	if f.last.token == "" {
		return time.Time{}
	}
	at := f.last.at
	if byClock := f.byClock(b, now); byClock.After(at) {
		at = byClock
	}
	if until := at.Add(maxFreshAge); until.After(now) {
		f.used = true
		return until
	}
	return time.Time{}
}

// byClock returns the time after which the rows of a batch were committed, as the commit times
// tell; zero if the clocks are unknown. The server's clock may be set, and another server may have
// taken over, so a marker tells the clocks only for some time and for one connection.
func (f *freshness) byClock(b *capture.Batch, now time.Time) time.Time {
	if f.when.IsZero() || now.Sub(f.last.at) > clockValidity || f.last.connections != f.connections.Load() {
		return time.Time{}
	}
	first := b.Items[0].Committed
	for i := range b.Items {
		if b.Items[i].Committed.Before(first) {
			first = b.Items[i].Committed
		}
	}
	at := f.last.at.Add(first.Sub(f.when))
	if first.IsZero() || at.After(now.Add(clockSlack)) {
		f.when = time.Time{} // a clock was set
		return time.Time{}
	}
	return at
}

// ask asks run for a marker if the last one is too old, and if rows follow each other so closely
// that the marker saves claims.
func (f *freshness) ask(now time.Time) {
	near, interval := clockInterval, markInterval
	if f.whole > 1 {
		near = markInterval
	}
	if now.Sub(f.rows) > near {
		f.flow = 0
	}
	f.rows = now
	f.flow++
	if !f.when.IsZero() && f.last.connections == f.connections.Load() {
		interval = clockInterval
	}
	if f.flow < f.need || now.Sub(f.asked) < interval {
		return
	}

	switch {
	case f.used:
		f.need = minFlow
	case !f.asked.IsZero():
		f.need = min(2*f.need, maxFlow)
	}
	f.asked, f.used = now, false
	select {
	case f.wanted <- struct{}{}:
	default:
	}
}

// onMarker handles a marker of the log, which committed at a time by the server's clock. It is
// called in log order, among the rows.
func (f *freshness) onMarker(token string, committed time.Time) {
	sent := f.sent.Load()
	if sent == nil || sent.token != token {
		return
	}
	f.last, f.when = *sent, committed
	if committed.Nanosecond() == 0 { // or a precise clock at a full second: the next marker tells
		f.whole++
		f.when = time.Time{}
	} else {
		f.whole = 0
	}
	if sent.at.Before(f.full) {
		f.when = time.Time{}
	}
}

// waits records that the intake waits for room. Rows of the log wait too, so a clock may be set
// between the commit of a row and its arrival. The clocks count as unknown until a marker that is
// written later.
func (f *freshness) waits(now time.Time) { f.full, f.when = now, time.Time{} }

// connected records that the source has connected. Its server may be another one.
func (f *freshness) connected() { f.connections.Add(1) }

// run writes markers until the context ends. Without a marker rows are claimed before they are
// sent. The sweep reports why markers cannot be written.
func (f *freshness) run(ctx context.Context) error {
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.wanted:
		}
		m := &sentMarker{token: fmt.Sprintf("fresh-%d-%d", f.epoch, n), at: time.Now(), connections: f.connections.Load()}
		f.sent.Store(m)
		err := f.source.Mark(ctx, m.token)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			if err := backoff.Sleep(ctx, clockInterval); err != nil {
				return err
			}
		}
	}
}
