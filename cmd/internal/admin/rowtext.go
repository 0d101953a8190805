package admin

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/dispatch/route"
	"github.com/sluicebox/sluicebox/store"
)

// Causes of rows that are in no lane. Those of rows in a lane are in package dispatch.
const (
	causeUnmatched = "unmatched"    // no route matches the row
	CauseUnknown   = "unknown"      // neither the table nor the relay has the row
	causeNotRead   = "not_captured" // the table has it unsettled and the leader's memory does not
	causeNoLeader  = "no_leader"    // it is unsettled, and no leader was asked
	causeReset     = "reset"        // it was delivered, and is unsettled in the table again
	causeDiscarded = "discarded"    // it was FAILED, and is not in the table any more
)

// RowOf returns a report as the API shows it.
func RowOf(rep *sluicebox.RowReport, now time.Time) Row {
	shown := Row{Ref: rep.Ref, Leads: rep.Leads, Relay: rep.Leader, Table: tableState(rep), Legs: []RowLeg{}}
	legs := rep.Legs
	if len(legs) == 0 { // an outbox with routes, none of which knows the row
		legs = []sluicebox.LegReport{{RouteName: sluicebox.RouteName{Outbox: rep.Outbox}}}
	}
	for i := range legs {
		shown.Legs = append(shown.Legs, legOf(rep, &legs[i], now))
	}
	for i := range shown.Legs {
		leg := &shown.Legs[i]
		if shown.Cause, shown.Text = leg.Cause, leg.Text; leg.Cause != string(dispatch.CauseDelivered) {
			break
		}
	}
	return shown
}

func tableState(rep *sluicebox.RowReport) string {
	if rep.Stateless {
		return "NONE"
	}
	return [...]string{"UNSETTLED", "COMPLETED", "FAILED", "ABSENT"}[rep.State]
}

// legOf decides what a row's leg waits for: by its record as FAILED, by the leader's memory, by the
// records of legs, and by the table, in this order.
func legOf(rep *sluicebox.RowReport, of *sluicebox.LegReport, now time.Time) RowLeg {
	leg := RowLeg{RouteName: of.RouteName, Sink: of.Sink, Need: NeedRequired, Attempts: []RowAttempt{}, Spilled: of.Spilled != nil, Blocks: of.Blocks}
	if of.Optional {
		leg.Need = NeedOptional
	}
	if of.Row != nil {
		leg.takeInfo(of.Row)
	}
	if f := of.Attempts; f != nil && len(leg.Attempts) == 0 {
		leg.takeAttempts(f.Latest)
		leg.Requests = max(leg.Requests, f.Total)
	}
	switch {
	case of.Failed != nil && !leg.isMoving():
		leg.takeFailed(of.Failed)
	case of.Row != nil:
		leg.checkAgainst(rep, now)
	default:
		leg.causeWithoutMemory(rep, of)
	}
	if of.Route == route.Unmatched && leg.Cause != string(dispatch.CauseDelivered) {
		leg.Cause = causeUnmatched
	}
	leg.Text, leg.Remedy = leg.text(rep), leg.remedy(rep)
	return leg
}

// isMoving reports whether the leader has the row in a lane, so that a FAILED record is older.
func (l *RowLeg) isMoving() bool { return l.Cause != "" && l.Settled == nil }

// takeInfo copies the leader's knowledge of a row.
func (l *RowLeg) takeInfo(in *dispatch.RowInfo) {
	l.Cause, l.Kind, l.Group = string(in.Cause), in.Lane.Kind, in.Lane.Group
	l.CommittedAt, l.CapturedAt = in.Committed.UTC(), in.Captured.UTC()
	if in.Committed.IsZero() {
		l.CommittedAt = time.Time{}
	}
	if in.Captured.IsZero() {
		l.CapturedAt = time.Time{}
	}
	l.Ahead, l.First, l.FirstCause = in.Ahead, in.First, string(in.FirstCause)
	l.Since, l.Until, l.Class, l.Endpoint, l.Reason, l.Error = in.Since, in.Until, in.Class, in.Endpoint, in.Reason, in.Error
	l.Spilled = l.Spilled || in.Spilled
	l.RetryCount, l.Requests = in.RetryCount, in.Sent
	l.takeAttempts(in.Attempts)
	switch in.Cause {
	case dispatch.CauseFailed:
		l.Settled = &RowSettled{Status: store.Failed.String(), At: in.Settled.UTC(), Error: in.FailedAs}
		l.Error = in.FailedAs
	case dispatch.CauseDelivered:
		l.Settled = &RowSettled{Status: store.Completed.String(), At: in.Settled.UTC()}
	}
}

