package statistics

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

const (
	// maxNames bounds the pairs of kind and type, because services choose them and each is a time
	// series. Further ones count under other.
	maxNames = 500
	other    = "(other)"

	// maxListed is the number of pairs in a summary, the most frequent ones.
	maxListed = 20
)

// name is what rows are counted by.
type name struct{ kind, typ string }

// Sink counts rows. Between the first row and Close a timer is due once an interval.
type Sink struct {
	cfg Config

	mu     sync.Mutex
	log    *slog.Logger
	count  func(kind, typ string, rows int)
	total  map[name]int64
	since  int64       // rows since the last summary
	timer  *time.Timer // nil before the first row
	closed bool
}

var (
	_ sink.Sink     = (*Sink)(nil)
	_ sink.Prober   = (*Sink)(nil)
	_ sink.Reporter = (*Sink)(nil)
)

// New returns a Sink. It fails if the configuration is invalid.
func New(cfg Config) (*Sink, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Sink{cfg: cfg.withDefaults(), total: map[name]int64{}}, nil
}

// ReportTo implements sink.Reporter.
func (s *Sink) ReportTo(log *slog.Logger, count func(kind, typ string, rows int)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log, s.count = log, count
}

// Close logs the last summary. Call it only when no Deliver is running.
func (s *Sink) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
		s.logSummary()
	}
}

// Limits implements sink.Sink.
func (s *Sink) Limits(kind string) sink.Limits { return s.cfg.Limits(kind) }

// Deliver counts the messages. It always succeeds.
func (s *Sink) Deliver(_ context.Context, msgs []sink.Message) sink.Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range msgs {
		typ, _ := msgs[i].Attributes.Get(store.AttributeType)
		n := name{msgs[i].Kind, typ}
		if _, known := s.total[n]; !known && len(s.total) >= maxNames {
			n = name{other, other}
		}
		s.total[n]++
		s.since++
		if s.count != nil {
			s.count(n.kind, n.typ, 1)
		}
	}
	if s.timer == nil && s.cfg.Interval > 0 && !s.closed {
		s.timer = time.AfterFunc(s.cfg.Interval, s.summarize)
	}
	return sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}
}

// summarize logs a summary and sets the timer again.
func (s *Sink) summarize() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.logSummary()
	s.timer.Reset(s.cfg.Interval)
}

// logSummary logs the counts if they have changed. The caller holds the lock.
func (s *Sink) logSummary() {
	if s.since == 0 || s.log == nil {
		return
	}
	var all int64
	for _, n := range s.total {
		all += n
	}
	s.log.Info("rows counted", "rows", s.since, "total", all, "by_type", s.listed())
	s.since = 0
}

// listed returns the most frequent names with their counts, for example "order/Paid=12".
func (s *Sink) listed() string {
	names := slices.SortedFunc(maps.Keys(s.total), func(a, b name) int {
		return cmp.Or(cmp.Compare(s.total[b], s.total[a]), cmp.Compare(a.kind, b.kind), cmp.Compare(a.typ, b.typ))
	})
	var list []string
	for _, n := range names[:min(len(names), maxListed)] {
		list = append(list, fmt.Sprintf("%s=%d", n, s.total[n]))
	}
	if more := len(names) - len(list); more > 0 {
		list = append(list, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(list, ", ")
}

// String returns the kind and the type, of which a row may lack one.
func (n name) String() string {
	switch {
	case n.typ == "":
		return cmp.Or(n.kind, "(none)")
	case n.kind == "":
		return n.typ
	}
	return n.kind + "/" + n.typ
}

// Probe implements sink.Prober.
func (s *Sink) Probe(context.Context, string) sink.Outcome {
	return sink.Outcome{Class: sink.Delivered, Detail: "rows are only counted, not sent"}
}
