package dispatch

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// rowText is what a dispatcher knows of a row: the cause, the classes of the attempts, and whether it
// is settled.
func rowText(d *Dispatcher, id string) string {
	in, known := d.Row(store.Ref{Outbox: "events", ID: id})
	if !known {
		return "unknown"
	}
	var classes []string
	for _, a := range in.Attempts {
		classes = append(classes, a.Class)
	}
	text := fmt.Sprintf("%s %d %s", in.Cause, in.Sent, strings.Join(classes, ","))
	if !in.Settled.IsZero() {
		text += " settled"
	}
	return text
}

// A row is explained while it fails, after its delivery and after it is FAILED. What the store is to keep
// of its attempts follows: they are written once it fails, and dropped once it is delivered.
func TestRowsAreExplained(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxRetries = 0
	drive(t, cfg, func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() { k.answer = always(sink.Unavailable) })
		add(t, d, nil, items("a", "1", "2"))
		k.advance(time.Millisecond)
		in, _ := d.Row(store.Ref{Outbox: "events", ID: "1"})
		if in.Cause != "backoff" || in.Lane != nameOf("a") || len(in.Attempts) != 1 || in.Until.IsZero() {
			t.Errorf("the failing row: %+v", in)
		}
		k.expect(t, "the row behind it", rowText(d, "2"), "behind 1 unavailable")
		save, drop := d.TakeAttempts(10)
		if len(save) != 2 || len(drop) != 0 || save[0].Total != 1 {
			t.Errorf("to be saved: %+v, to be dropped: %v", save, drop)
		}

		k.set(func() { k.answer = poisoned("2") })
		k.advance(time.Minute)
		k.expect(t, "the delivered row", rowText(d, "1"), "delivered 2 unavailable,delivered settled")
		k.expect(t, "the FAILED row", rowText(d, "2"), "failed 2 unavailable,rejected settled")
		k.expect(t, "another", rowText(d, "3"), "unknown")
		save, drop = d.TakeAttempts(10)
		if len(save) != 1 || save[0].ID != "2" || save[0].Total != 2 || len(drop) != 1 || drop[0].ID != "1" {
			t.Errorf("to be saved: %+v, to be dropped: %v", save, drop)
		}
		k.expect(t, "rows that may have ended", d.KeptRows(), "[{events 2}]")
		d.DropAttempts(d.KeptRows())
		k.expect(t, "rows after a discard", d.KeptRows(), "[]")
		if save, drop = d.TakeAttempts(10); len(save) != 0 || len(drop) != 1 {
			t.Errorf("to be saved: %+v, to be dropped: %v", save, drop)
		}
	})
}

// The attempts under an earlier leader come first, and end with the row.
func TestAttemptsOfAnEarlierLeader(t *testing.T) {
	drive(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		for _, id := range []string{"1", "2"} {
			d.LoadAttempts(&store.FailedAttempts{Ref: store.Ref{Outbox: "events", ID: id}, Latest: []store.Attempt{{Class: "refused"}}, Total: 12})
		}
		k.set(func() { k.answer = always(sink.Unavailable) })
		add(t, d, nil, items("a", "1"))
		k.advance(time.Millisecond)
		k.expect(t, "the failing row", rowText(d, "1"), "backoff 13 refused,unavailable")
		k.set(func() { k.answer = always(sink.Delivered) })
		add(t, d, nil, items("b", "2"))
		k.advance(time.Minute)
		k.expect(t, "the delivered row", rowText(d, "1"), "delivered 14 refused,unavailable,delivered settled")
		_, drop := d.TakeAttempts(10)
		k.expect(t, "rows that have ended", len(drop), 2)
	})
}
