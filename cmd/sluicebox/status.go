package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/backoff"
)

const (
	// statusTimeout limits one status. Counts of FAILED rows have a shorter limit.
	statusTimeout = 15 * time.Second
	// defaultWatchInterval and minWatchInterval are intervals of --watch.
	defaultWatchInterval = 2 * time.Second
	minWatchInterval     = 100 * time.Millisecond
)

// statusCommand is `sluicebox status`.
type statusCommand struct {
	relayFlags
	Watch watchFlag `placeholder:"2s" help:"Repeat until Ctrl-C, every 2s or at the interval --watch=TIME."`
	JSON  bool      `name:"json" help:"Print JSON."`
}

// watchFlag is the interval of --watch, or 0 for a single status. Its value is optional.
type watchFlag time.Duration

// IsBool makes the value optional.
func (*watchFlag) IsBool() bool { return true }

// Decode reads the value, if there is one.
func (w *watchFlag) Decode(ctx *kong.DecodeContext) error {
	*w = watchFlag(defaultWatchInterval)
	if ctx.Scan.Peek().Type != kong.FlagValueToken {
		return nil
	}
	text := ctx.Scan.Pop().String()
	every, err := time.ParseDuration(text)
	if err != nil || every < minWatchInterval {
		return fmt.Errorf("invalid interval %q: want one such as 2s, at least %s", text, minWatchInterval)
	}
	*w = watchFlag(every)
	return nil
}

// Run shows the status of the relay.
func (c *statusCommand) Run(ctx context.Context, p *program) error {
	client, cfg, err := c.dialProcess(p)
	if err != nil {
		return err
	}
	defer client.Close()
	if cfg != nil && cfg.SourceNames() != nil {
		return c.showSources(ctx, p, client)
	}
	if c.Watch > 0 {
		return c.watch(ctx, p, client)
	}

	s, err := fetchStatus(ctx, client)
	if err != nil {
		return err
	}

	if err := c.show(p, s); err != nil {
		return err
	}
	if !s.Ready {
		return notReadyError(s)
	}

	return nil
}

// fetchStatus requests one status.
func fetchStatus(ctx context.Context, client *admin.Client) (*admin.RelayStatus, error) {
	short, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	s, err := client.Status(short, true)
	switch {
	case err == nil:
		return &s, nil
	case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		return nil, &commandError{code: exitFailed, problem: fmt.Sprintf("no response from the relay within %s", statusTimeout)}
	}
	return nil, relayFailure(err)
}

// showSources shows the sources of a process that has several.
func (c *statusCommand) showSources(ctx context.Context, p *program, client *admin.Client) error {
	if c.Watch > 0 {
		return usageError("--watch shows one source, and none is named", "add --source-name NAME")
	}
	short, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	list, err := client.Sources(short)
	if err != nil {
		return relayFailure(err)
	}
	err = p.printList(c.JSON, list, "", []string{"SOURCE", "STATE", "MODE", "WAITING", "OLDEST", "ROWS/S", "DETAIL"},
		tableRows(list.Sources, func(s *admin.SourceStatus) []string {
			state, oldest := "standby", "-"
			if s.IsLeader {
				state = "leader"
			}
			if !s.Ready {
				state = "not ready"
			}
			if s.Lag.Oldest != nil {
				oldest = ageText(*s.Lag.Oldest, time.Now())
			}
			return []string{s.Name, state, string(s.Mode), strconv.Itoa(s.Lag.Rows), oldest, rateText(s.Captured.Minute), oneLine(s.Detail)}
		}))
	if failing := slices.ContainsFunc(list.Sources, func(s admin.SourceStatus) bool { return !s.Ready }); err == nil && failing {
		return &commandError{code: exitFailed, problem: "a source is not ready", remedy: "sluicebox status --source-name NAME shows its checks"}
	}
	return err
}

func (c *statusCommand) show(p *program, s *admin.RelayStatus) error {
	if c.JSON {
		return p.json(s)
	}
	text := statusText(s, time.Now())
	if width := terminalWidth(p.stdout); width > 0 {
		text = cutLines(text, width)
	}
	_, err := io.WriteString(p.stdout, text)
	return err
}

