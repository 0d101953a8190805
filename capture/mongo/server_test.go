package mongo_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/capturetest"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// writeOn inserts documents until stop is called, retrying each until a majority has it.
// stop returns their ids in order; count returns their current number.
func (d *database) writeOn(t *testing.T) (count *atomic.Int64, stop func() []string) {
	t.Helper()
	var enough atomic.Bool
	count = new(atomic.Int64)
	written := make(chan []string, 1)
	go func() {
		var ids []string
		pace := time.NewTicker(5 * time.Millisecond)
		defer pace.Stop()
		for i := 0; !enough.Load(); i++ {
			<-pace.C
			id := fmt.Sprintf("%06d", i)
			doc := document(&d.outboxes(outboxName)[0], capturetest.Row{ID: id, Payload: "x"})
			if d.insistOn(t, doc) {
				ids = append(ids, id)
				count.Add(1)
			}
		}
		written <- ids
	}()
	var ids []string
	stop = func() []string {
		if !enough.Swap(true) {
			ids = <-written
		}
		return ids
	}
	t.Cleanup(func() { stop() })
	return count, stop
}

// insistOn inserts a document until a majority has it.
func (d *database) insistOn(t *testing.T, doc bson.D) bool {
	for end := time.Now().Add(time.Minute); ; {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		err := d.db.RunCommand(ctx, bson.D{
			{Key: "insert", Value: events}, {Key: "documents", Value: bson.A{doc}},
			{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}},
		}).Err()
		cancel()
		if err == nil || strings.Contains(err.Error(), "E11000") {
			return true
		}
		if time.Now().After(end) {
			t.Errorf("no document could be written: %v", err)
			return false
		}
		<-time.After(20 * time.Millisecond) // there is no primary for a moment
	}
}

// An election costs a connection and nothing else.
func TestElections(t *testing.T) {
	t.Parallel() // mostly waiting
	set := servers.StartMongo(t, 3, nil)
	const within = 20 * time.Second // until there is a new primary; 1 s on an idle machine
	for name, fall := range map[string]func(){
		"step-down": func() { set.StepDown() },
		"crash": func() {
			old := set.Primary()
			old.Stop("immediate")
			set.Primary()
			old.Restart(nil)
		},
		"frozen": func() {
			old := set.Primary()
			old.Freeze()
			defer old.Thaw()
			set.Primary()
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDatabase(t, set.Database())
			fo, _, _ := d.follow(t, d.config(), store.Checkpoint{})
			_, stop := d.writeOn(t)
			fo.Rows(20)
			for range 3 {
				before, began := len(fo.Items), time.Now()
				fall()
				fallen := time.Now()
				fo.Rows(before + 100) // the waiting rows, and new ones
				took := time.Since(fallen)
				t.Logf("a new primary after %s, rows again after another %s", fallen.Sub(began).Round(time.Millisecond), took.Round(time.Millisecond))
				if took > within {
					t.Errorf("rows arrived again after %s", took)
				}
			}
			want := stop()
			fo.Rows(len(want))
			fo.Expect(want...)
			fo.End()
			t.Logf("%d rows, connections lost: %v", len(want), fo.Disconnects())
		})
	}
}

// The source leaves a frozen primary for its successor before the primary is back.
func TestFrozenPrimary(t *testing.T) {
	t.Parallel() // mostly waiting
	set := servers.StartMongo(t, 3, nil)
	d := newDatabase(t, set.Database())
	fo, _, _ := d.follow(t, d.config(), store.Checkpoint{})
	written, stop := d.writeOn(t)
	fo.Rows(20)
	old := set.Primary()
	old.Freeze()
	set.Primary()
	// The third member may take half a minute to notice whom it copies from.
	for before := written.Load(); written.Load() < before+2; {
		<-time.After(10 * time.Millisecond)
	}
	began := time.Now()
	fo.Rows(int(written.Load()))
	took := time.Since(began)
	t.Logf("rows arrived %s after a majority had them", took)
	if took > 20*time.Second {
		t.Errorf("rows arrived %s after a majority had them", took)
	}
	old.Thaw()
	want := stop()
	fo.Rows(len(want))
	fo.Expect(want...)
	fo.End()
	t.Logf("%d rows, connections lost: %v", len(want), fo.Disconnects())
}

