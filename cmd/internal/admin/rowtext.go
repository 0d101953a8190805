package admin

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/sluicebox/sluicebox"
)

// causeText says what a cause means.
func causeText(cause string) string {
	return map[string]string{
		"in_flight":    "it was sent, and the receiver has not answered yet",
		"queued":       "it is claimed and waits for a free sender",
		"rate_limited": "the rate limit of its sink holds it back",
		"claiming":     "the relay is claiming it in the table",
		"settling":     "the receiver answered, and the relay is writing the outcome into the table",
		"refused":      "the table refuses what the relay writes to it",
		"blocked":      "a FAILED row of its group holds back the rows behind it (on-failed: block)",
		"lane_paused":  "an operator paused its group",
		"route_paused": "an operator paused its route",
		"replaying":    "a replay sends earlier rows of its group again",
		"behind":       "earlier rows of its group go first",
		"table_locked": "another session keeps the table locked",
		"not_visible":  "its transaction is not visible yet, or another session keeps the row locked",
		"held":         "another processor has claimed it",
		"backoff":      "the latest attempt failed, and the relay tries again by itself",
		"breaker_open": "the receiver fails for all rows, so the relay sends only probes (open circuit breaker)",
		"ready":        "it is the next of its group and waits for a free sender",
		"spilled":      "it is spilled to the relay's tables and is reloaded in its turn",
		"delivered":    "the receiver accepted it",
		"failed":       "it is FAILED, and the relay does not send it again by itself",
		"stopping":     "the relay is starting or stopping and sends nothing",
		"unwritten":    "the tables refuse so many outcomes that the relay sends nothing",
		causeUnmatched: "no route of the outbox matches it",
		CauseUnknown:   "neither the table nor the relay has a row of this id",
		causeNotRead:   "it is not delivered, and the leader has not read it",
		causeNoLeader:  "it is not delivered, and only the leader knows why",
		causeReset:     "it was delivered, and another program set it back in the table since",
		causeDiscarded: "it was FAILED, and is not in the table any more",
		causeSearch:    "it may be among the spilled rows: it is none of the first 100 000, and the others were not searched",
	}[cause]
}

// text describes the cause with its particulars. Reason and Error stand beside it.
func (l *RowLeg) text(rep *sluicebox.RowReport) string {
	parts := []string{causeText(l.Cause)}
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	switch l.Cause {
	case "behind":
		add("%d of them in memory", l.Ahead)
		add("the first is %s: %s", l.First, causeText(l.FirstCause))
	case "blocked":
		add("the FAILED row is %s", l.First)
	case "failed":
		if l.Blocks {
			add("it holds back the rows behind it (on-failed: block)")
		}
	case "delivered":
		if l.Settled != nil && l.Settled.At.IsZero() && rep.Leads {
			add("this leader remembers the times of its latest 10 000 rows only")
		}
	case "route_paused":
		if l.Route == "" {
			parts[0] = "an operator paused the outbox"
		}
	case causeNotRead:
		add("%s", notReadText(rep))
	case causeNoLeader:
		if rep.Leader == "" {
			add("no relay answers")
		}
	case CauseUnknown:
		if rep.Stateless {
			parts[0] = "the relay does not have it, and the table keeps no state that tells whether it was delivered"
		}
	}
	if l.Cause == "breaker_open" || l.FirstCause == "breaker_open" {
		if l.Endpoint != "" {
			add("endpoint %s", l.Endpoint)
		}
		add("class %s", l.Class)
	}
	if l.Spilled && l.Cause != "spilled" {
		add("it is spilled to the relay's tables meanwhile")
	}
	return strings.Join(parts, "; ")
}

// notReadText says why the leader may not have read a row.
func notReadText(rep *sluicebox.RowReport) string {
	switch {
	case rep.Source.Paused:
		return "capture is paused because every buffer is full"
	case rep.Mode == sluicebox.ModePoll:
		return "it reads the table by polls"
	case !rep.Source.Connected:
		return "it is not connected to the database's log"
	}
	return "it has read the log up to " + string(rep.Source.Position)
}

