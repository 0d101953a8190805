package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/capture/sqlite"
	"github.com/sluicebox/sluicebox/store"
)

const patience = 30 * time.Second

// reading is a running source and the batches it has sent. They are received only inside
// until.
type reading struct {
	t    testing.TB
	src  *sqlite.Source
	out  chan capture.Batch
	stop context.CancelFunc
	done chan error

	batches []capture.Batch
	ids     []string
	marks   []string
	last    store.Position
}

func open(t testing.TB, d *database, src *sqlite.Source, at store.Checkpoint) capture.OpenResult {
	t.Helper()
	o, err := src.Open(t.Context(), at, &capturetest.Tables{Viewer: d.views})
	if err != nil {
		t.Fatal(err)
	}
	if o.View != nil {
		t.Cleanup(o.View.Close)
	}
	return o
}

// read opens a source at a checkpoint and runs it.
func read(t testing.TB, d *database, cfg sqlite.Config, at store.Checkpoint) (*reading, capture.OpenResult) {
	t.Helper()
	src := newSource(t, cfg)
	o := open(t, d, src, at)
	if o.View != nil {
		o.View.Close()
	}
	return run(t, src, o.From), o
}

func run(t testing.TB, src *sqlite.Source, from store.Position) *reading {
	r := &reading{t: t, src: src, out: make(chan capture.Batch), done: make(chan error, 1), last: from}
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	go func() { r.done <- src.Run(ctx, capture.Span{From: from}, r.out) }()
	t.Cleanup(r.close)
	return r
}

// close ends the run and the source. It may be called again.
func (r *reading) close() {
	r.t.Helper()
	if r.stop == nil {
		return
	}
	if err := r.end(); !errors.Is(err, context.Canceled) {
		r.t.Errorf("Run ended with %v", err)
	}
}

func (r *reading) end() error {
	r.stop()
	r.stop = nil
	defer r.src.Close()
	select {
	case err := <-r.done:
		return err
	case <-time.After(patience):
		return errors.New("it has not ended")
	}
}

// fails receives until the run fails.
func (r *reading) fails() error {
	r.t.Helper()
	for {
		select {
		case <-r.out:
		case err := <-r.done:
			r.stop()
			r.stop = nil
			r.src.Close()
			return err
		case <-time.After(patience):
			r.t.Fatal("the run goes on")
		}
	}
}

func (r *reading) until(what string, holds func() bool) {
	r.t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for !holds() {
		select {
		case b := <-r.out:
			r.batches = append(r.batches, b)
			for i := range b.Items {
				r.ids = append(r.ids, b.Items[i].ID)
			}
			r.marks = append(r.marks, b.Marks...)
			if b.Position == "" || r.src.Compare(b.Position, r.last) <= 0 {
				r.t.Errorf("position %q came after %q", b.Position, r.last)
			}
			r.last = b.Position
		case err := <-r.done:
			r.stop()
			r.stop = nil
			r.src.Close()
			r.t.Fatalf("waiting for %s: Run ended with %v", what, err)
		case <-timeout.C:
			r.t.Fatalf("waiting for %s: %d rows came", what, len(r.ids))
		}
	}
}

func (r *reading) rows(want ...string) {
	r.t.Helper()
	r.until("rows", func() bool { return len(r.ids) >= len(want) })
	if !slices.Equal(r.ids, want) {
		r.t.Fatalf("rows %q came, want %q", r.ids, want)
	}
}

// rows returns rows and their ids.
func rows(prefix string, n int) (list []capturetest.Row, ids []string) {
	for i := range n {
		id := fmt.Sprintf("%s-%04d", prefix, i)
		list = append(list, capturetest.Row{ID: id, Group: store.GroupOf(prefix), Payload: "{}"})
		ids = append(ids, id)
	}
	return list, ids
}

func (d *database) commit(t testing.TB, rows ...capturetest.Row) {
	t.Helper()
	if err := d.insert(true, rows...); err != nil {
		t.Fatal(err)
	}
}

// eventually waits for a change that another goroutine makes to the file.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not so after %s", what, patience)
		}
		<-tick.C
	}
}
