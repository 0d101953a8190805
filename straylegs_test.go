package sluicebox

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/store"
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

// A start whose look for stray legs gets no answer logs that and asks again, each time with more patience.
func TestLookForStrayLegsIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend := &hangingBackend{memory.New().Backend("relay"), 2}
		boxes := []store.Outbox{{Name: "orders", Table: "orders", Layout: store.FlowCatalyst(), Routes: []store.Route{{Name: "bus"}}}}
		l := ledger.New(ledger.Config{Outboxes: boxes, Records: backend, Spill: backend, Replay: backend, BatchRows: 10, BatchBytes: 1000})
		var log bytes.Buffer
		r := &Relay{log: slog.New(slog.NewTextHandler(&log, nil)), health: newHealth(), db: &database{Database: reachable{}, store: ledger.Store{Ledger: l}}}
		r.options.Store(&Options{})
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
