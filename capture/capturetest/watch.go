package capturetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/capture"
	"github.com/sluicebox/sluicebox/store"
)

// Watched is a source that watches.
type Watched interface {
	capture.Watcher
	Close()
}

// WatchStep is a transaction and its changes, each as "kind id group STATUS".
type WatchStep struct {
	Do   func()
	Want []string
}

// watchTimeout is how long the changes of a step may take.
const watchTimeout = 30 * time.Second

// RunWatch checks the changes of each step. undated means that they have no time of the commit.
func RunWatch(t *testing.T, src Watched, undated bool, steps []WatchStep) {
	t.Helper()
	defer src.Close()
	ctx, cancel := context.WithCancel(t.Context())
	out, begun, done := make(chan capture.Batch), make(chan struct{}), make(chan error, 1)
	go func() { done <- src.Watch(ctx, out, func() { close(begun) }) }()
	limit, at := time.After(watchTimeout), -1 // the step
	next := func(ready <-chan struct{}) (changes []capture.Change) {
		t.Helper()
		select {
		case <-ready:
		case b := <-out:
			if len(b.Items)+len(b.Marks) > 0 {
				t.Errorf("the watch sent %d rows and %d markers", len(b.Items), len(b.Marks))
			}
			return b.Changes
		case err := <-done:
			t.Fatalf("step %d: the watch ended: %v", at, err)
		case <-limit:
			t.Fatalf("step %d: no change came in time", at)
		}
		return nil
	}
	for open := true; open; {
		next(begun)
		select {
		case <-begun:
			open = false
		default:
		}
	}
	last := store.Txn(0)
	for i, step := range steps {
		limit, at = time.After(watchTimeout), i
		step.Do()
		var all []capture.Change
		for len(all) < len(step.Want) {
			all = append(all, next(nil)...)
		}
		var got []string
		for _, ch := range all {
			got = append(got, changeText(&ch))
			if ch.Txn == last || ch.Txn != all[0].Txn {
				t.Errorf("step %d: %s is of transaction %d after %d", i, changeText(&ch), ch.Txn, last)
			}
			if age := time.Since(ch.Committed); ch.Committed.IsZero() != undated || !undated && (age < -watchTimeout || age > watchTimeout) || ch.Captured.IsZero() {
				t.Errorf("step %d: %s was committed at %s and captured at %s", i, changeText(&ch), ch.Committed, ch.Captured)
			}
		}
		if !slices.Equal(got, step.Want) {
			t.Errorf("step %d:\ngot  %q\nwant %q", i, got, step.Want)
		}
		last = all[len(all)-1].Txn
	}
	cancel()
	endWatch(t, out, done)
}

// endWatch waits for the end of a watch whose context has ended.
func endWatch(t *testing.T, out <-chan capture.Batch, done <-chan error) {
	t.Helper()
	for {
		select {
		case <-out:
			continue
		case err := <-done:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("the watch ended with %v", err)
			}
			return
		}
	}
}

func changeText(ch *capture.Change) string {
	kind := [...]string{capture.Inserted: "insert", capture.Updated: "update", capture.Deleted: "delete", capture.Truncated: "truncate"}[ch.Kind]
	group := ""
	if ch.Kind == capture.Inserted {
		group = " " + ch.Lane.Group.String()
	}
	status := ""
	if ch.Kind < capture.Deleted {
		status = " " + ch.Status.String()
	}
	return strings.TrimSpace(kind + " " + ch.ID + group + status)
}

// SQLWatch returns steps for the table outbox_events of the layout flowcatalyst. commit runs
// statements in a transaction. partial means that an update has the changed columns alone.
func SQLWatch(commit func(statements ...string), partial bool) []WatchStep {
	unchanged := "PROCESSING"
	if partial {
		unchanged = "UNKNOWN"
	}
	do := func(statements ...string) func() { return func() { commit(statements...) } }
	insert := func(id, group, payload string) string {
		return fmt.Sprintf("INSERT INTO outbox_events (id, message_group, payload, status) VALUES ('%s', %s, '%s', 'PENDING')", id, group, payload)
	}
	set := func(id, to string) string { return fmt.Sprintf("UPDATE outbox_events SET %s WHERE id = '%s'", to, id) }
	return []WatchStep{
		{do("INSERT INTO unrelated VALUES (1)", insert("a''1", "'g \" ]:'", "{}"), insert("b", "NULL", "")), []string{`insert a'1 g " ]: PENDING`, "insert b (none) PENDING"}},
		{do(set("a''1", "status = 'PROCESSING'"), set("b", "status = 'PROCESSING', processed_at = CURRENT_TIMESTAMP")), []string{"update a'1 PROCESSING", "update b PROCESSING"}},
		{do(set("b", "error_message = 'PENDING'")), []string{"update b " + unchanged}},
		{do(set("a''1", "status = 'COMPLETED'"), set("b", "status = 'odd'")), []string{"update a'1 COMPLETED", "update b UNKNOWN"}},
		{do("DELETE FROM outbox_events WHERE id = 'a''1'"), []string{"delete a'1"}},
		{do("UPDATE unrelated SET n = 2", insert("large", "'g'", strings.Repeat("0123456789abcdef", 10_000))), []string{"insert large g PENDING"}},
		{do(set("large", "status = 'FAILED'")), []string{"update large FAILED"}},
		{do("DELETE FROM outbox_events WHERE id = 'b'", insert("b", "'g2'", "")), []string{"delete b", "insert b g2 PENDING"}},
		{do("TRUNCATE TABLE outbox_events"), []string{"truncate"}},
	}
}
