package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// Result is the result of a benchmark, in the format of --json.
type Result struct {
	Scenario string    `json:"scenario"`
	What     string    `json:"what"`
	Settings Settings  `json:"settings"`
	Machine  Machine   `json:"machine"`
	Took     string    `json:"took"`
	Measures []Measure `json:"measures"`
}

// Settings are the options that a result depends on.
type Settings struct {
	Rate      int    `json:"rate,omitempty"`
	Rows      int    `json:"rows,omitempty"`
	Groups    int    `json:"groups"`
	Size      int    `json:"size"`
	Clients   int    `json:"clients"`
	Duration  string `json:"duration,omitempty"`
	Repeat    int    `json:"repeat"`
	Delay     string `json:"delay,omitempty"`
	Senders   int    `json:"senders,omitempty"`
	Batch     int    `json:"batch,omitempty"`
	Layout    string `json:"layout"`
	Ungrouped bool   `json:"ungrouped,omitempty"`
	Claims    string `json:"claims,omitempty"`
	Peer      string `json:"peer,omitempty"`
	// Compare are the configurations of the sides A and B.
	Compare *Files `json:"compare,omitempty"`
}

// Machine describes the machine and the server of a measurement.
type Machine struct {
	Cores     int               `json:"cores"`
	Processor string            `json:"processor,omitempty"`
	System    string            `json:"system"`
	Go        string            `json:"go"`
	Sluicebox string            `json:"sluicebox"`
	Server    string            `json:"server"`
	Settings  map[string]string `json:"server_settings"`
	// Stolen is the percentage of processor time that the hypervisor gave to other virtual
	// machines during the measurement, on Linux. Above a few percent the figures mean
	// little.
	Stolen float64 `json:"stolen_percent"`
}

// Measure is one figure of a side in each round, compared with that of another side.
type Measure struct {
	Name   string    `json:"name"`
	Unit   string    `json:"unit,omitempty"`
	Side   string    `json:"side"`
	Turns  []float64 `json:"turns"`
	Median float64   `json:"median"`
	// Against is the other side, if there is one, and Ratio the median of the rounds' ratios
	// to it.
	Against       string    `json:"against,omitempty"`
	AgainstTurns  []float64 `json:"against_turns,omitempty"`
	AgainstMedian float64   `json:"against_median,omitempty"`
	Ratio         float64   `json:"ratio,omitempty"`
	// Goal is the limit for the ratio, or for the median if there is no ratio.
	Goal    string `json:"goal,omitempty"`
	Reached *bool  `json:"reached,omitempty"`
	// Note is the reason why there is no figure.
	Note string `json:"note,omitempty"`
}

// result summarizes the measurements.
func (b *bench) result(measured [][]figures, took time.Duration, stolen float64) *Result {
	o, is := &b.opts, b.server.serverInfo()
	r := &Result{
		Scenario: b.scenario.name, What: b.scenario.what, Took: took.Round(time.Second).String(),
		Settings: Settings{
			Rate: o.Rate, Rows: o.Rows, Groups: o.Groups, Size: o.Size, Clients: o.Clients, Repeat: o.Repeat,
			Senders: o.Senders, Batch: o.Batch, Layout: o.Layout, Ungrouped: o.Ungrouped, Claims: o.Claims,
		},
		Machine: Machine{
			Cores: runtime.NumCPU(), Processor: processor(), System: runtime.GOOS + "/" + runtime.GOARCH,
			Go: runtime.Version(), Sluicebox: b.env.Version, Server: is.version, Settings: is.settings,
			Stolen: stolen,
		},
	}
	if o.Duration > 0 {
		r.Settings.Duration = o.Duration.String()
	}
	if o.Peer != "" {
		r.Settings.Peer = filepath.Base(o.Peer) // no path of this machine
	}
	if o.Compare.given() {
		r.Settings.Compare, r.Settings.Senders, r.Settings.Batch = &o.Compare, 0, 0 // they are keys of the files
	}
	if o.Delay > 0 {
		r.Settings.Delay = o.Delay.String()
	}

	for i := range b.scenario.compare {
		c := &b.scenario.compare[i]
		m := b.measure(c, measured, is.syncsCommits)
		switch {
		case len(m.Turns) > 0:
			r.Measures = append(r.Measures, m)
		case b.missingMeasures[c.measure]:
			m.Note = errNotMeasured.Error()
			r.Measures = append(r.Measures, m)
		}
	}
	return r
}

