package sluicebox

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/checkpoint"
	"github.com/sluicebox/sluicebox/store"
)

// beginSession returns a relay with a running session.
func beginSession(s sessionStats) (r *Relay, end func()) {
	r = &Relay{health: newHealth(), observer: noObserver{}, log: slog.New(slog.DiscardHandler)}
	r.health.replaceAll(passedCheck("source", s.sourceDetail))
	s.connected, s.lastReceived = true, time.Now()
	return r, r.progress.startSession(s)
}

// expectCheck compares a check of a relay with the wanted one.
func expectCheck(t *testing.T, r *Relay, name string, ok bool, says string) {
	t.Helper()
	for _, c := range r.Checks() {
		if c.Name == name {
			if c.OK != ok || !strings.Contains(c.Detail, says) {
				t.Errorf("check %s is %+v, want %t with %q", name, c, ok, says)
			}
			return
		}
	}
	t.Errorf("there is no check %s", name)
}

// A stream is ready while any message arrives, and not ready after three missed
// heartbeats. A pause is no silence, not even right after its end.
func TestSilentStreamIsNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		paused := false
		tracker := checkpoint.NewTracker(store.Checkpoint{Position: "start"})
		r, end := beginSession(sessionStats{mode: ModeStream, sourceDetail: "reading the log", tracker: tracker, expectedInterval: 30 * time.Second, paused: func() bool { return paused }})
		time.Sleep(85 * time.Second)
		expectCheck(t, r, "source", true, "reading the log")
		time.Sleep(6 * time.Second)
		expectCheck(t, r, "source", false, "no message from the log for 1m31s")
		tracker.Begin("next", 0, 0)
		expectCheck(t, r, "source", true, "reading the log")
		paused = true
		time.Sleep(time.Hour)
		expectCheck(t, r, "source", true, "paused")
		paused = false
		time.Sleep(80 * time.Second)
		expectCheck(t, r, "source", true, "reading the log")
		time.Sleep(11 * time.Second)
		expectCheck(t, r, "source", false, "heartbeats are due every")
		end()
		expectCheck(t, r, "source", true, "reading the log") // the detail recorded before
	})
}

// A source without heartbeats may be silent. A short heartbeat interval still allows
// minSilence.
func TestSilenceLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file, _ := beginSession(sessionStats{mode: ModeStream, sourceDetail: "reading the log"})
		short, _ := beginSession(sessionStats{mode: ModeStream, sourceDetail: "reading the log", expectedInterval: time.Second})
		time.Sleep(9 * time.Second)
		expectCheck(t, short, "source", true, "")
		time.Sleep(2 * time.Second)
		expectCheck(t, short, "source", false, "every 1s")
		time.Sleep(time.Hour)
		expectCheck(t, file, "source", true, "")
	})
}

// slowTables are tables whose reads are slow or fail.
type slowTables struct {
	takes time.Duration
	err   error
}

func (s *slowTables) View(context.Context, string) (store.View, error) { return slowView{of: s}, nil }

type slowView struct {
	store.View
	of *slowTables
}

func (v slowView) Unsettled(context.Context, store.UnsettledQuery) ([]store.Item, error) {
	time.Sleep(v.of.takes)
	return nil, v.of.err
}

// A polling relay is ready while its reads succeed; reading a large table may take long.
func TestPollingWithoutReadsIsNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := beginSession(sessionStats{mode: ModePoll, sourceDetail: "polling", expectedInterval: 10 * time.Second})
		tables := &slowTables{}
		read := func() {
			view, err := timedViewer{Viewer: tables, progress: &r.progress}.View(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			_, _ = view.Unsettled(t.Context(), store.UnsettledQuery{})
		}
		time.Sleep(25 * time.Second)
		read()
		time.Sleep(25 * time.Second)
		expectCheck(t, r, "source", true, "polling")
		tables.err = errors.New("a lock")
		read()
		time.Sleep(6 * time.Second)
		expectCheck(t, r, "source", false, "last poll 31s ago")
		tables.err, tables.takes = nil, time.Minute
		read()
		time.Sleep(2 * time.Minute) // a pause, and the next read
		expectCheck(t, r, "source", true, "polling")
	})
}

// Failing checkpoint saves fail readiness after a minute, until a save succeeds.
func TestFailingCheckpointSavesFailReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, _ := operatedRelay(t)
		r.health = newHealth()
		defer r.progress.startSession(sessionStats{mode: ModeStream})()
		watch := checkpointObserver{r}
		expectCheck(t, r, "checkpoint", true, "nothing to save yet")
		watch.SaveFailed(errors.New("the disk is full"))
		time.Sleep(50 * time.Second)
		watch.SaveFailed(errors.New("the disk is still full"))
		expectCheck(t, r, "checkpoint", true, "checkpoint save failing for 50s")
		time.Sleep(10 * time.Second)
		expectCheck(t, r, "checkpoint", false, "checkpoint save failing for 1m0s: the disk is still full")
		watch.Saved(store.Checkpoint{Position: "0/17"})
		expectCheck(t, r, "checkpoint", true, "saved at 0/17")
		watch.SaveFailed(errors.New("again"))
		expectCheck(t, r, "checkpoint", true, "checkpoint save failing for 0s")
	})
}
