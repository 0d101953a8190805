package shadow

import (
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/histogram"
	"github.com/sluicebox/sluicebox/store"
)

// Report is what a shadow has found.
type Report struct {
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
	// Interruptions is how often the log was lost. The rows that were unfinished then are
	// forgotten.
	Interruptions int            `json:"interruptions"`
	StuckAfter    float64        `json:"stuck_after_seconds"`
	LostAfter     float64        `json:"lost_after_seconds"`
	MaxRows       int            `json:"max_rows"`
	Outboxes      []OutboxReport `json:"outboxes"`
}

// OutboxReport is what a shadow has found in an outbox.
type OutboxReport struct {
	Outbox string `json:"outbox"`
	Counts
	// Open are the unfinished rows that are followed now. StuckNow and UnreachedNow are those
	// of them that count as Stuck and Unreached.
	Open         int `json:"open"`
	StuckNow     int `json:"stuck_now"`
	UnreachedNow int `json:"unreached_now"`
	// Captured is from a row's commit to the time at which a relay would have it; the clocks of
	// the server and of this process differ. TakenLatency and DeliveredLatency are of the old
	// processor: from the commit of the row to the commit of its mark, both by the server's clock.
	Captured         Latency  `json:"captured"`
	TakenLatency     Latency  `json:"taken_latency"`
	DeliveredLatency Latency  `json:"delivered_latency"`
	Examples         Examples `json:"examples"`
}

// Counts are numbers of rows.
type Counts struct {
	Seen      int `json:"seen"`      // inserted since the start
	LaneFree  int `json:"lane_free"` // of these, inserted while no earlier row of the group was unfinished
	Taken     int `json:"taken"`     // marked as being sent, for the first time
	Delivered int `json:"delivered"`
	Failed    int `json:"failed"`
	Retried   int `json:"retried"`  // taken, and given back
	Requeued  int `json:"requeued"` // failed, and unfinished again
	// The findings.
	OutOfOrder int `json:"out_of_order"` // delivered after a later row of the group
	Stuck      int `json:"stuck"`        // taken, and unfinished for too long
	Unreached  int `json:"unreached"`    // not taken for too long
	Deleted    int `json:"deleted"`      // before they were delivered
	Returned   int `json:"returned"`     // delivered, and unfinished again
	// The limits of the shadow.
	Unknown      int `json:"unknown"`      // changes of rows whose insert was not seen
	Untracked    int `json:"untracked"`    // inserted beyond the bound of rows
	Unidentified int `json:"unidentified"` // deleted without an id in the log
	Forgotten    int `json:"forgotten"`    // unfinished when the log was lost
}

// Latency summarizes durations, in seconds.
type Latency struct {
	Rows int     `json:"rows"`
	Sum  float64 `json:"sum"`
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}

// Example is a row with a finding.
type Example struct {
	ID    string      `json:"id"`
	Group store.Group `json:"group"`
	After string      `json:"after,omitempty"` // id of the later row that was delivered before it
	Since time.Time   `json:"since,omitzero"`  // of the state that lasts too long
}

// Examples are the last rows of each finding.
type Examples struct {
	OutOfOrder lastExamples `json:"out_of_order"`
	Stuck      lastExamples `json:"stuck"`
	Unreached  lastExamples `json:"unreached"`
	Deleted    lastExamples `json:"deleted"`
	Returned   lastExamples `json:"returned"`
	Failed     lastExamples `json:"failed"`
}

// maxExamples is the most examples of a finding.
const maxExamples = 10

type lastExamples []Example

// add makes a new list, because a report may have the old one.
func (l *lastExamples) add(e Example) {
	old := *l
	old = old[max(0, len(old)+1-maxExamples):]
	*l = append(append(make(lastExamples, 0, maxExamples), old...), e)
}

// findings are those of an outbox.
type findings struct {
	deleteDelivers, unordered  bool
	total, reported            Counts // reported: at the end of the last interval
	open, stuck, unreached     int
	captured, taken, delivered latencies
	examples                   Examples
}

// latencies are durations of the whole time, and of the current interval.
type latencies struct{ all, interval durations }

type durations struct {
	histogram.Histogram
	max, sum time.Duration
}

func (l *latencies) add(d time.Duration) {
	for _, to := range []*durations{&l.all, &l.interval} {
		to.Add(d)
		to.max, to.sum = max(to.max, d), to.sum+d
	}
}

func (d *durations) latency() Latency {
	of := func(q float64) float64 { return min(d.Quantile(q), d.max).Seconds() }
	return Latency{Rows: d.Total(), Sum: d.sum.Seconds(), P50: of(.5), P99: of(.99), Max: d.max.Seconds()}
}

// Report returns the findings of each outbox so far.
func (c *Comparer) Report() []OutboxReport {
	list := make([]OutboxReport, len(c.names))
	for i, name := range c.names {
		f := c.outboxes[name]
		list[i] = f.report(name, f.total, func(l *latencies) *durations { return &l.all })
	}
	return list
}

// Interval returns the findings of each outbox since the last call.
func (c *Comparer) Interval() []OutboxReport {
	list := make([]OutboxReport, len(c.names))
	for i, name := range c.names {
		f := c.outboxes[name]
		list[i] = f.report(name, f.total.minus(f.reported), func(l *latencies) *durations { return &l.interval })
		f.reported = f.total
		f.captured.interval, f.taken.interval, f.delivered.interval = durations{}, durations{}, durations{}
	}
	return list
}

func (f *findings) report(name string, counts Counts, of func(*latencies) *durations) OutboxReport {
	return OutboxReport{
		Outbox: name, Counts: counts, Open: f.open, StuckNow: f.stuck, UnreachedNow: f.unreached, Examples: f.examples,
		Captured: of(&f.captured).latency(), TakenLatency: of(&f.taken).latency(), DeliveredLatency: of(&f.delivered).latency(),
	}
}

func (c Counts) minus(o Counts) Counts {
	a, b := c.fields(), o.fields()
	for i := range a {
		*a[i] -= *b[i]
	}
	return c
}

func (c *Counts) fields() []*int {
	return []*int{
		&c.Seen, &c.LaneFree, &c.Taken, &c.Delivered, &c.Failed, &c.Retried, &c.Requeued, &c.OutOfOrder, &c.Stuck, &c.Unreached,
		&c.Deleted, &c.Returned, &c.Unknown, &c.Untracked, &c.Unidentified, &c.Forgotten,
	}
}

// maxName is the longest name of a group in memory, in bytes. A group may be as large as a payload.
const maxName = 256

// shorten returns a name of at most maxName bytes, which stays distinct.
func shorten(name string) string {
	if len(name) <= maxName {
		return name
	}
	h := fnv.New128a()
	_, _ = h.Write([]byte(name)) // it never fails
	return strings.ToValidUTF8(name[:maxName/2], "") + fmt.Sprintf("…%x", h.Sum(nil))
}