// notReadyError names the failing checks.
func notReadyError(s *admin.RelayStatus) error {
	var failing []string
	for _, c := range s.Checks {
		if !c.OK {
			failing = append(failing, oneLine(c.Name+": "+c.Detail))
		}
	}
	return &commandError{code: exitFailed, problem: "the relay is not ready: " + strings.Join(failing, "; ")}
}

// watch shows the status repeatedly until the context ends. It keeps trying if the relay
// does not respond, because the relay may come back, and ends if the relay refuses the
// request.
func (c *statusCommand) watch(ctx context.Context, p *program, client *admin.Client) error {
	screen := newScreen(p.stdout)
	if c.JSON {
		screen = nil
	}

	for {
		s, err := fetchStatus(ctx, client)
		if ctx.Err() != nil {
			return nil
		}
		var fault *commandError
		switch {
		case err == nil && screen != nil:
			err = screen.draw(statusText(s, time.Now()))
		case err == nil && c.JSON:
			err = c.show(p, s)
		case err == nil:
			_, err = io.WriteString(p.stdout, statusText(s, time.Now())+"\n")
		case !errors.As(err, &fault) || fault.code != exitFailed:
			return err
		case screen != nil:
			err = screen.draw(time.Now().Format(time.TimeOnly) + "  " + fault.problem + "\n")
		default:
			p.printProblem(fault.problem, "")
			err = nil
		}
		if err != nil {
			return err
		}
		if backoff.Sleep(ctx, time.Duration(c.Watch)) != nil {
			return nil
		}
	}
}

// statusText formats a status for people, usually within 80 columns.
func statusText(s *admin.RelayStatus, now time.Time) string {
	var b bytes.Buffer
	line := func(label, format string, args ...any) {
		fmt.Fprintf(&b, "%-11s %s\n", label, fmt.Sprintf(format, args...))
	}

	line("relay", "%s, version %s, up %s, %s", quoteCell(s.Name), oneLine(s.Version), durationText(time.Duration(s.Uptime*float64(time.Second))), oneLine(s.Holder))
	line("state", "%s", stateText(s))
	for _, c := range s.Checks {
		if !c.OK {
			line("NOT READY", "%s: %s", oneLine(c.Name), oneLine(c.Detail))
		} else if c.Warning {
			line("WARNING", "%s: %s", oneLine(c.Name), oneLine(c.Detail))
		}
	}

	if s.Shadow != nil {
		b.WriteString(s.Shadow.Text())
		return b.String()
	}
	if s.Mode == "" {
		return b.String()
	}
	line("source", "%s", sourceText(s, now))
	if s.Source.RetainedBytes != nil && s.Source.RetainedLimitBytes != nil {
		line("retained", "%s of log, limit %s", sizeText(*s.Source.RetainedBytes), sizeText(*s.Source.RetainedLimitBytes))
	}

	line("claims", "%s, %s", s.Claims.Mode, oneLine(s.Claims.Reason))
	line("checkpoint", "%s", checkpointText(&s.Checkpoint, now))
	line("waiting", "%s", lagText(&s.Lag))
	line("captured", "%s rows/s in 10s, %s in 1m", rateText(s.Captured.TenSeconds), rateText(s.Captured.Minute))
	for i := range s.Failed {
		line("FAILED", "%s", failedText(&s.Failed[i], now))
	}

	if text := replaysText(&s.Replays); text != "" {
		line("replay", "%s", text)
	}
	b.WriteString("\n")
	_ = printTable(&b, sinkHeader(), tableRows(s.Sinks, sinkRow)) // a buffer never fails
	for i := range s.Sinks {
		sinkLines(&b, &s.Sinks[i], now)
	}

	if len(s.Routes) > 0 {
		b.WriteString("\n")
		_ = printTable(&b, []string{"OUTBOX", "ROUTE", "SINK", "NEED", "STATE", "WAITING", "SPILLED", "FAILED", "SINCE", "REASON"}, tableRows(s.Routes, statusRoute))
	}
	if len(s.Lanes) > 0 {
		fmt.Fprintf(&b, "\nheld or failing lanes: %d%s\n", s.LanesTotal, moreLanes(s))
		_ = printTable(&b, troubledHeader(), troubledRows(s, now))
	}
	return b.String()
}