// remedy returns an instruction and its commands, "" if there is nothing to do. It is about the first row
// of the group, because the rows behind it wait for that row.
func (l *RowLeg) remedy(rep *sluicebox.RowReport) (text string, commands []string) {
	lane, letters := l.laneFlags(), l.outboxFlags()
	switch cmp.Or(l.FirstCause, l.Cause) {
	case "backoff":
		return "repair the receiver; to try again at once:", []string{"sluicebox lanes retry-now " + lane}
	case "breaker_open":
		if l.Class == "misconfigured" {
			return "correct the URL, the token or the proxy of the sink, or the receiver; to probe it at once:", []string{"sluicebox lanes retry-now " + lane}
		}
		return "repair the receiver; to probe it at once:", []string{"sluicebox lanes retry-now " + lane}
	case "blocked":
		return "remove the cause, then send the FAILED row again, or let the group pass it:",
			[]string{"sluicebox deadletters requeue " + shellQuote(l.First) + " " + letters, "sluicebox lanes skip " + lane + " --reason TEXT"}
	case "failed":
		commands = []string{"sluicebox deadletters requeue " + shellQuote(rep.ID) + " " + letters}
		if l.Blocks {
			return "remove the cause, then send it again, or let its group pass it:", append(commands, "sluicebox lanes skip "+lane+" --reason TEXT")
		}
		return "remove the cause, then send it again, or delete it:", append(commands, "sluicebox deadletters discard "+shellQuote(rep.ID)+" "+letters)
	case "lane_paused":
		return "resume the group once it may go on:", []string{"sluicebox lanes resume " + lane}
	case "route_paused":
		return "resume it once it may go on:", []string{"sluicebox routes resume " + letters}
	case "replaying":
		job, _, _ := strings.Cut(l.Reason, ", ")
		return "wait for the replay, or pause or cancel it:", []string{"sluicebox replay list", "sluicebox replay pause " + shellQuote(job)}
	}
	return l.wait(rep)
}

// wait is remedy for causes that no action of the relay's ends.
func (l *RowLeg) wait(rep *sluicebox.RowReport) (text string, commands []string) {
	switch cmp.Or(l.FirstCause, l.Cause) {
	case "in_flight":
		return "wait: after dispatch.request-timeout the attempt ends, and the relay tries again", nil
	case "queued", "ready":
		return "wait; if it lasts, all senders are busy: see dispatch.max-concurrent-groups", nil
	case "rate_limited":
		return "wait, or raise dispatch.rate-limit", nil
	case "stopping":
		return "wait: a relay that starts goes on by itself, after dispatch.takeover-wait if that is set", nil
	case "spilled":
		return "wait: the rows before it are sent first", nil
	case "refused":
		return "change the trigger or constraint of the table; the relay writes it within a minute", nil
	case "unwritten":
		return "change the trigger or constraint of the table; to see the refused rows:", []string{"sluicebox status"}
	case "table_locked":
		return "end the transaction that locks the table; the relay goes on by itself", nil
	case "not_visible":
		return "wait for the transaction, or end it if it hangs; the relay looks again by itself", nil
	case "held":
		return "wait for that processor, or stop it; dispatch.takeover says when the relay takes the row", nil
	case causeUnmatched:
		return "add a route that matches it; to see which routes match a row:", []string{"sluicebox config test --outbox " + shellQuote(l.Outbox) + " --row JSON"}
	case causeReset:
		return "wait: the next sweep sends it again (checkpoint.sweep-interval)", nil
	case causeSearch:
		return "ask again when fewer rows are spilled; to see what they wait for:", []string{"sluicebox lanes list --outbox " + shellQuote(l.Outbox)}
	case causeNoLeader:
		return "ask the leader, or start a relay if none runs:", []string{"sluicebox explain " + shellQuote(rep.ID) + " --outbox " + shellQuote(l.Outbox) + " --admin URL"}
	case CauseUnknown:
		return "check the id and the outbox; an uncommitted row is not seen, and a delivered one may be deleted", nil
	case causeNotRead:
		return waitUnread(rep)
	}
	return "", nil
}

// waitUnread is wait for a row that the source has not read.
func waitUnread(rep *sluicebox.RowReport) (text string, commands []string) {
	switch {
	case rep.Source.Paused:
		return "repair what the waiting rows wait for:", []string{"sluicebox lanes list"}
	case rep.Mode == sluicebox.ModePoll:
		return "wait for the next poll (source.poll-interval)", nil
	case !rep.Source.Connected:
		return "repair the connection; to see what is wrong:", []string{"sluicebox doctor"}
	}
	return "wait: if the log is past it, the next sweep reads it (checkpoint.sweep-interval)", nil
}

// laneFlags name the row's lane in a command.
func (l *RowLeg) laneFlags() string {
	flags := "--outbox " + shellQuote(l.Leg())
	if l.Kind != "" {
		flags += " --kind " + shellQuote(l.Kind)
	}
	if l.Group.Valid {
		return flags + " --group " + shellQuote(l.Group.Name)
	}
	flags += " --no-group"
	if l.LaneRow != "" {
		flags += " --row " + shellQuote(l.LaneRow)
	}
	return flags
}

// outboxFlags name the row's outbox and route in a command.
func (l *RowLeg) outboxFlags() string {
	flags := "--outbox " + shellQuote(l.Outbox)
	if l.Route != "" {
		flags += " --route " + shellQuote(l.Route)
	}
	return flags
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
