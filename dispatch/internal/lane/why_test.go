package lane

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/internal/breaker"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// whySet returns a set with a lane of three rows.
func whySet() (*Set, *Lane) {
	s := NewSet(Config{
		BatchRows: 10, Senders: 1, BufferRows: 100, BufferBytes: 1 << 20,
		Breaker: &breaker.Config{Backoff: func(int) time.Duration { return time.Second }, RetryAfterMax: time.Minute, MaxConcurrentEager: 1, PingInterval: time.Second},
		Limits:  func(string) sink.Limits { return sink.Limits{MaxItems: 10, MaxBytes: 1 << 20, Endpoint: "/events"} },
		Random:  func() float64 { return 0 },
	})
	var l *Lane
	for i := range 3 {
		rw := &Row{Item: store.Item{Ref: store.Ref{Outbox: "events", ID: fmt.Sprint(i + 1)}, Kind: "EVENT", Group: store.GroupOf("g")}}
		l, _ = s.Ensure(s.NameOf(&rw.Item))
		l.Rows = append(l.Rows, rw)
	}
	return s, l
}

// Each state of a lane has its cause, for its first row and for the row behind it.
func TestWhyOf(t *testing.T) {
	now := time.Unix(1e9, 0)
	wait := func(l *Lane) { l.State, l.WakeAt = Waiting, now.Add(time.Minute) }
	for name, c := range map[string]struct {
		set           func(s *Set, l *Lane)
		first, second Cause
		says          string // the error, reason or class of the first row
	}{
		"ready":    {func(*Set, *Lane) {}, NoSender, Behind, ""},
		"claiming": {func(_ *Set, l *Lane) { l.State, l.InFlight = Claiming, 2 }, BeingClaimed, BeingClaimed, ""},
		"sent":     {func(_ *Set, l *Lane) { l.State, l.InFlight, l.SentAt = Sending, 2, now }, InFlight, InFlight, ""},
		"queued":   {func(_ *Set, l *Lane) { l.State, l.InFlight = Sending, 1 }, QueuedToSend, Behind, ""},
		"writing":  {func(_ *Set, l *Lane) { l.Write() }, Settling, Behind, ""},
		"outcome refused": {func(_ *Set, l *Lane) {
			l.Write()
			l.SetRefusal("trigger", now)
		}, RefusedByTable, Behind, "trigger"},
		"claim refused": {func(_ *Set, l *Lane) {
			wait(l)
			l.SetRefusal("check", now)
		}, RefusedByTable, Behind, "check"},
		"blocked": {func(_ *Set, l *Lane) {
			l.Blocked = &store.Hold{ID: "0", Reason: "422", Since: now}
		}, BlockedBy, BlockedBy, "422"},
		"paused, while in flight": {func(_ *Set, l *Lane) {
			l.State, l.InFlight, l.SentAt = Sending, 1, now
			l.Paused = &store.Hold{Reason: "look"}
		}, InFlight, LanePaused, ""},
		"paused": {func(_ *Set, l *Lane) { l.Paused = &store.Hold{Reason: "look"} }, LanePaused, LanePaused, "look"},
		"route paused": {func(s *Set, _ *Lane) {
			s.PauseOutbox(&store.Hold{Lane: store.LaneKey{Outbox: "events"}, Reason: "incident"})
		}, RoutePaused, RoutePaused, "incident"},
		"replayed": {func(_ *Set, l *Lane) { l.ReplayHolds = []string{"job1", "job2"} }, HeldByReplay, HeldByReplay, "job1, job2"},
		"table locked": {func(s *Set, l *Lane) {
			s.Queue(l)
			s.LockTable("events")
		}, TableLocked, Behind, ""},
		"not visible": {func(_ *Set, l *Lane) {
			wait(l)
			l.HeldBy = store.NotYetVisible
		}, NotVisible, Behind, ""},
		"held by another": {func(_ *Set, l *Lane) {
			wait(l)
			l.HeldBy = store.Held
		}, HeldByOther, Behind, ""},
		"backoff": {func(_ *Set, l *Lane) {
			wait(l)
			l.RecordFailure("503")
		}, Backoff, Behind, "503"},
		"breaker": {func(_ *Set, l *Lane) {
			for range breaker.MaxFailures {
				l.Receiver.Breaker.Answered(&breaker.Answer{Started: now, Failure: sink.Outcome{Class: sink.Unavailable, Detail: "down"}}, now)
			}
		}, BreakerOpen, Behind, "down unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			s, l := whySet()
			c.set(s, l)
			first, second := WhyOf(s, l, 0, now), WhyOf(s, l, 1, now)
			if first.Cause != c.first || second.Cause != c.second {
				t.Errorf("the causes are %q and %q, want %q and %q", first.Cause, second.Cause, c.first, c.second)
			}
			said := first.Error + first.Reason
			if first.Class != "" {
				said += " " + first.Class
			}
			if said != c.says {
				t.Errorf("it says %q, want %q", said, c.says)
			}
			if c.second == Behind && (second.First != "1" || second.FirstCause != c.first || second.Ahead != 1) {
				t.Errorf("the second row is behind %d rows, first %q: %q", second.Ahead, second.First, second.FirstCause)
			}
		})
	}
}

// A spilled row of a lane without rows in memory waits for what holds the lane, or for its reload.
func TestWhyOfSpilledRows(t *testing.T) {
	now := time.Unix(1e9, 0)
	s, l := whySet()
	l.HasSpilled = true
	if w := WhyOf(s, l, 3, now); w.Cause != Behind || w.Ahead != 3 || w.First != "1" {
		t.Errorf("a spilled row behind three: %+v", w)
	}
	l.Rows = nil
	if w := WhyOf(s, l, 0, now); w.Cause != SpilledRow || w.Ahead != 0 {
		t.Errorf("a spilled row: %+v", w)
	}
	l.State, l.WakeAt = Waiting, now.Add(time.Minute)
	l.RecordFailure("503")
	if w := WhyOf(s, l, 0, now); w.Cause != Backoff || !w.Until.Equal(l.WakeAt) || w.Error != "503" {
		t.Errorf("a spilled row whose lane waits: %+v", w)
	}
}