func (b *bench) measure(c *comparison, measured [][]figures, flushes bool) Measure {
	turns := func(of int) (values []float64) {
		for _, f := range measured[of] {
			if v, ok := f[c.measure]; ok {
				values = append(values, v)
			}
		}
		return values
	}

	m := Measure{Name: c.measure, Unit: c.unit, Side: b.scenario.sides[0].name, Turns: turns(0)}
	m.Median = median(m.Turns)
	judged := m.Median
	for i := range b.scenario.sides {
		if s := b.scenario.sides[i].name; s == c.against {
			m.Against, m.AgainstTurns = s, turns(i)
			m.AgainstMedian = median(m.AgainstTurns)
			m.Ratio = ratio(m.Turns, m.AgainstTurns)
			judged = m.Ratio
		}
	}

	goal := c.goal
	switch {
	case b.opts.Sink != "" && c.against != peerSide:
		goal = c.brokerGoal
	case flushes && c.syncedGoal != nil:
		goal = *c.syncedGoal
	}

	switch reached := false; {
	case goal.max > 0:
		reached = judged <= goal.max
		m.Goal, m.Reached = "<= "+Number(goal.max), &reached
	case goal.min > 0:
		reached = judged >= goal.min
		m.Goal, m.Reached = ">= "+Number(goal.min), &reached
	}
	return m
}

// ratio returns the median of the ratios of consecutive turns.
func ratio(a, b []float64) float64 { return median(ratios(a, b)) }

// ratios returns the ratio of each turn to its counterpart.
func ratios(a, b []float64) (all []float64) {
	for i := range min(len(a), len(b)) {
		if b[i] > 0 {
			all = append(all, a[i]/b[i])
		}
	}
	return all
}

func withUnit(v float64, unit string) string { return strings.TrimSpace(Number(v) + " " + unit) }

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// Number formats a number with three significant digits, and all digits before the point.
func Number(v float64) string {
	switch {
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

func (r *Result) writeJSON(to io.Writer) error {
	return json.NewEncoder(to).Encode(r)
}

func (r *Result) writeText(to io.Writer) error {
	m := &r.Machine
	var text strings.Builder
	fmt.Fprintf(&text, "%s: %s\n", r.Scenario, r.What)
	fmt.Fprintf(&text, "%s, %d cores %s, %s, sluicebox %s, medians of %d rounds\n", m.Server, m.Cores, m.System, m.Go, m.Sluicebox, r.Settings.Repeat)
	if m.Stolen >= 1 {
		fmt.Fprintf(&text, "%.0f %% of the processor time was stolen by other virtual machines on the host, which makes the figures worse\n", m.Stolen)
	}
	if r.Settings.Compare != nil {
		text.WriteString(r.comparisonText())
	} else {
		fmt.Fprintf(&text, "\n\t%s\tagainst\t\tratio\tgoal\t\n", r.side())
		for i := range r.Measures {
			text.WriteString(r.Measures[i].line() + "\n")
		}
	}
	out := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	if _, err := io.WriteString(out, text.String()); err != nil {
		return err
	}
	return out.Flush()
}

func (r *Result) side() string {
	if len(r.Measures) == 0 {
		return ""
	}
	return r.Measures[0].Side
}

// line returns a measure as a line of the table.
func (m *Measure) line() string {
	if m.Note != "" {
		return m.Name + "\t" + m.Note + "\t\t\t\t\t"
	}
	cells := []string{m.Name, withUnit(m.Median, m.Unit), m.Against, "", "", m.Goal, ""}
	if m.Against != "" {
		cells[3], cells[4] = withUnit(m.AgainstMedian, m.Unit), fmt.Sprintf("%.2f", m.Ratio)
	}
	if m.Reached != nil {
		cells[6] = map[bool]string{true: "reached", false: "missed"}[*m.Reached]
	}
	return strings.Join(cells, "\t")
}
