package capturetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// load commits transactions until stop is called. stop returns the ids.
func load(t *testing.T, db Database, prefix string) (stop func() []string) {
	var stopping atomic.Bool
	done := make(chan []string, 1)
	go func() {
		var ids []string
		pace := time.NewTicker(10 * time.Millisecond)
		defer pace.Stop()
		for i := 0; !stopping.Load(); i++ {
			<-pace.C
			rows := rowsOf(fmt.Sprintf("%s-%04d", prefix, i), 3)
			commit(t, db, rows...)
			ids = append(ids, idsOf(rows)...)
		}
		done <- ids
	}()
	var ids []string
	stopped := false
	stop = func() []string {
		if stopping.Store(true); !stopped {
			ids, stopped = <-done, true
		}
		return ids
	}

	t.Cleanup(func() { stop() })
	return stop
}

// testLoss loses the log under load. The source must report it, and a new snapshot must
// bring every row, including those inserted while there was no log.
func testLoss(t *testing.T, db Database, lose func(*testing.T, Database)) {
	r, _ := follow(t, db, store.Checkpoint{})
	stop := load(t, db, "load")
	r.rows(10)
	lose(t, db)
	var lost *capture.LostError
	if err := r.ends(); !errors.As(err, &lost) || lost.Reason == "" {
		t.Fatalf("the source ended with %v, want a lost log", err)
	}
	t.Log(lost)
	commit(t, db, rowsOf("between", 2)...)
	src := db.Source(t, Options{Outbox: outbox, BatchRows: batchRows})
	again := reopen(t, db, src)
	want := append(stop(), idsOf(rowsOf("between", 2))...)
	commit(t, db, rowsOf("after", 1)...)
	again.rows(len(want) + 1)
	again.expectAny(append(want, idsOf(rowsOf("after", 1))...))
}

// reopen takes a snapshot and follows the source from there. The rows of the view count as
// received.
func reopen(t *testing.T, db Database, src Source) *reader {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	o, err := src.Open(ctx, store.Checkpoint{}, &Tables{Viewer: db.Viewer(t)})
	if err != nil {
		src.Close()
		t.Fatalf("take snapshot: %v", err)
	}

	r := newReader(t, src)
	if o.View == nil {
		src.Close()
		t.Fatal("the log is lost, but Open took no snapshot")
	}

	items, err := o.View.Unsettled(ctx, store.UnsettledQuery{Outbox: outbox, Limit: 1000000})
	if err != nil {
		t.Error(err)
	}

	o.View.Close()
	for i := range items {
		r.ids = append(r.ids, items[i].ID)
	}

	r.start(o.From)
	return r
}

// testFault breaks a requirement of the log under load. The source must end with the remedy
// and be ready once the fault is fixed. Rows inserted meanwhile are in the tables.
func testFault(t *testing.T, db Database, f Fault) {
	r, _ := follow(t, db, store.Checkpoint{})
	stop := load(t, db, "load")
	r.rows(10)
	before := diagnose(t, db)
	f.Break(t, db)
	err := r.ends()
	var lost *capture.LostError
	var no *capture.NoStreamError
	if !errors.As(err, &lost) && !errors.As(err, &no) {
		t.Fatalf("the source ended with %v, want a lost log or no stream", err)
	}

	t.Log(err)
	src := db.Source(t, Options{Outbox: outbox, BatchRows: batchRows})
	_, err = src.Open(t.Context(), store.Checkpoint{}, &Tables{Viewer: db.Viewer(t)})
	expectFault(t, err, f.Remedy)
	readier, ready := src.(ReadyChecker)
	if ready {
		expectFault(t, readyAtLast(t, readier), f.Remedy)
	}

	expectWorse(t, db, before)
	commit(t, db, rowsOf("between", 2)...)
	view, err := db.Viewer(t).View(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}

	polled, err := view.Unsettled(t.Context(), store.UnsettledQuery{Outbox: outbox, Limit: 1000000})
	view.Close()
	if err != nil || !slices.ContainsFunc(polled, func(it store.Item) bool { return it.ID == rowsOf("between", 2)[0].ID }) {
		t.Errorf("a row inserted during the fault cannot be polled: %v", err)
	}

	f.Fix(t, db)
	if ready {
		if err := readyAtLast(t, readier); err != nil {
			t.Errorf("fixed, but not ready: %v", err)
		}
	}

	expectNoFault(t, db)
	again := reopen(t, db, src)
	want := append(stop(), idsOf(rowsOf("between", 2))...)
	again.rows(len(want))
	again.expectAny(want)
}

