package dispatch

import (
	"fmt"
	"slices"
	"testing"
	"time"

	lanes "github.com/sluicebox/sluicebox/dispatch/internal/lane"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// Rows of a backlog are read before they are sent, and written once, with their outcome.
func TestBacklogIsCheckedAndWrittenOnce(t *testing.T) {
	driveLate(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		add(t, d, nil, items("a", "1", "2"))
		k.advance(time.Second)
		k.expect(t, "checks", k.checks, "[[1 2]]")
		k.expect(t, "claims", k.claims, "[]")
		k.expect(t, "requests", k.requests, "[[1 2]]")
		k.expect(t, "outcomes", k.settles, "[[1 COMPLETED 2 COMPLETED]]")
	})
}

// A checked row whose request hangs is claimed after lanes.ClaimAfter, as a fresh one is. It is
// tried again with a written claim, because it is PROCESSING by then.
func TestHangingRequestIsClaimedAfterItsCheck(t *testing.T) {
	driveLate(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				if len(k.requests) > 1 {
					return always(sink.Delivered)(ids)
				}
				return answerAfter(time.Second, sink.Unavailable)(ids)
			}
		})
		add(t, d, nil, items("a", "1"))
		k.advance(10 * time.Second)
		k.expect(t, "checks", k.checks, "[[1]]")
		k.expect(t, "claims", k.claims, "[[1] [1]]")
		if at := k.claimedAt("1"); at > lanes.ClaimAfter+5*time.Millisecond {
			t.Errorf("claimed after %s, want %s", at, lanes.ClaimAfter)
		}
		k.expect(t, "outcomes", k.settles, "[[1 COMPLETED]]")
	})
}

// A retry that follows a quick failure is checked again, and nothing is written in between.
func TestQuickFailuresWriteNoClaim(t *testing.T) {
	driveLate(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
		k.set(func() {
			k.answer = func(ids []string) sink.Result {
				if len(k.requests) > 3 {
					return always(sink.Delivered)(ids)
				}
				return always(sink.Unavailable)(ids)
			}
		})
		add(t, d, nil, items("a", "1"))
		k.advance(time.Minute)
		k.expect(t, "checks", k.checks, "[[1] [1] [1] [1]]")
		k.expect(t, "claims", k.claims, "[]")
		k.expect(t, "outcomes", k.settles, "[[1 COMPLETED]]")
	})
}

// A row that was cancelled while it waited is not sent. That includes the wait for a sender behind
// its check, which is repeated after lanes.MaxCheckAge.
func TestCancelledRowIsNotSentAfterItsCheck(t *testing.T) {
	for name, c := range map[string]struct {
		hang  time.Duration
		sends bool
	}{
		"a short wait": {lanes.MaxCheckAge / 2, true},
		"a long wait":  {lanes.MaxCheckAge + 100*time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			driveLate(t, senders(1), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
				cancelled := map[string]bool{"0": true}
				k.set(func() {
					k.grant = func(r *store.ClaimRow) store.ClaimAnswer {
						if cancelled[r.ID] {
							return store.ClaimAnswer{Result: store.AlreadySettled}
						}
						return store.ClaimAnswer{Result: store.Claimed}
					}
					k.answer = func(ids []string) sink.Result {
						if ids[0] == "1" {
							<-time.After(c.hang)
						}
						return always(sink.Delivered)(ids)
					}
				})
				add(t, d, nil, items("z", "0"))
				add(t, d, nil, items("a", "1"))
				k.advance(10 * time.Millisecond)
				add(t, d, nil, items("b", "2")) // checked ahead, and waits for the sender
				k.advance(10 * time.Millisecond)
				k.expect(t, "checks while the sender hangs", slices.Contains(slices.Concat(k.checks...), "2"), true)
				k.set(func() { cancelled["2"] = true })
				k.advance(time.Minute)
				k.expect(t, "row 0 was sent", slices.Contains(slices.Concat(k.requests...), "0"), false)
				k.expect(t, "row 2 was sent", slices.Contains(slices.Concat(k.requests...), "2"), c.sends)
			})
		})
	}
}

// After a slow check the next claim is written. Rows are not sent on the word of a check that took
// longer than lanes.MaxCheckAge.
func TestSlowChecksAreFollowedByClaims(t *testing.T) {
	for latency, want := range map[time.Duration]string{
		lanes.ClaimAfter / 2:                        "checks [[1] [2]], claims []",
		lanes.ClaimAfter + 50*time.Millisecond:      "checks [[1]], claims [[2]]",
		lanes.MaxCheckAge + 100*time.Millisecond:    "checks [[1]], claims [[1] [2]]",
		10*lanes.MaxCheckAge + 100*time.Millisecond: "checks [[1]], claims [[1] [2]]",
	} {
		t.Run(latency.String(), func(t *testing.T) {
			driveLate(t, DefaultConfig(), func(k *fakeBackend, d *Dispatcher, _ func(error) error) {
				k.set(func() { k.latency = latency })
				add(t, d, nil, items("a", "1"))
				k.advance(time.Minute)
				add(t, d, nil, items("a", "2"))
				k.advance(time.Minute)
				k.expect(t, "statements", "checks "+fmt.Sprint(k.checks)+", claims "+fmt.Sprint(k.claims), want)
				k.expect(t, "requests", k.requests, "[[1] [2]]")
			})
		})
	}
}

// A clean end gives back nothing that was only checked.
func TestShutdownGivesBackNoCheckedRow(t *testing.T) {
	driveLate(t, senders(1), func(k *fakeBackend, d *Dispatcher, end func(error) error) {
		k.set(func() { k.answer = answerAfter(50*time.Millisecond, sink.Unavailable) })
		add(t, d, nil, items("a", "1"))
		add(t, d, nil, items("b", "2"))
		k.advance(20 * time.Millisecond)
		if err := end(nil); err != nil {
			t.Fatal(err)
		}
		k.expect(t, "outcomes", k.settles, "[]")
	})
}