// statusRoute describes a route in a status.
func statusRoute(r *admin.Route) []string {
	return []string{
		quoteCell(r.Outbox), routeCell(r.Route), sinkCell(r.Sink), r.Need, r.State, strconv.Itoa(r.Lag.Rows), strconv.Itoa(r.Spilled),
		failedCell(r), ageText(r.Since, time.Now()), oneLine(r.Reason),
	}
}

func moreLanes(s *admin.RelayStatus) string {
	if s.LanesTotal > len(s.Lanes) {
		return fmt.Sprintf(", the first %d shown (sluicebox lanes list)", len(s.Lanes))
	}
	return ""
}

// stateText describes leadership and readiness.
func stateText(s *admin.RelayStatus) string {
	ready := "ready"
	if !s.Ready {
		ready = "not ready"
	}
	switch {
	case s.Shadow != nil:
		return ready + ", watching another processor"
	case s.IsLeader:
		return fmt.Sprintf("%s, leading in epoch %d", ready, s.Epoch)
	case s.Leader != "":
		return fmt.Sprintf("%s, standing by; %s leads", ready, oneLine(s.Leader))
	}
	return ready + ", not leading"
}

func sourceText(s *admin.RelayStatus, now time.Time) string {
	text := oneLine(s.SourceDetail)
	if !s.Source.Connected {
		text = "not connected; " + text
	}

	if s.Source.Position != "" {
		text += ", at " + oneLine(string(s.Source.Position))
	}
	if s.Source.LastReceivedAt != nil {
		text += fmt.Sprintf(", last message %s ago", ageText(*s.Source.LastReceivedAt, now))
	}

	if s.Source.Paused {
		text += "; PAUSED: sink buffers full"
	}
	return text
}

func checkpointText(c *sluicebox.CheckpointStatus, now time.Time) string {
	if c.Position == "" {
		return "none yet: rows of the initial snapshot are not settled"
	}
	text := "at " + oneLine(string(c.Position))
	if c.SavedAt != nil {
		text += fmt.Sprintf(", saved %s ago", ageText(*c.SavedAt, now))
	}
	return text
}

func lagText(l *admin.Lag) string {
	text := rowsText(l.Rows)
	if l.Seconds != nil {
		text += fmt.Sprintf(", the oldest for %s", lagDurationText(*l.Seconds))
	}
	return text
}

// lagDurationText formats a duration in seconds, with more precision for short ones.
func lagDurationText(seconds float64) string {
	if seconds < 10 {
		return fmt.Sprintf("%.2fs", seconds)
	}
	return durationText(time.Duration(seconds * float64(time.Second)))
}

func failedText(f *admin.FailedRows, now time.Time) string {
	if f.Rows == nil {
		return fmt.Sprintf("%s: not counted: %s", quoteCell(f.Outbox), oneLine(f.Error))
	}
	return fmt.Sprintf("%s in %s, counted %s ago", rowsText(*f.Rows), quoteCell(f.Outbox), ageText(f.At, now))
}

// replaysText describes the active replay and the number of others, or returns "" if
// there is none.
func replaysText(r *admin.ReplayStatus) string {
	var parts, others []string
	if job := r.Current; job != nil {
		parts = append(parts, quoteCell(job.ID)+" "+replayText(job))
		if _, waits := splitReplayNote(job.Reason); waits != "" {
			parts = append(parts, "waits for "+oneLine(waits))
		}
	}

	if r.Waiting > 0 {
		others = append(others, fmt.Sprintf("%d more waiting", r.Waiting))
	}
	if r.Paused > 0 {
		others = append(others, fmt.Sprintf("%d paused", r.Paused))
	}

	if len(others) > 0 {
		parts = append(parts, strings.Join(others, ", "))
	}
	return strings.Join(parts, "; ")
}

