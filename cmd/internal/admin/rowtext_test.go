package admin_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

func laneOfRow() store.LaneKey {
	return store.LaneKey{Outbox: "orders", Kind: "EVENT", Group: store.Group{Name: "o-17", Valid: true}}
}

// waitingRow returns the report of a leader whose memory has a row that waits.
func waitingRow(why dispatch.Why) *sluicebox.RowReport {
	info := dispatch.RowInfo{Why: why, Lane: dispatch.LaneName{LaneKey: laneOfRow()}}
	return rowReport(sluicebox.LegReport{RouteName: sluicebox.RouteName{Outbox: "orders"}, Sink: "hooks", Row: &info})
}

// rowOfItsOwn returns the report of a failing row without a group.
func rowOfItsOwn() *sluicebox.RowReport {
	rep := waitingRow(dispatch.Why{Cause: "backoff"})
	lane := &rep.Legs[0].Row.Lane
	lane.Group, lane.RowID = store.Group{}, "R1"
	return rep
}

func rowReport(leg sluicebox.LegReport) *sluicebox.RowReport {
	return &sluicebox.RowReport{Ref: store.Ref{Outbox: "orders", ID: "R1"}, Leads: true, Leader: "leading, epoch 3", Legs: []sluicebox.LegReport{leg},
		Source: sluicebox.SourceStatus{Connected: true, Position: "0/16B3748"}}
}

// ofMemory returns the report of a row that the leader's memory does not have.
func ofMemory(change func(rep *sluicebox.RowReport, leg *sluicebox.LegReport)) *sluicebox.RowReport {
	rep := rowReport(sluicebox.LegReport{RouteName: sluicebox.RouteName{Outbox: "orders"}})
	change(rep, &rep.Legs[0])
	return rep
}

