package sluicebox

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/leader"
	"github.com/sluicebox/sluicebox/store/ledger"
	"github.com/sluicebox/sluicebox/store/ledger/memory"
)

// hangingBackend does not answer its first reads.
type hangingBackend struct {
	*memory.Backend
	hangs int
}

// View implements ledger.Backend.
func (b *hangingBackend) View(ctx context.Context, do func(context.Context, ledger.Reader) error) error {
	if b.hangs > 0 {
		b.hangs--
		<-ctx.Done()
		return ctx.Err()
	}
	return b.Backend.View(ctx, do)
}

// reachable is a database of which every error lasts.
type reachable struct{ Database }

func (reachable) Unreachable(error) bool { return false }

// straysIn returns a relay whose records a backend holds.
func straysIn(backend *hangingBackend, log *bytes.Buffer) *Relay {
	boxes := []store.Outbox{{Name: "orders", Table: "orders", Layout: store.FlowCatalyst(), Routes: []store.Route{{Name: "bus"}}}}
	l := ledger.New(ledger.Config{Outboxes: boxes, Records: backend, Spill: backend, Replay: backend, BatchRows: 10, BatchBytes: 1000})
	r := &Relay{log: slog.New(slog.NewTextHandler(log, nil)), health: newHealth(), db: &database{Database: reachable{}, store: ledger.Store{Ledger: l}}}
	r.options.Store(&Options{})
	return r
}

// lostLock is a lock whose session ends after a second.
type lostLock struct{}

func (lostLock) Lock(context.Context) (store.Lock, error) { return lostLock{}, nil }
func (lostLock) Ping(context.Context) error               { return nil }
func (lostLock) RequestCount() int64                      { return 0 }
func (lostLock) Release()                                 {}

// Watch implements store.Lock.
func (lostLock) Watch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if <-ctx.Done(); errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errors.New("session ended")
	}
	return nil
}

// A relay that loses the lock while it looks for stray legs is no longer the leader. Any other error would
// end the program.
func TestLockIsLostDuringTheLookForStrayLegs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := straysIn(&hangingBackend{memory.New().Backend("relay"), 100}, new(bytes.Buffer))
		candidate := leader.Candidate{Locker: lostLock{}, Observer: &standby{Relay: r}}
		tenure, err := candidate.Compete(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := r.runAsLeader(t.Context(), tenure); !errors.Is(err, store.ErrNotLeader) {
			t.Errorf("the tenure ends with %v", err)
		}
	})
}

// A relay that loses the lock in the pause between two sessions is no longer the leader. Any other error would
// end the program.
func TestLockIsLostBetweenSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := straysIn(&hangingBackend{Backend: memory.New().Backend("relay")}, new(bytes.Buffer))
		var opened time.Time
		r.hasRun, r.db.newStream = true, func() (capture.Stream, error) {
			opened = time.Now()
			return nil, errors.New("too many connections")
		}
		candidate := leader.Candidate{Locker: lostLock{}, Observer: &standby{Relay: r}}
		tenure, err := candidate.Compete(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		err = r.runAsLeader(t.Context(), tenure)
		if opened.IsZero() || !time.Now().After(opened) {
			t.Error("the lock is not lost in a pause behind a session")
		}
		if !errors.Is(err, store.ErrNotLeader) {
			t.Errorf("the tenure ends with %v", err)
		}
	})
}

// A start whose look for stray legs gets no answer logs that and asks again, each time with more patience.
func TestLookForStrayLegsIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend := &hangingBackend{memory.New().Backend("relay"), 2}
		var log bytes.Buffer
		r := straysIn(backend, &log)
		began := time.Now()
		if err := r.refuseStrayLegs(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began).Round(time.Second); took != 3*firstReadTimeout+time.Second {
			t.Errorf("it took %s, want two attempts of %s and %s", took, firstReadTimeout, 2*firstReadTimeout)
		}
		if n := strings.Count(log.String(), "no answer within"); n != 2 {
			t.Errorf("%d of 2 attempts are logged: %s", n, &log)
		}

		backend.hangs = 1
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.refuseStrayLegs(ctx); err == nil || ctx.Err() == nil {
			t.Errorf("behind the end of its context: %v", err)
		}
	})
}