// A pause longer than the cursor's lifetime loses nothing, and Follow sees no loss.
func TestLongPause(t *testing.T) {
	t.Parallel() // mostly waiting
	set := servers.StartMongo(t, 1, map[string]string{"setParameter cursorTimeoutMillis": "11000", "setParameter clientCursorMonitorFrequencySecs": "1"})
	d := newDatabase(t, set.Database())
	cfg := d.config()
	cfg.MaxBatchRows = 10
	fo, _, _ := d.follow(t, cfg, store.Checkpoint{})
	var want []string
	for i := range 10 {
		var rows []capturetest.Row
		for j := range 25 {
			id := fmt.Sprintf("%02d-%02d", i, j)
			rows = append(rows, capturetest.Row{ID: id, Payload: strings.Repeat("x", 1<<10)})
			want = append(want, id)
		}
		d.Begin(t, rows...)(true)
	}
	fo.Rows(15)
	<-time.After(13 * time.Second) // the pause itself
	if open := d.openCursors(t); open != 0 {
		t.Errorf("%d cursors are open in the pause", open)
	}
	fo.Rows(len(want))
	fo.Expect(want...)
	fo.End()
	if lost := fo.Disconnects(); len(lost) > 0 {
		t.Errorf("the pause cost the connection: %v", lost)
	}
	for end := time.Now().Add(30 * time.Second); d.openCursors(t) != 0; { // the server ends it together with its current operation
		if time.Now().After(end) {
			t.Fatalf("%d cursors are open at the end", d.openCursors(t))
		}
		<-time.After(50 * time.Millisecond)
	}
}

// openCursors counts the cursors of change streams in the server.
func (d *database) openCursors(t *testing.T) int64 {
	t.Helper()
	open, _ := d.admin(t, bson.D{{Key: "serverStatus", Value: 1}}).Lookup("metrics", "cursor", "open", "total").AsInt64OK()
	return open
}

// A silent server is detected as lost.
func TestSilentServer(t *testing.T) {
	t.Parallel() // mostly waiting
	set := servers.StartMongo(t, 1, nil)
	d := newDatabase(t, set.Database())
	src, o := d.opening(t, d.config(), store.Checkpoint{})
	d.insert(t, "first")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	out, done := make(chan capture.Batch), make(chan error, 1)
	go func() { done <- src.Run(ctx, capture.Span{From: o.From}, out) }()
	for b := range out {
		if len(b.Items) > 0 {
			break
		}
	}
	frozen := set.Members[0]
	frozen.Freeze()
	defer frozen.Thaw()
	began := time.Now()
	late := time.After(40 * time.Second)
	for {
		select {
		case <-out:
		case err := <-done:
			t.Logf("after %s: %v", time.Since(began), err)
			if err == nil || errors.Is(err, context.Canceled) {
				t.Errorf("the run ended with %v", err)
			}
			return
		case <-late:
			t.Error("a silent server was not noticed")
			cancel()
			drain(done)
			return
		}
	}
}

// A tap shows rows that commit from now on, beside a relay.
func TestTap(t *testing.T) {
	d := newDatabase(t, servers.Mongo(t))
	d.insert(t, "before")
	fo, _, _ := d.follow(t, d.config(), store.Checkpoint{})
	src := newSource(t, d.config())
	defer src.Close()
	ctx, cancel := context.WithCancel(t.Context())
	out, begun, done := make(chan capture.Batch), make(chan struct{}), make(chan error, 1)
	go func() { done <- src.Tap(ctx, out, func() { close(begun) }) }()
	for open := true; open; {
		select {
		case <-begun:
			open = false
		case <-out:
		case err := <-done:
			t.Fatal(err)
		}
	}
	d.insert(t, "one", "two")
	var ids []string
	for len(ids) < 2 {
		b := <-out
		for i := range b.Items {
			ids = append(ids, b.Items[i].ID)
		}
	}
	if !slices.Equal(ids, []string{"one", "two"}) {
		t.Errorf("got rows %q", ids)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the tap ended with %v", err)
	}
	fo.Rows(2)
}

// Markers arrive at once, even from an otherwise idle server.
func TestMarkIsPrompt(t *testing.T) {
	d := newDatabase(t, servers.StartMongo(t, 1, nil).Database())
	fo, src, _ := d.follow(t, d.config(), store.Checkpoint{})
	soonest := time.Hour
	for i := range 5 {
		began := time.Now()
		token := fmt.Sprintf("mark-%d", i)
		if err := src.Mark(t.Context(), token); err != nil {
			t.Fatal(err)
		}
		fo.Until("the marker", func() bool { return slices.Contains(fo.Marks, token) })
		took := time.Since(began)
		t.Logf("the marker took %s", took)
		soonest = min(soonest, took)
	}
	if soonest > 500*time.Millisecond {
		t.Errorf("each marker took %s and more", soonest)
	}
}