// Each cause of a waiting row has a sentence, and says what to do.
func TestRowTextNamesTheWayOut(t *testing.T) {
	lane := "--outbox orders --kind EVENT --group o-17"
	for _, c := range []struct {
		name     string
		row      *sluicebox.RowReport
		cause    string
		says, do string
		commands []string
	}{
		{"backoff", waitingRow(dispatch.Why{Cause: "backoff", Error: "503"}), "backoff", "tries again by itself", "repair the receiver", []string{"sluicebox lanes retry-now " + lane}},
		{"behind", waitingRow(dispatch.Why{Cause: "behind", FirstCause: "lane_paused", First: "R0", Ahead: 2}), "behind", "2 of them in memory; the first is R0: an operator paused its group", "resume the group", []string{"sluicebox lanes resume " + lane}},
		{"blocked", waitingRow(dispatch.Why{Cause: "blocked", First: "R0"}), "blocked", "the FAILED row is R0", "let the group pass it", []string{"sluicebox deadletters requeue R0 --outbox orders", "sluicebox lanes skip " + lane + " --reason TEXT"}},
		{"a wrong token", waitingRow(dispatch.Why{Cause: "breaker_open", Class: "misconfigured", Endpoint: "hooks.example"}), "breaker_open", "sends only probes (open circuit breaker); endpoint hooks.example; class misconfigured", "correct the URL, the token", []string{"sluicebox lanes retry-now " + lane}},
		{"a receiver that is down", waitingRow(dispatch.Why{Cause: "behind", First: "R0", FirstCause: "breaker_open", Class: "unavailable"}), "behind", "class unavailable", "repair the receiver", []string{"sluicebox lanes retry-now " + lane}},
		{"a paused outbox", waitingRow(dispatch.Why{Cause: "route_paused"}), "route_paused", "paused the outbox", "resume it", []string{"sluicebox routes resume --outbox orders"}},
		{"a replay", waitingRow(dispatch.Why{Cause: "replaying", Reason: "j1, j2"}), "replaying", "a replay sends", "pause or cancel", []string{"sluicebox replay list", "sluicebox replay pause j1"}},
		{"a row with a lane of its own", rowOfItsOwn(), "backoff", "", "", []string{"sluicebox lanes retry-now --outbox orders --kind EVENT --no-group --row R1"}},
		{"a locked table", waitingRow(dispatch.Why{Cause: "table_locked"}), "table_locked", "another session", "end the transaction", nil},
		{"not read", ofMemory(func(*sluicebox.RowReport, *sluicebox.LegReport) {}), "not_captured", "read the log up to 0/16B3748", "the next sweep", nil},
		{"no source", ofMemory(func(rep *sluicebox.RowReport, _ *sluicebox.LegReport) { rep.Source.Connected = false }), "not_captured", "not connected", "repair the connection", []string{"sluicebox doctor"}},
		{"full buffers", ofMemory(func(rep *sluicebox.RowReport, _ *sluicebox.LegReport) { rep.Source.Paused = true }), "not_captured", "every buffer is full", "repair what", []string{"sluicebox lanes list"}},
		{"no leader", ofMemory(func(rep *sluicebox.RowReport, _ *sluicebox.LegReport) { rep.Leads, rep.Leader = false, "" }), "no_leader", "no relay answers", "ask the leader", []string{"sluicebox explain R1 --outbox orders --admin URL"}},
		{"unknown", ofMemory(func(rep *sluicebox.RowReport, _ *sluicebox.LegReport) { rep.State = store.RowAbsent }), "unknown", "neither the table", "check the id", nil},
		{"unknown without a state", ofMemory(func(rep *sluicebox.RowReport, _ *sluicebox.LegReport) { rep.Stateless = true }), "unknown", "keeps no state", "check the id", nil},
		{"too many spilled rows", ofMemory(func(_ *sluicebox.RowReport, leg *sluicebox.LegReport) { leg.Unsearched = true }), "unsearched", "the others were not searched", "ask again", []string{"sluicebox lanes list --outbox orders"}},
		{"too many, without a state", ofMemory(func(rep *sluicebox.RowReport, leg *sluicebox.LegReport) { rep.Stateless, leg.Unsearched = true, true }), "unsearched", "none of the first 100 000", "ask again", []string{"sluicebox lanes list --outbox orders"}},
		{"FAILED", ofMemory(func(_ *sluicebox.RowReport, leg *sluicebox.LegReport) { leg.Failed = &store.DeadLetter{} }), "failed", "does not send it again", "or delete it", []string{"sluicebox deadletters requeue R1 --outbox orders", "sluicebox deadletters discard R1 --outbox orders"}},
		{"FAILED and blocking", ofMemory(func(_ *sluicebox.RowReport, leg *sluicebox.LegReport) {
			leg.Failed, leg.Block = &store.DeadLetter{Group: laneOfRow().Group}, &store.Hold{Lane: laneOfRow()}
		}), "failed", "holds back the rows behind it", "let its group pass it", []string{"sluicebox deadletters requeue R1 --outbox orders", "sluicebox lanes skip " + lane + " --reason TEXT"}},
	} {
		leg := admin.RowOf(c.row, time.Now()).Legs[0]
		if leg.Cause != c.cause || !strings.Contains(leg.Text, c.says) || !strings.Contains(leg.Remedy, c.do) || !slices.Equal(leg.Commands, c.commands) {
			t.Errorf("%s: got %s: %s\n%s\n%q\nwant %s: …%s…\n…%s…\n%q", c.name, leg.Cause, leg.Text, leg.Remedy, leg.Commands, c.cause, c.says, c.do, c.commands)
		}
	}
}

// No cause of the dispatcher is without a sentence, and none that lasts without a remedy.
func TestEachCauseHasAText(t *testing.T) {
	short := []string{"claiming", "settling"}
	for _, cause := range strings.Fields("in_flight queued rate_limited claiming settling refused blocked lane_paused route_paused replaying table_locked " +
		"not_visible held backoff breaker_open ready spilled stopping unwritten") {
		leg := admin.RowOf(waitingRow(dispatch.Why{Cause: dispatch.Cause(cause)}), time.Now()).Legs[0]
		if leg.Text == "" || strings.HasPrefix(leg.Text, ";") || (leg.Remedy == "") != slices.Contains(short, cause) {
			t.Errorf("%s: %q, do: %q", cause, leg.Text, leg.Remedy)
		}
	}
}
