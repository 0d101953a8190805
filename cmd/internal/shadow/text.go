package shadow

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// HasFindings reports whether the old processor did what a relay does not do.
func (o *OutboxReport) HasFindings() bool {
	return o.OutOfOrder+o.Stuck+o.Unreached+o.Deleted+o.Returned > 0
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// durationText has three digits, as far as a histogram is exact.
func durationText(s float64) string {
	d := seconds(s)
	switch {
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(10 * time.Microsecond).String()
}

// Text formats a report for people.
func (r *Report) Text() string {
	var b strings.Builder
	line := func(label, format string, args ...any) {
		fmt.Fprintf(&b, "%-20s %s\n", label, fmt.Sprintf(format, args...))
	}
	if r.Since.IsZero() {
		line("shadow", "the log was never open")
		return b.String()
	}
	line("shadow", "%s, since %s", r.Until.Sub(r.Since).Round(time.Second), r.Since.UTC().Format(time.RFC3339))
	if r.Interruptions > 0 {
		line("interruptions", "%d: changes were missed, and unfinished rows forgotten", r.Interruptions)
	}
	for i := range r.Outboxes {
		b.WriteString("\n")
		r.Outboxes[i].text(line, r)
	}
	return b.String()
}

func (o *OutboxReport) text(line func(label, format string, args ...any), r *Report) {
	line("OUTBOX", "%s", cell(o.Outbox))
	line("rows", "%d new, %d delivered, %d FAILED, %d unfinished", o.Seen, o.Delivered, o.Failed, o.Open)
	latency := func(label string, l Latency, what string) {
		if l.Rows > 0 {
			line(label, "p50 %s  p99 %s  max %s  %s", durationText(l.P50), durationText(l.P99), durationText(l.Max), what)
		}
	}
	latency("relay: captured", o.Captured, "commit of the row to its arrival here")
	latency("old: taken", o.TakenLatency, "commit of the row to commit of its claim")
	latency("old: delivered", o.DeliveredLatency, "commit of the row to commit of its mark")
	if o.Seen > 0 {
		line("free lanes", "%.1f %% of the rows came while no earlier row of their group was unfinished", 100*float64(o.LaneFree)/float64(o.Seen))
	}
	if o.Retried+o.Requeued > 0 {
		line("retried", "%d taken and given back, %d FAILED and reset", o.Retried, o.Requeued)
	}
	finding := func(n int, label, what string, list []Example, of func(Example) string) {
		if n == 0 {
			return
		}
		line(label, "%d %s", n, what)
		for _, e := range list {
			line("", "  %s", of(e))
		}
	}
	plain := func(e Example) string { return "row " + cell(e.ID) + groupText(e.Group) }
	since := func(e Example) string { return plain(e) + ", since " + e.Since.UTC().Format(time.RFC3339) }
	finding(o.OutOfOrder, "OUT OF ORDER", "rows delivered after a later row of their group", o.Examples.OutOfOrder,
		func(e Example) string { return plain(e) + ", after row " + cell(e.After) })
	finding(o.Stuck, "STUCK", fmt.Sprintf("rows taken and not finished within %s, %d still so", seconds(r.StuckAfter), o.StuckNow), o.Examples.Stuck, since)
	finding(o.Unreached, "NOT REACHED", fmt.Sprintf("rows not taken within %s, %d still so", seconds(r.LostAfter), o.UnreachedNow), o.Examples.Unreached, since)
	finding(o.Deleted, "DELETED", "rows deleted before they were delivered", o.Examples.Deleted, plain)
	finding(o.Returned, "DELIVERED TWICE", "rows delivered, and then set back", o.Examples.Returned, plain)
	finding(o.Failed, "FAILED", "rows", o.Examples.Failed, plain)
	if !o.HasFindings() {
		line("findings", "none")
	}
	limit := func(n int, what string) {
		if n > 0 {
			line("not judged", "%d %s", n, what)
		}
	}
	limit(o.Unknown, "changes of rows from before the start")
	limit(o.Untracked, fmt.Sprintf("new rows, because %d were unfinished (shadow.max-rows)", r.MaxRows))
	limit(o.Unidentified, "deletes, because the log does not have the id of the row")
	limit(o.Forgotten, "rows that were unfinished at an interruption")
}

// cell quotes a name that would break a line.
func cell(name string) string {
	if name == "" || strconv.Quote(name) != `"`+name+`"` || strings.ContainsAny(name, " ,") {
		return strconv.Quote(name)
	}
	return name
}

func groupText(g store.Group) string {
	if !g.Valid {
		return ""
	}
	return " of group " + cell(g.Name)
}