func (l *RowLeg) takeAttempts(all []store.Attempt) {
	for _, a := range all {
		l.Attempts = append(l.Attempts, RowAttempt{StartedAt: a.Started.UTC(), Seconds: a.Took.Seconds(), Class: a.Class, Error: a.Error})
	}
}

// takeFailed takes the record of a FAILED row.
func (l *RowLeg) takeFailed(d *store.DeadLetter) {
	l.Cause, l.Error = string(dispatch.CauseFailed), d.Error
	l.Kind, l.Group, l.RetryCount = d.Kind, d.Group, d.RetryCount
	l.Settled = &RowSettled{Status: store.Failed.String(), At: d.FailedAt, Error: d.Error}
}

// resetAfter is how long after a delivery an unsettled row was set back, and not read a moment before
// its outcome was written.
const resetAfter = 10 * time.Second

// checkAgainst corrects the leader's memory of a settled row by the table.
func (l *RowLeg) checkAgainst(rep *sluicebox.RowReport, now time.Time) {
	if l.Settled == nil || rep.Stateless || l.Route != "" {
		return
	}
	switch {
	case l.Cause == string(dispatch.CauseFailed) && rep.State == store.RowAbsent:
		l.Cause = causeDiscarded
	case rep.State == store.RowUnsettled && now.Sub(l.Settled.At) > resetAfter:
		l.Cause = causeReset
	}
}

// causeWithoutMemory decides by the records and the table alone.
func (l *RowLeg) causeWithoutMemory(rep *sluicebox.RowReport, of *sluicebox.LegReport) {
	switch {
	case of.Pause != nil && (of.Spilled != nil || of.Missing || rep.State == store.RowUnsettled && !rep.Stateless && l.Route == ""):
		l.Cause, l.Since, l.Reason = "route_paused", of.Pause.Since, of.Pause.Reason
	case of.Spilled != nil:
		l.Cause, l.Kind, l.Group, l.CommittedAt = "spilled", of.Spilled.Kind, of.Spilled.Group, of.Spilled.Committed
	case of.Done:
		l.Cause = string(dispatch.CauseDelivered)
	case rep.Stateless && !of.Missing:
		l.Cause = CauseUnknown
	case !of.Missing && rep.State == store.RowCompleted:
		l.Cause = string(dispatch.CauseDelivered)
		l.Settled = &RowSettled{Status: store.Completed.String()}
	case !of.Missing && rep.State == store.RowFailed:
		l.Cause = string(dispatch.CauseFailed)
		l.Settled = &RowSettled{Status: store.Failed.String()}
	case !of.Missing && rep.State == store.RowAbsent:
		l.Cause = CauseUnknown
	case !rep.Leads:
		l.Cause = causeNoLeader
	default:
		l.Cause = causeNotRead
	}
}

// texts say what a cause means. %s is filled by text.
func causeText(cause string) string {
	return map[string]string{
		"in_flight":    "its request is being answered by the receiver",
		"queued":       "it is claimed; its request waits for a free sender",
		"rate_limited": "the rate limit of the sink allows the next request later",
		"claiming":     "the store is claiming it",
		"settling":     "the receiver answered; the outcome is being written into the table",
		"refused":      "the outbox table refuses its claim or its outcome",
		"blocked":      "a FAILED row in front of it blocks its group (on-failed: block)",
		"lane_paused":  "an operator paused its group",
		"route_paused": "an operator paused its route",
		"replaying":    "a replay holds its group",
		"behind":       "another row of its group goes first",
		"table_locked": "another session keeps the outbox table locked",
		"not_visible":  "the claim did not find the row yet, because its transaction is not visible or the row is locked",
		"held":         "another processor has claimed it",
		"backoff":      "its last attempt failed; it waits for the next one",
		"breaker_open": "the circuit breaker of its endpoint is open",
		"ready":        "it waits for a free sender",
		"spilled":      "it is spilled to the relay's tables and is reloaded in its turn",
		"delivered":    "it is delivered",
		"failed":       "it is FAILED",
		"stopping":     "the relay starts or stops and begins no request",
		"unwritten":    "the tables refuse so many outcomes that nothing is sent",
		causeUnmatched: "no route of the outbox matches it",
		CauseUnknown:   "neither the outbox table nor the relay has a row of this id",
		causeNotRead:   "it is unsettled in the table, and the leader has not read it",
		causeNoLeader:  "it is unsettled in the table; only the leader knows more",
		causeReset:     "it was delivered, and was set back in the table since",
		causeDiscarded: "it was FAILED, and is not in the table any more",
	}[cause]
}