// readyAtLast calls Ready until the answer is about the stream. On a busy machine Ready may
// exceed its short timeout.
func readyAtLast(t *testing.T, r ReadyChecker) error {
	t.Helper()
	for end := time.Now().Add(waitTimeout); ; {
		err := r.Ready(t.Context())
		if !errors.Is(err, context.DeadlineExceeded) || time.Now().After(end) {
			return err
		}
	}
}

func expectFault(t *testing.T, err error, remedy string) {
	t.Helper()
	var no *capture.NoStreamError
	if !errors.As(err, &no) {
		t.Fatalf("%v, want a *capture.NoStreamError", err)
	}
	if !strings.Contains(no.Error(), remedy) {
		t.Errorf("the error lacks %q: %v", remedy, err)
	}
}

// testShutdown: a source never delays a graceful shutdown of its server, in any state. It
// continues until its context ends.
func testShutdown(t *testing.T, h Harness) {
	for _, c := range []struct {
		name string
		busy func(t *testing.T, r *reader, db Database)
	}{
		{"idle", func(_ *testing.T, r *reader, _ Database) { r.rows(3) }},
		{"paused", func(t *testing.T, r *reader, db Database) {
			r.rows(1)
			for i := range 20 {
				rows := rowsOf(fmt.Sprintf("large-%d", i), 1)
				rows[0].Payload = string(make512k('x'))
				commit(t, db, rows...)
			}
		}},
		{"busy", func(t *testing.T, r *reader, db Database) {
			var rows []Row
			for i := range 100 {
				rows = append(rows, rowsOf(fmt.Sprintf("many-%d", i), 100)...)
			}
			commit(t, db, rows...)
			r.rows(200)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			db, stop := h.Shutdown(t)
			r, _ := follow(t, db, store.Checkpoint{})
			commit(t, db, rowsOf("first", 3)...)
			c.busy(t, r, db)
			stopped := make(chan time.Duration, 1)
			go func() { stopped <- stop() }()
			out := r.out
			if c.name != "busy" {
				out = nil
			}
			var took time.Duration
			for took == 0 {
				select {
				case b := <-out:
					r.take(b)
				case took = <-stopped:
				}
			}
			t.Logf("the shutdown took %s", took)
			if took > maxShutdownTime {
				t.Errorf("the shutdown took %s", took)
			}
		})
	}
}

// diagnose diagnoses the log with a separate source, beside the sources that read it. It
// returns all findings that are not OK, and checks that each has a remedy.
func diagnose(t *testing.T, db Database) []store.Finding {
	t.Helper()
	src := db.Source(t, Options{Outbox: outbox, BatchRows: batchRows})
	defer src.Close()
	diagnoser, ok := src.(store.Diagnoser)
	if !ok {
		t.Fatal("a source whose log can be missing is not a store.Diagnoser")
	}
	found, err := diagnoser.Diagnose(t.Context())
	if err != nil {
		t.Fatalf("diagnose: %v", err)
	}
	for _, f := range found {
		if f.Subject == "" || f.Text == "" || (f.Grade == store.GradeOK) != (f.Remedy == "") {
			t.Errorf("incomplete finding: %+v", f)
		}
	}
	return slices.DeleteFunc(found, func(f store.Finding) bool { return f.Grade == store.GradeOK })
}

// expectWorse checks that a diagnosis has more findings than before.
func expectWorse(t *testing.T, db Database, before []store.Finding) {
	t.Helper()
	if now := diagnose(t, db); len(now) <= len(before) {
		t.Errorf("diagnosed before: %+v, now: %+v", before, now)
	}
}

// expectNoFault checks that a diagnosis finds nothing that keeps a relay from reading the
// log.
func expectNoFault(t *testing.T, db Database) {
	t.Helper()
	for _, f := range diagnose(t, db) {
		if f.Grade == store.GradeFault {
			t.Errorf("fixed, but diagnosed: %+v", f)
		}
	}
}
