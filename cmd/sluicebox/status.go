package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
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

// Help is shown under `sluicebox status --help`.
func (*statusCommand) Help() string {
	return `Of a process with several sources it shows a line for each, the worst first. With --source-name it
shows one of them in full.

Exit codes: 0 ready; 1 not ready, or a source is not ready, or the process does not answer.`
}

// Run shows the status of the relay, or of all sources of the process.
func (c *statusCommand) Run(ctx context.Context, p *program) error {
	client, cfg, err := c.dialProcess(p)
	if err != nil {
		return err
	}
	defer client.Close()
	fetch := fetchStatus
	switch {
	case cfg != nil && (cfg.SourceNames() != nil || cfg.Settings.Scale != nil && c.SourceName == ""):
		fetch = fetchSources
	case cfg == nil && c.SourceName == "":
		fetch = fetchAny
	}
	if c.Watch > 0 {
		return c.watch(ctx, p, client, fetch)
	}
	s, err := fetch(ctx, client)
	if err != nil {
		return err
	}
	if err := c.show(p, s); err != nil {
		return err
	}
	return s.failure()
}

// shownStatus is the status of a relay, or of several.
type shownStatus interface {
	// text is for people, usually within 80 columns.
	text(now time.Time) string

	// failure is an error if something is not ready.
	failure() error
}

// fetch requests a status once.
type fetch = func(context.Context, *admin.Client) (shownStatus, error)

// relayStatus is the status of one relay.
type relayStatus struct{ *admin.RelayStatus }

// MarshalJSON implements json.Marshaler.
func (s relayStatus) MarshalJSON() ([]byte, error) { return json.Marshal(s.RelayStatus) }

func (s relayStatus) text(now time.Time) string { return statusText(s.RelayStatus, now) }

func (s relayStatus) failure() error {
	if s.Ready {
		return nil
	}
	return notReadyError(s.RelayStatus)
}

// fetchStatus requests the status of one relay.
func fetchStatus(ctx context.Context, client *admin.Client) (shownStatus, error) {
	return fetchWithin(ctx, func(ctx context.Context) (shownStatus, error) {
		s, err := client.Status(ctx, true)
		return relayStatus{&s}, err
	})
}

// fetchSources requests the sources of a process.
func fetchSources(ctx context.Context, client *admin.Client) (shownStatus, error) {
	return fetchWithin(ctx, func(ctx context.Context) (shownStatus, error) {
		list, err := client.Sources(ctx)
		return sourceList{list}, err
	})
}

// fetchAny requests the sources of a process, or the status of its relay if it has one.
func fetchAny(ctx context.Context, client *admin.Client) (shownStatus, error) {
	s, err := fetchSources(ctx, client)
	var refused *admin.APIError
	if errors.As(err, &refused) && refused.Status == http.StatusNotFound {
		return fetchStatus(ctx, client)
	}
	return s, err
}

// fetchWithin limits a request.
func fetchWithin(ctx context.Context, request func(context.Context) (shownStatus, error)) (shownStatus, error) {
	short, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	s, err := request(short)
	switch {
	case err == nil:
		return s, nil
	case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		return nil, &commandError{code: exitFailed, problem: fmt.Sprintf("no response from the relay within %s", statusTimeout)}
	}
	return nil, relayFailure(err)
}

// sourceList are the sources of a process.
type sourceList struct{ admin.SourceList }

// state returns the state of a source for people.
func sourceState(s *admin.SourceStatus) string {
	switch {
	case !s.Ready:
		return "not ready"
	case s.IsLeader:
		return "leader"
	}
	return "standby"
}

// worstFirst returns the sources that are not ready, then the others, those whose rows have waited longest
// first.
func (l sourceList) worstFirst() []admin.SourceStatus {
	all := slices.Clone(l.Sources)
	oldest := func(s *admin.SourceStatus) int64 {
		if s.Lag.Oldest == nil {
			return math.MaxInt64
		}
		return s.Lag.Oldest.UnixNano()
	}
	slices.SortStableFunc(all, func(a, b admin.SourceStatus) int {
		switch {
		case a.Ready != b.Ready && b.Ready:
			return -1
		case a.Ready != b.Ready:
			return 1
		}
		return cmp.Or(cmp.Compare(oldest(&a), oldest(&b)), cmp.Compare(b.Lag.Rows, a.Lag.Rows))
	})
	return all
}

func (l sourceList) text(now time.Time) string {
	var b bytes.Buffer
	b.WriteString(l.summary(now) + "\n\n")
	header := []string{"SOURCE", "STATE", "MODE", "WAITING", "OLDEST", "ROWS/S", "DETAIL"}
	_ = printTable(&b, header, tableRows(l.worstFirst(), func(s *admin.SourceStatus) []string {
		oldest := "-"
		if s.Lag.Oldest != nil {
			oldest = ageText(*s.Lag.Oldest, now)
		}
		return []string{s.Name, sourceState(s), string(s.Mode), strconv.Itoa(s.Lag.Rows), oldest, rateText(s.Captured.Minute), oneLine(s.Detail)}
	})) // a buffer never fails
	return b.String()
}

// summary describes all sources in a line.
func (l sourceList) summary(now time.Time) string {
	states, sum, rate := map[string]int{}, admin.Lag{}, 0.0
	for i := range l.Sources {
		s := &l.Sources[i]
		states[sourceState(s)]++
		sum.Rows += s.Lag.Rows
		rate += s.Captured.Minute
		if at := s.Lag.Oldest; at != nil && (sum.Oldest == nil || at.Before(*sum.Oldest)) {
			sum.Oldest = at
		}
	}
	text := fmt.Sprintf("%d sources in %s: %d led here, %d standing by, %d not ready; %s waiting", len(l.Sources), oneLine(l.Process),
		states["leader"], states["standby"], states["not ready"], rowsText(sum.Rows))
	if sum.Oldest != nil {
		text += ", the oldest for " + ageText(*sum.Oldest, now)
	}
	return text + fmt.Sprintf("; %s rows/s", rateText(rate))
}

func (l sourceList) failure() error {
	failing, first := 0, ""
	for i := range l.Sources {
		if s := &l.Sources[i]; !s.Ready {
			if failing++; first == "" && !s.Role {
				first = s.Name
			}
		}
	}
	if failing == 0 {
		return nil
	}
	err := &commandError{code: exitFailed, problem: fmt.Sprintf("%d of %d sources are not ready", failing, len(l.Sources))}
	if first != "" { // roles have no checks
		err.remedy = "sluicebox status --source-name " + first + " shows its checks"
	}
	return err
}

func (c *statusCommand) show(p *program, s shownStatus) error {
	if c.JSON {
		return p.json(s)
	}
	text := s.text(time.Now())
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
func (c *statusCommand) watch(ctx context.Context, p *program, client *admin.Client, fetch fetch) error {
	screen := newScreen(p.stdout)
	if c.JSON {
		screen = nil
	}

	for {
		s, err := fetch(ctx, client)
		if ctx.Err() != nil {
			return nil
		}
		var fault *commandError
		switch {
		case err == nil && screen != nil:
			err = screen.draw(s.text(time.Now()))
		case err == nil && c.JSON:
			err = c.show(p, s)
		case err == nil:
			_, err = io.WriteString(p.stdout, s.text(time.Now())+"\n")
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
