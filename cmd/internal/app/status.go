package app

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/checkpoint"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

// newSessionStats returns the stats of a session that starts.
func (r *relay) newSessionStats(begin *checkpoint.StartPoint, tracker *checkpoint.Tracker, in *intake) sessionStats {
	s := sessionStats{
		mode: "stream", sourceDetail: r.sourceDetail, startPosition: begin.From, tracker: tracker, paused: in.isPaused,
		expectedInterval: r.db.heartbeatInterval, saved: begin.Watermark,
	}
	if r.isPolling.Load() {
		c := r.cfg.Poll()
		s.mode, s.expectedInterval = "poll", c.Interval
		if c.Backoff.Multiplier > 1 {
			s.expectedInterval = max(c.Interval, c.Backoff.Max)
		}
	}
	return s
}

// Report implements admin.Reporter.
func (r *relay) Report(ctx context.Context, failed bool) admin.RelayStatus {
	now := time.Now()
	leads, _ := r.Leader()
	s := admin.RelayStatus{
		Name: r.cfg.Settings.Name, Version: r.version, Holder: holderName(),
		StartedAt: r.startedAt, Uptime: now.Sub(r.startedAt).Seconds(),
		IsLeader: leads,
		Captured: ratesOf(&r.metrics.capturedMeter, now),
		Sinks:    []admin.SinkStatus{}, Lanes: []admin.Lane{},
	}

	if leads {
		s.Epoch, s.Leader = r.epoch.Load(), s.Holder
	} else if other := r.otherLeader.Load(); other != nil {
		s.Leader = *other
	}

	r.reportStream(&s, now)
	lanes, err := r.activeDispatchers()
	if err != nil {
		return s
	}

	for _, name := range slices.Sorted(maps.Keys(lanes)) {
		s.Sinks = append(s.Sinks, r.reportSink(name, lanes[name].Stats(), &s.Lag, now))
	}
	if s.Lag.Oldest != nil {
		age := max(0, now.Sub(*s.Lag.Oldest)).Seconds()
		s.Lag.Seconds = &age
	}

	s.Lanes, s.LanesTotal = r.troubledLanes()
	if jobs := r.replayStatus.Load(); jobs != nil {
		s.Replays = *jobs
	}

	if failed {
		s.Failed = r.countFailed(ctx)
	}
	return s
}

// reportStream adds the source and the checkpoint to a status.
func (r *relay) reportStream(s *admin.RelayStatus, now time.Time) {
	p := r.progress.current(now)
	if p.mode == "" {
		return
	}
	at, received := p.lastRead()
	s.Mode, s.SourceDetail = p.mode, p.sourceDetail
	s.Source = admin.SourceStatus{Connected: p.connected, Paused: p.isPaused(), Position: string(at), LastReceivedAt: timeOrNil(received)}
	if p.retainedLimit > 0 {
		s.Source.RetainedBytes, s.Source.RetainedLimitBytes = &p.retained.Bytes, &p.retainedLimit
	}
	s.Checkpoint = admin.CheckpointStatus{Position: string(p.saved.Position), Seq: int64(p.saved.Seq), SavedAt: timeOrNil(p.savedAt)}
}

// timeOrNil returns nil for the zero time.
func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func ratesOf(m *meter, now time.Time) admin.Rates {
	return admin.Rates{TenSeconds: m.rate(now, 10), Minute: m.rate(now, 60)}
}

// reportSink returns the status of a sink and adds its rows to the lag.
func (r *relay) reportSink(name string, stats dispatch.Stats, lag *admin.Lag, now time.Time) admin.SinkStatus {
	m := r.metrics.Sink(name)
	s := admin.SinkStatus{
		Name: name, Waiting: stats.Waiting, Rows: stats.Rows, Spilled: stats.Spilled, Bytes: stats.Bytes,
		InFlight: stats.InFlight, Lanes: stats.Lanes, OpenBreakers: make([]admin.OpenBreaker, len(stats.OpenBreakers)),
		Delivered: ratesOf(&m.delivered, now), Failed: ratesOf(&m.failed, now), Retried: ratesOf(&m.retried, now),
	}

	for i, of := range stats.OpenBreakers {
		s.OpenBreakers[i] = admin.OpenBreaker{Endpoint: of.Endpoint, Class: of.LastFailure.Class.String(), Since: of.Since, Error: of.LastFailure.Detail, Idle: of.Idle}
	}
	lag.Rows += stats.Waiting
	if oldest := timeOrNil(stats.Oldest); oldest != nil && (lag.Oldest == nil || oldest.Before(*lag.Oldest)) {
		lag.Oldest = oldest
	}

	return s
}

// troubledLanes returns the first lanes that are held or failing, and their total number.
func (r *relay) troubledLanes() (lanes []admin.Lane, total int) {
	infos, total, err := laneController{r}.List(dispatch.LaneFilter{Troubled: true}, admin.MaxStatusLanes)
	lanes = make([]admin.Lane, len(infos))
	if err != nil {
		return lanes, 0 // leadership just ended
	}
	for i := range infos {
		lanes[i] = admin.LaneOf(&infos[i])
	}
	return lanes, total
}

const (
	// Counting FAILED rows may scan a whole table. A count is stopped after countTimeout.
	// Its result is cached for minCountAge, or countAgeFactor times as long as it took.
	// So a `status --watch` uses at most a twentieth of a session.
	countTimeout   = 5 * time.Second
	minCountAge    = 10 * time.Second
	countAgeFactor = 20
)

// failedRows caches the last count of FAILED rows.
type failedRows struct {
	mu        sync.Mutex // held while counting
	epoch     int64
	expiresAt time.Time // when the next caller counts again
	counts    []admin.FailedRows
}

// countFailed returns the number of FAILED rows of each outbox, from the cache if
// possible. A caller that disconnects does not cancel a count that others wait for.
func (r *relay) countFailed(ctx context.Context) []admin.FailedRows {
	f := &r.failedCount
	f.mu.Lock()
	defer f.mu.Unlock()
	epoch := r.epoch.Load()
	if time.Now().Before(f.expiresAt) && f.epoch == epoch {
		return f.counts
	}

	began := time.Now()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), countTimeout)
	defer cancel()
	f.epoch, f.counts = epoch, []admin.FailedRows{}
	for _, outbox := range slices.Sorted(maps.Keys(r.cfg.Routes())) {
		one := admin.FailedRows{Outbox: outbox, At: time.Now()}
		n, err := deadLetterController{r}.Count(ctx, store.DeadLetterFilter{Outbox: outbox})
		switch {
		case err == nil:
			one.Rows = &n
		case ctx.Err() != nil:
			one.Error = "count FAILED rows: timeout after " + countTimeout.String() + "; index the status column"
		default:
			one.Error = err.Error()
		}
		r.metrics.DeadLetters(outbox, one.Rows)
		f.counts = append(f.counts, one)
	}

	f.expiresAt = time.Now().Add(max(minCountAge, countAgeFactor*time.Since(began)))
	return f.counts
}
