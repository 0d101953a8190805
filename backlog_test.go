package sluicebox

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/checkpoint"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

const (
	backlogRowBytes = 1000
	backlogMaxHold  = 8 << 20
)

// backlogLog is the log of a database after an outage. It grows by a row's length for each outcome.
type backlogLog struct {
	acknowledged, written atomic.Int64
	rows                  int
	silentAfter           int // rows; 0: never
	slowGroup             bool
}

// backlogPosition is the position behind some bytes of the log.
func backlogPosition(bytes int64) store.Position { return store.Position(fmt.Sprintf("%012d", bytes)) }

func (l *backlogLog) Acknowledge(p store.Position) {
	if n, err := strconv.ParseInt(string(p), 10, 64); err == nil {
		l.acknowledged.Store(n)
	}
}

func (*backlogLog) SaveCheckpoint(context.Context, store.Epoch, store.Checkpoint) error { return nil }

func (l *backlogLog) Retained(context.Context) (capture.RetainedLog, error) {
	return capture.RetainedLog{Bytes: int64(l.rows)*backlogRowBytes + l.written.Load() - l.acknowledged.Load()}, nil
}

// send sends the backlog in transactions of ten rows, then a position at times.
func (l *backlogLog) send(ctx context.Context, to chan<- capture.Batch) error {
	for i := 0; ctx.Err() == nil; i += 10 {
		b := capture.Batch{Position: backlogPosition(int64(i+10) * backlogRowBytes)}
		switch {
		case i == l.rows-10:
			b.Marks = []string{"m"}
		case i >= l.rows:
			b.Position = backlogPosition(int64(l.rows)*backlogRowBytes + l.written.Load())
			<-time.After(50 * time.Millisecond)
		case l.silentAfter > 0 && i == l.silentAfter:
			<-time.After(pinnedAfter + 3*time.Second)
		}
		for n := i; n < min(i+10, l.rows); n++ {
			group := fmt.Sprint("g", n%200)
			if l.slowGroup && n%1000 == 0 {
				group = "late"
			}
			b.Items = append(b.Items, rowsOf("events", group, fmt.Sprint(group, "-", n))...)
		}
		select {
		case to <- b:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// After an outage the log is longer than max-hold. Rows are spilled only if others wait for them in memory.
func TestTheLogOfAnOutage(t *testing.T) {
	for name, c := range map[string]struct {
		log    *backlogLog
		takes  time.Duration // a request
		spills bool
	}{
		"a fast receiver":                     {&backlogLog{rows: 80_000}, 100 * time.Millisecond, false},
		"a slow receiver":                     {&backlogLog{rows: 20_000}, 5 * time.Second, true},
		"one slow group":                      {&backlogLog{rows: 60_000, slowGroup: true}, 100 * time.Millisecond, true},
		"a source that is silent for a while": {&backlogLog{rows: 80_000, silentAfter: 30_000}, 100 * time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testTheLogOfAnOutage(t, c.log, c.takes, c.spills) })
		})
	}
}

func testTheLogOfAnOutage(t *testing.T, l *backlogLog, takes time.Duration, spills bool) {
	k, freed, in := newFakeBackend(), make(chan struct{}, 1), make(chan capture.Batch)
	k.answer = func(ids []string) sink.Result {
		wait := takes
		if slices.ContainsFunc(ids, func(id string) bool { return strings.HasPrefix(id, "late") }) {
			wait = pinnedAfter + 5*time.Second
		}
		<-time.After(wait)
		l.written.Add(int64(len(ids)) * backlogRowBytes)
		return always(sink.Delivered)(ids)
	}
	cfg := dispatch.DefaultConfig()
	cfg.MaxConcurrentGroups, cfg.APIBatchSize = 100, 10
	d := dispatch.New(cfg, k.options(1, true, freed))
	lanes := map[string]*dispatch.Dispatcher{"events": d}
	tracker := checkpoint.NewTracker(store.Checkpoint{Position: backlogPosition(0)})

	r := &Relay{observer: noObserver{}, log: slog.New(slog.DiscardHandler), health: newHealth()}
	r.options.Store(&Options{MaxHold: backlogMaxHold})
	r.progress.saved, r.progress.tracker = store.Checkpoint{Position: backlogPosition(0)}, tracker
	f := newIntake(tracker, 1, lanes, freed, func(string, int) {})
	f.spillEnabled, f.claimsDetectSettled = true, true
	f.onMarker = func(string, store.Position, store.Seq) { f.endCatchUp() }
	f.beginCatchUp(&fakeStatuses{})
	save := make(chan struct{}, 1)
	saver := &checkpoint.Saver{Config: checkpoint.DefaultSaverConfig(), Tracker: tracker, Store: l, Source: l, Epoch: 1, Observer: checkpointObserver{r}, SaveNow: save}
	p := &pressure{Relay: r, source: l, intake: f, dispatchers: lanes, saveRequests: save, compare: byText}
	end := runParts(t, d.Run, saver.Run, p.run,
		func(ctx context.Context) error { return f.run(ctx, in) },
		func(ctx context.Context) error { return l.send(ctx, in) })
	defer end()

	spilled := 0
	for range 12 {
		advance(5 * time.Second)
		k.set(func() { spilled = k.rowsSpilled })
	}
	if (spilled > 0) != spills {
		t.Errorf("%d rows were spilled; want any: %t", spilled, spills)
	}
	if done := d.BufferLevel().Done; !spills && done < int64(l.rows) {
		t.Errorf("%d rows of %d were delivered", done, l.rows)
	}
}