// text describes the cause with its particulars.
func (l *RowLeg) text(rep *sluicebox.RowReport) string {
	parts := []string{causeText(l.Cause)}
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	switch l.Cause {
	case "behind":
		add("%d in front, the first is %s: %s", l.Ahead, l.First, causeText(l.FirstCause))
	case "blocked":
		add("the FAILED row is %s", l.First)
	case "breaker_open":
		add("endpoint %s, class %s", cmp.Or(l.Endpoint, "of the sink"), l.Class)
	case "delivered":
		if l.Settled != nil && l.Settled.At.IsZero() && rep.Leads {
			add("before the latest 10 000 rows of this leader")
		}
	case causeNotRead:
		parts = append(parts, notReadText(rep))
	case causeNoLeader:
		add("%s", cmp.Or(rep.Leader, "no relay answers"))
	case CauseUnknown:
		if rep.Stateless {
			parts[0] = "the relay does not have it, and its table keeps no state"
		}
	}
	if l.Reason != "" {
		add("reason: %s", l.Reason)
	}
	if l.Error != "" {
		add("latest failure: %s", l.Error)
	}
	if l.Spilled && l.Cause != "spilled" {
		add("the relay's tables have a copy")
	}
	return strings.Join(parts, "; ")
}

// notReadText says why the leader may not have read a row.
func notReadText(rep *sluicebox.RowReport) string {
	switch {
	case rep.Source.Paused:
		return "capture is paused because every buffer is full"
	case rep.Mode == sluicebox.ModePoll:
		return "a later poll reads it"
	case !rep.Source.Connected:
		return "the log is not connected"
	}
	return fmt.Sprintf("the log was read up to %s; if the row committed before, a sweep finds it", rep.Source.Position)
}

// remedy returns the command that helps, "" if none does.
func (l *RowLeg) remedy(rep *sluicebox.RowReport) string {
	lane := "--outbox " + shellQuote(l.Leg()) + " --kind " + shellQuote(l.Kind)
	if l.Group.Valid {
		lane += " --group " + shellQuote(l.Group.Name)
	} else {
		lane += " --no-group"
	}
	letters := "--outbox " + shellQuote(l.Outbox)
	if l.Route != "" {
		letters += " --route " + shellQuote(l.Route)
	}
	switch cause := cmp.Or(l.FirstCause, l.Cause); cause {
	case "lane_paused":
		return "sluicebox lanes resume " + lane
	case "route_paused":
		return "sluicebox routes resume " + letters
	case "blocked":
		return "sluicebox deadletters requeue " + shellQuote(l.First) + " " + letters + ", or sluicebox lanes skip " + lane + " --reason TEXT"
	case "failed":
		return "sluicebox deadletters requeue " + shellQuote(rep.ID) + " " + letters
	case "backoff", "breaker_open":
		return "repair the receiver; sluicebox lanes retry-now " + lane
	case "replaying":
		return "sluicebox replay list; replay pause or cancel"
	case "refused", "unwritten":
		return "change the trigger or constraint of the table; the relay retries within a minute"
	case "table_locked":
		return "end the transaction that locks the table"
	case causeUnmatched:
		return "add a route that matches it; sluicebox config test --row shows which do"
	case causeNoLeader:
		return "run sluicebox explain on the leader's host, or with --admin URL; start a relay if none runs"
	case causeReset:
		return "wait for the next sweep (checkpoint.sweep-interval)"
	}
	return ""
}

// shellQuote quotes a word for a shell if it must be.
func shellQuote(word string) string {
	const safe = "-_./:0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	plain := word != "" && strings.Trim(word, safe) == ""
	if plain && !strings.HasPrefix(word, "-") {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
