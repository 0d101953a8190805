package mysql_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/capture/mysql"
	"github.com/sluicebox/sluicebox/store"
)

// follower follows a source and collects what comes.
type follower struct {
	t    *testing.T
	out  chan capture.Batch
	done chan error
	stop context.CancelFunc
	lost []error // Follow's own goroutine appends; read after done

	items    []store.Item
	marks    []string
	position store.Position // the last that came
}

func (f *follower) Connected() {}

func (f *follower) Lost(err error, _ time.Duration) { f.lost = append(f.lost, err) }

// follow opens a source and follows it. It ends with the test.
func follow(t *testing.T, d *database, cfg mysql.Config, at store.Checkpoint) (*follower, *mysql.Source, capture.Opening) {
	t.Helper()
	src := newSource(t, cfg)
	o, err := src.Open(t.Context(), at, d.tables())
	if err != nil {
		src.Close()
		t.Fatal(err)
	}
	if o.View != nil {
		o.View.Close()
	}
	ctx, cancel := context.WithCancel(context.Background())
	f := &follower{t: t, out: make(chan capture.Batch), done: make(chan error, 1), stop: cancel}
	go func() { f.done <- capture.Follow(ctx, src, o.From, f.out, f) }()
	t.Cleanup(func() {
		f.end()
		src.Close()
	})
	return f, src, o
}

// end ends the source. It may be called again, and after the source has ended.
func (f *follower) end() {
	f.stop()
	if _, open := <-f.done; open {
		close(f.done)
	}
}

// rows receives until n rows came.
func (f *follower) rows(n int) {
	f.t.Helper()
	f.until(fmt.Sprintf("%d rows", n), func() bool { return len(f.items) >= n })
}

func (f *follower) until(what string, holds func() bool) {
	f.t.Helper()
	timeout := time.NewTimer(40 * time.Second)
	defer timeout.Stop()
	for !holds() {
		select {
		case b := <-f.out:
			f.items = append(f.items, b.Items...)
			f.marks = append(f.marks, b.Marks...)
			if b.Position != "" {
				f.position = b.Position
			}
		case err := <-f.done:
			close(f.done)
			f.t.Fatalf("waiting for %s: the source ended: %v", what, err)
		case <-timeout.C:
			f.t.Fatalf("waiting for %s: %d rows came", what, len(f.items))
		}
	}
}

// ends receives until the source ends, and returns its error.
func (f *follower) ends() error {
	f.t.Helper()
	timeout := time.NewTimer(40 * time.Second)
	defer timeout.Stop()
	for {
		select {
		case b := <-f.out:
			f.items = append(f.items, b.Items...)
		case err := <-f.done:
			close(f.done)
			return err
		case <-timeout.C:
			f.t.Fatal("the source goes on")
		}
	}
}

func (f *follower) expect(ids ...string) {
	f.t.Helper()
	var got []string
	for i := range f.items {
		got = append(got, f.items[i].ID)
	}
	if strings.Join(got, " ") != strings.Join(ids, " ") {
		f.t.Errorf("rows %q came, want %q", got, ids)
	}
}

func insert(id string) string {
	return fmt.Sprintf("INSERT INTO outbox_events (id, message_group, payload) VALUES ('%s', 'g', 'payload of %[1]s')", id)
}

// drain waits for the end of a run that was cancelled.
func drain(done <-chan error) {
	err := <-done
	_ = err
}
