package statistics_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/statistics"
	"github.com/sluicebox/sluicebox/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func row(kind, typ string) sink.Message {
	m := sink.Message{ID: "1", Kind: kind}
	if typ != "" {
		m.Attributes = store.Attributes{{Name: store.AttributeType, Value: typ}}
	}
	return m
}

// reports records what a sink reports.
type reports struct {
	mu     sync.Mutex
	lines  []string
	counts map[string]int
}

func (r *reports) Write(line []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, strings.TrimSpace(string(line)))
	return len(line), nil
}

func (r *reports) count(kind, typ string, rows int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counts == nil {
		r.counts = map[string]int{}
	}
	r.counts[kind+"|"+typ] += rows
}

func open(t *testing.T, cfg statistics.Config) (*statistics.Sink, *reports) {
	t.Helper()
	s, err := statistics.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := &reports{}
	noTime := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
			return slog.Attr{}
		}
		return a
	}
	s.ReportTo(slog.New(slog.NewTextHandler(r, &slog.HandlerOptions{ReplaceAttr: noTime})), r.count)
	return s, r
}

func deliver(t *testing.T, s *statistics.Sink, msgs ...sink.Message) {
	t.Helper()
	if res := s.Deliver(context.Background(), msgs); res.Class != sink.Delivered || res.Items != nil {
		t.Fatalf("got %+v, want every row delivered", res)
	}
}

// TestSummary: the log gets the counts once an interval if they have changed, and at the end.
func TestSummary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := open(t, statistics.Config{Interval: time.Minute})
		deliver(t, s, row("wallet", "Opened"), row("wallet", "Closed"), row("wallet", "Opened"))
		time.Sleep(3 * time.Minute) // nothing changes in two of them
		synctest.Wait()
		deliver(t, s, row("", "Paid"), row("", ""))
		s.Close()
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		want := []string{
			`msg="rows counted" rows=3 total=3 by_type="wallet/Opened=2, wallet/Closed=1"`,
			`msg="rows counted" rows=2 total=5 by_type="wallet/Opened=2, (none)=1, Paid=1, wallet/Closed=1"`,
		}
		if fmt.Sprint(r.lines) != fmt.Sprint(want) {
			t.Errorf("got %q, want %q", r.lines, want)
		}
		if got, want := fmt.Sprint(r.counts), "map[wallet|Closed:1 wallet|Opened:2 |:1 |Paid:1]"; got != want {
			t.Errorf("got counts %s, want %s", got, want)
		}
	})
}

// TestManyTypes bounds the names: 500 pairs of kind and type, and one for all others.
func TestManyTypes(t *testing.T) {
	t.Parallel()
	s, r := open(t, statistics.Config{Interval: -1})
	defer s.Close()
	for i := range 600 {
		deliver(t, s, row("k", fmt.Sprint(i)), row("k", "0"))
	}
	if len(r.counts) != 501 || r.counts["(other)|(other)"] != 100 || r.counts["k|0"] != 601 || len(r.lines) != 0 {
		t.Errorf("got %d names, %d others, %d of type 0 and the log %q; want 501, 100, 601 and none",
			len(r.counts), r.counts["(other)|(other)"], r.counts["k|0"], r.lines)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for interval, want := range map[time.Duration]string{0: "", -1: "", time.Second: "", time.Millisecond: "summary-interval is 1ms, must be at least 1s, or below 0s for no summaries"} {
		got := ""
		if err := (&statistics.Config{Interval: interval}).Validate(); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", interval, got, want)
		}
	}
}