// replayText describes the phase and the progress of a replay.
func replayText(job *admin.Replay) string {
	text := oneLine(job.State)
	switch store.JobState(job.State) {
	case store.JobWaiting:
		return text
	case store.JobCopying:
		text += ", " + rowCountText(job.Rows) + " so far"
		if job.Sent == 0 {
			return text
		}
		text += ", " + groupDigits(job.Sent) + " sent"
	default:
		text += fmt.Sprintf(", %s of %s sent", groupDigits(job.Sent), rowCountText(job.Rows))
	}

	if job.Skipped > 0 {
		text += ", " + groupDigits(job.Skipped) + " skipped"
	}
	if job.Refused > 0 {
		text += ", " + groupDigits(job.Refused) + " refused"
	}

	return text
}

func sinkHeader() []string {
	return []string{"SINK", "WAITING", "SPILLED", "IN-FLIGHT", "DELIVERED/S", "FAILED/S", "RETRIED/S"}
}

func sinkRow(s *admin.SinkStatus) []string {
	return []string{
		sinkCell(s.Name), strconv.Itoa(s.Waiting), strconv.Itoa(s.Spilled), strconv.Itoa(s.InFlight), rateText(s.Delivered.TenSeconds),
		rateText(s.Failed.TenSeconds), rateText(s.Retried.TenSeconds),
	}
}

// sinkLines prints the lanes of a sink by state, and its open circuit breakers.
func sinkLines(b *bytes.Buffer, s *admin.SinkStatus, now time.Time) {
	var lanes []string
	for _, state := range slices.Sorted(maps.Keys(s.Lanes)) {
		if n := s.Lanes[state]; n > 0 {
			lanes = append(lanes, fmt.Sprintf("%d %s", n, laneStateText(state, waits(*s))))
		}
	}

	if len(lanes) > 0 {
		fmt.Fprintf(b, "%s: lanes %s\n", quoteCell(s.Name), strings.Join(lanes, ", "))
	}
	for _, e := range s.OpenBreakers {
		idle := ""
		if e.Idle {
			idle = " (no rows waiting)"
		}
		at := "" // a sink with a single endpoint does not name it
		if e.Endpoint != "" {
			at = " at " + oneLine(e.Endpoint)
		}
		fmt.Fprintf(b, "%s: circuit breaker open for %s%s, %s%s: %s\n", quoteCell(s.Name), ageText(e.Since, now), idle, oneLine(e.Class), at, oneLine(e.Error))
	}
}

// laneStateText returns a lane's state for people. A ready lane waits while its sink
// receives only probes.
func laneStateText(state string, allOpen bool) string {
	if state == "ready" && allOpen {
		return "waiting for the sink"
	}
	return oneLine(state)
}

// allBreakersOpen reports whether every sink has an open breaker, because a lane does not
// name its sink.
func allBreakersOpen(sinks []admin.SinkStatus) bool {
	return len(sinks) > 0 && !slices.ContainsFunc(sinks, func(s admin.SinkStatus) bool { return !waits(s) })
}

// waits reports whether ready lanes of a sink wait for an open breaker. One of an endpoint that
// rows name concerns its lanes only.
func waits(s admin.SinkStatus) bool {
	return slices.ContainsFunc(s.OpenBreakers, func(b admin.OpenBreaker) bool { return !b.Named })
}

func troubledHeader() []string {
	return []string{"OUTBOX", "KIND", "GROUP", "STATE", "ROWS", "SINCE", "REASON"}
}

func troubledRows(s *admin.RelayStatus, now time.Time) [][]string {
	allOpen := allBreakersOpen(s.Sinks)
	return tableRows(s.Lanes, func(l *dispatch.LaneInfo) []string {
		return []string{quoteCell(l.Outbox), quoteCell(l.Kind), groupCell(l.Group), laneStateText(l.State, allOpen), strconv.Itoa(l.Rows + l.Spilled), ageText(l.Since, now), oneLine(laneReason(l))}
	})
}

// rateText formats a rate with useful precision.
func rateText(rate float64) string {
	if rate > 0 && rate < 100 {
		return strconv.FormatFloat(rate, 'f', 1, 64)
	}
	return strconv.FormatFloat(rate, 'f', 0, 64)
}

// sizeText formats a number of bytes in a suitable unit.
func sizeText(bytes int64) string {
	size, unit := float64(bytes), 0
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for size >= 1024 && unit < len(units)-1 {
		size, unit = size/1024, unit+1
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", bytes)
	}
	return fmt.Sprintf("%.1f %s", size, units[unit])
}
