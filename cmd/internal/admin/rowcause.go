package admin

import (
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
	causeSearch    = "unsearched"   // too many rows are spilled to tell whether it is one of them
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
	leg := RowLeg{RouteName: of.RouteName, Sink: of.Sink, Need: NeedRequired, Attempts: []RowAttempt{}, Spilled: of.Spilled != nil, Unsearched: of.Unsearched, Blocks: of.Block != nil}
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
		if of.Block != nil { // the lane may have another kind than the row
			leg.Kind = of.Block.Lane.Kind
		}
	case of.Row != nil:
		leg.checkAgainst(rep, now)
	default:
		leg.causeWithoutMemory(rep, of)
	}
	if of.Route == route.Unmatched && leg.Cause != string(dispatch.CauseDelivered) {
		leg.Cause = causeUnmatched
	}
	leg.Text = leg.text(rep)
	leg.Remedy, leg.Commands = leg.remedy(rep)
	return leg
}

// isMoving reports whether the leader has the row in a lane, so that a FAILED record is older.
func (l *RowLeg) isMoving() bool { return l.Cause != "" && l.Settled == nil }

// takeInfo copies the leader's knowledge of a row.
func (l *RowLeg) takeInfo(in *dispatch.RowInfo) {
	l.Cause, l.Kind, l.Group, l.LaneRow = string(in.Cause), in.Lane.Kind, in.Lane.Group, in.Lane.RowID
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
	case !rep.Stateless && !of.Missing && rep.State == store.RowCompleted:
		l.Cause = string(dispatch.CauseDelivered)
		l.Settled = &RowSettled{Status: store.Completed.String()}
	case !rep.Stateless && !of.Missing && rep.State == store.RowFailed:
		l.Cause = string(dispatch.CauseFailed)
		l.Settled = &RowSettled{Status: store.Failed.String()}
	case of.Unsearched:
		l.Cause = causeSearch
	case !of.Missing && (rep.Stateless || rep.State == store.RowAbsent):
		l.Cause = CauseUnknown
	case !rep.Leads:
		l.Cause = causeNoLeader
	default:
		l.Cause = causeNotRead
	}
}
