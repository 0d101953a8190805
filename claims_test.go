package sluicebox

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/ledger"
)

// fakeStandbys is a store whose commits wait if a setting is set. A slow store does not answer.
type fakeStandbys struct {
	store.Tables
	mu      sync.Mutex
	setting string
	err     error
	slow    bool
	reads   int
}

func (f *fakeStandbys) CommitsWait(ctx context.Context) (string, error) {
	f.mu.Lock()
	f.reads++
	setting, err, slow := f.setting, f.err, f.slow
	f.mu.Unlock()
	if slow {
		<-ctx.Done()
		return "", ctx.Err()
	}
	return setting, err
}

func TestClaimsInForce(t *testing.T) {
	late, on := testOptions(), testOptions()
	late.Claims, on.Claims = ClaimsLate, ClaimsOn
	shared := late
	shared.TakeoverTimeout = time.Minute
	off := testOptions()
	off.Outboxes = []Outbox{late.Outboxes[0]}
	off.Outboxes[0].Layout.Unclaimed = true
	some := late
	some.Outboxes = []Outbox{off.Outboxes[0], late.Outboxes[1]}
	offLate := off
	offLate.Claims = ClaimsLate
	for _, c := range []struct {
		name    string
		o       Options
		polling bool
		st      *fakeStandbys
		mode    ClaimsMode
		reason  string
		reads   int
	}{
		{"as configured", late, false, &fakeStandbys{}, ClaimsLate, configuredMode, 1},
		{"by default", testOptions(), false, &fakeStandbys{}, ClaimsLate, configuredMode, 1},
		{"on", on, false, &fakeStandbys{setting: "x = 1"}, ClaimsOn, configuredMode, 0},
		{"no claims", off, false, &fakeStandbys{}, ClaimsOff, configuredMode, 0},
		{"no claims, and late", offLate, false, &fakeStandbys{}, ClaimsOff, configuredMode, 0},
		{"claims in one of two tables", some, false, &fakeStandbys{}, ClaimsLate, configuredMode, 1},
		{"another processor", shared, false, &fakeStandbys{}, ClaimsOn, "not late: another processor works on the tables (takeover timeout)", 0},
		{"polling", late, true, &fakeStandbys{}, ClaimsOn, "not late: rows are read from the tables, not from the log", 0},
		{"a standby", late, false, &fakeStandbys{setting: "x = 1"}, ClaimsOn, "not late: commits wait for a standby (x = 1)", 1},
		{"no answer", late, false, &fakeStandbys{err: errors.New("gone")}, ClaimsOn, "not late: unknown whether commits wait for a standby", 1},
	} {
		got, err := c.o.ReadClaims(t.Context(), c.st, c.polling)
		if got != (ClaimsStatus{c.mode, c.reason}) || !errors.Is(err, c.st.err) || c.st.reads != c.reads {
			t.Errorf("%s: %+v, %v, after %d reads; want %s, %q, after %d", c.name, got, err, c.st.reads, c.mode, c.reason, c.reads)
		}
	}
}

// A leader follows a setting of the server within claimsInterval, and logs each change once. A
// server that does not answer counts as one whose commits wait.
func TestClaimsFollowTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, logged := testOptions(), &bytes.Buffer{}
		o.Logger = slog.New(slog.NewTextHandler(logged, nil))
		r, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		st := &fakeStandbys{}
		r.db = &database{store: ledger.Store{Tables: st}}
		if r.mayGoUnclaimed() {
			t.Error("rows may go unclaimed before the first read")
		}
		r.updateClaims(t.Context())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.watchClaims(ctx) }()
		expect := func(what string, change func(), within time.Duration, late bool, says string) {
			t.Helper()
			st.mu.Lock() // orders the goroutines: the next read sees the change, then it logs
			logged.Reset()
			change()
			st.mu.Unlock()
			time.Sleep(within)
			synctest.Wait()
			if r.mayGoUnclaimed() != late {
				t.Errorf("%s: rows may go unclaimed: %v, want %v", what, !late, late)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if got := logged.String(); strings.Count(got, "\n") != min(1, len(says)) || !strings.Contains(got, says) {
				t.Errorf("%s: the log has %q, want once %q", what, got, says)
			}
		}
		expect("no standby", func() {}, 0, true, "")
		expect("a standby", func() { st.setting = "standbys = 'a'" }, claimsInterval, false,
			`level=INFO msg="claims mode changed" mode=on reason="not late: commits wait for a standby (standbys = 'a')"`)
		expect("none again", func() { st.setting = "" }, claimsInterval, true, `msg="claims mode changed" mode=late reason=configured`)
		expect("no answer", func() { st.slow = true }, claimsInterval+claimsTimeout, false,
			`mode=on reason="not late: unknown whether commits wait for a standby" error="context deadline exceeded"`)
		expect("an answer", func() { st.slow = false }, claimsInterval+claimsTimeout, true, `mode=late`)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}
