package app

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// Report implements admin.Reporter.
func (p *program) Report(ctx context.Context, failed bool) admin.RelayStatus {
	now, of := time.Now(), p.relay.Status()
	s := admin.RelayStatus{
		Name: p.cfg.Load().Settings.Name, Version: p.version, Holder: of.Holder,
		StartedAt: p.startedAt, Uptime: now.Sub(p.startedAt).Seconds(),
		IsLeader: of.Leads, Epoch: of.Epoch, Leader: of.Leader,
		Mode: of.Mode, SourceDetail: of.SourceDetail, Claims: of.Claims, Source: of.Source, Checkpoint: of.Checkpoint,
		Captured: ratesOf(&p.metrics.capturedMeter, now),
		Sinks:    []admin.SinkStatus{}, Routes: []admin.Route{}, Lanes: []dispatch.LaneInfo{},
	}
	if of.Sinks == nil {
		return s
	}
	for _, name := range slices.Sorted(maps.Keys(of.Sinks)) {
		s.Sinks = append(s.Sinks, p.reportSink(name, of.Sinks[name].Stats, &s.Lag, now))
	}
	if s.Lag.Oldest != nil {
		age := max(0, now.Sub(*s.Lag.Oldest)).Seconds()
		s.Lag.Seconds = &age
	}

	if lanes, total, err := p.lanes.List(dispatch.LaneFilter{Troubled: true}, admin.MaxStatusLanes); err == nil && total > 0 {
		s.Lanes, s.LanesTotal = lanes, total
	} // else leadership just ended, or all is well
	s.Replays = admin.ReplayStatus{Waiting: of.Replays.Waiting, Paused: of.Replays.Paused}
	if job := of.Replays.Current; job != nil {
		current := admin.ReplayOf(job)
		s.Replays.Current = &current
	}

	if failed {
		s.Failed = p.countFailed(ctx, of.Epoch)
	}
	if list, err := p.routes.List(); err == nil {
		s.Routes = shownRoutes(list, s.Failed, now)
	}
	return s
}

func ratesOf(m *meter, now time.Time) admin.Rates {
	return admin.Rates{TenSeconds: m.rate(now, 10), Minute: m.rate(now, 60)}
}

// reportSink returns the status of a sink and adds its rows to the lag.
func (p *program) reportSink(name string, stats dispatch.Stats, lag *admin.Lag, now time.Time) admin.SinkStatus {
	m := p.metrics.sink(name)
	s := admin.SinkStatus{
		Name: name, Waiting: stats.Waiting, Rows: stats.Rows, Spilled: stats.Spilled, Bytes: stats.Bytes,
		InFlight: stats.InFlight, Lanes: stats.Lanes, OpenBreakers: make([]admin.OpenBreaker, len(stats.OpenBreakers)),
		Delivered: ratesOf(&m.rates.delivered, now), Failed: ratesOf(&m.rates.failed, now), Retried: ratesOf(&m.rates.retried, now),
	}

	for i, of := range stats.OpenBreakers {
		s.OpenBreakers[i] = admin.OpenBreaker{Endpoint: of.Endpoint, Class: of.LastFailure.Class.String(), Since: of.Since, Error: of.LastFailure.Detail, Idle: of.Idle, Named: of.Named}
	}
	lag.Rows += stats.Waiting
	if oldest := stats.Oldest; !oldest.IsZero() && (lag.Oldest == nil || oldest.Before(*lag.Oldest)) {
		lag.Oldest = &oldest
	}

	return s
}

const (
	// Counting FAILED rows may scan a whole table. A count is stopped after countTimeout.
	// Its result is cached for countAgeFactor times as long as it took, and for minCountAge
	// unless the relay has changed FAILED rows since. So a `status --watch` uses at most a
	// twentieth of a session.
	countTimeout   = 5 * time.Second
	minCountAge    = 10 * time.Second
	countAgeFactor = 20
)

// failedRows caches the last count of FAILED rows.
type failedRows struct {
	mu      sync.Mutex // held while counting
	epoch   store.Epoch
	at      time.Time // end of the count
	took    time.Duration
	changes int64 // of Metrics, before the count
	counts  []admin.FailedRows
}

// observedLetters observes changes of FAILED rows.
type observedLetters struct {
	admin.DeadLetters
	metrics *Metrics
}

// Requeue implements admin.DeadLetters.
func (o observedLetters) Requeue(ctx context.Context, f store.DeadLetterFilter, limit int) (int, error) {
	defer o.metrics.failedChanges.Add(1)
	return o.DeadLetters.Requeue(ctx, f, limit)
}

// Discard implements admin.DeadLetters.
func (o observedLetters) Discard(ctx context.Context, f store.DeadLetterFilter, limit int) (int, error) {
	defer o.metrics.failedChanges.Add(1)
	return o.DeadLetters.Discard(ctx, f, limit)
}

// countFailed returns the number of FAILED rows of each outbox, from the cache if
// possible. A caller that disconnects does not cancel a count that others wait for.
func (p *program) countFailed(ctx context.Context, epoch store.Epoch) []admin.FailedRows {
	f := &p.failedCount
	f.mu.Lock()
	defer f.mu.Unlock()
	began, changes, maxAge := time.Now(), p.metrics.failedChanges.Load(), countAgeFactor*f.took
	if changes == f.changes {
		maxAge = max(minCountAge, maxAge)
	}
	if began.Sub(f.at) < maxAge && f.epoch == epoch {
		return f.counts
	}

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), countTimeout)
	defer cancel()
	f.epoch, f.changes, f.counts = epoch, changes, []admin.FailedRows{}
	for _, outbox := range legNames(p.cfg.Load().Outboxes()) {
		one := admin.FailedRows{Outbox: outbox, At: time.Now()}
		n, err := p.deadLetters.Count(ctx, store.DeadLetterFilter{Outbox: outbox})
		switch {
		case err == nil:
			one.Rows = &n
		case ctx.Err() != nil:
			one.Error = "count FAILED rows: timeout after " + countTimeout.String() + "; index the status column"
		default:
			one.Error = err.Error()
		}
		p.metrics.DeadLetters(outbox, one.Rows)
		f.counts = append(f.counts, one)
	}

	f.at, f.took = time.Now(), time.Since(began)
	return f.counts
}
