package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluicebox/sluicebox/cmd/internal/bench"
)

// sectionMarkers returns the lines of the page that enclose the generated part; the rest is
// written by hand. A page about several databases has a part for each.
func sectionMarkers(part string) (begin, end string) {
	if part == "" {
		return "<!-- measured: make bench writes from here -->", "<!-- measured: to here -->"
	}
	return "<!-- measured: make bench DB=" + part + " writes from here -->", "<!-- measured: " + part + " to here -->"
}

// chartFolder is the folder of the charts, beside the page.
const chartFolder = "speed"

// writePage writes the results into a part of the page, and its charts beside it.
func writePage(results, page, part string) error {
	beginMark, endMark := sectionMarkers(part)
	all, err := readResults(results)
	if err != nil {
		return err
	}
	folder := filepath.Join(filepath.Dir(page), chartFolder)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	text, charts := render(all, cmp.Or(part, "postgres"))
	for name, svg := range charts {
		if err := os.WriteFile(filepath.Join(folder, name), svg, 0o644); err != nil {
			return err
		}
	}
	return replaceSection(page, beginMark, endMark, text)
}

// replaceSection replaces the text of a page between two marks.
func replaceSection(page, beginMark, endMark, section string) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(text), beginMark)
	_, after, closed := strings.Cut(rest, endMark)
	if !found || !closed {
		return fmt.Errorf("%s: no lines %q and %q to write the results between", page, beginMark, endMark)
	}
	return os.WriteFile(page, []byte(before+beginMark+"\n\n"+section+"\n"+endMark+after), 0o644)
}

// render renders the results, with the charts by their file names, which begin with the name of
// the database.
func render(all map[string]*bench.Result, database string) (text string, charts map[string][]byte) {
	var b strings.Builder
	for _, e := range suite() {
		if r := all[e.name]; r != nil {
			b.WriteString(machine(r))
			break
		}
	}
	c := plotter{all: all, database: database, files: map[string][]byte{}}
	b.WriteString("\n")
	c.sides(&b, "latency", "p50", "p99")
	c.sides(&b, "drain", "drain")

	const head = "| What | | Relay | Against | Ratio | Goal | |\n|---|---|---|---|---|---|---|\n"
	b.WriteString(head)
	rows(&b, all, goals)
	section(&b, "\nOther drains, of 200 000 rows unless it says otherwise, each beside the bulk floor on the same table:\n\n"+head, func(b *strings.Builder) {
		rows(b, all, drains)
		rows(b, all, otherLine)
	})

	section(&b, "\n### Growth\n\n", func(b *strings.Builder) {
		c.growth(b, growthChart{"Drain by the number of groups", "message groups", "drain", "rows/s", "groups-", true})
		c.growth(b, growthChart{"Latency by the rate, p50", "rows written per second", "p50", "ms", "rate-", false})
		c.growth(b, growthChart{"Latency by the rate, p99", "rows written per second", "p99", "ms", "rate-", false})
	})
	return b.String(), c.files
}

// section writes a heading and its content, if there is any.
func section(b *strings.Builder, head string, write func(b *strings.Builder)) {
	var under strings.Builder
	if write(&under); under.Len() > 0 {
		b.WriteString(head + under.String())
	}
}

func machine(r *bench.Result) string {
	m := &r.Machine
	about := []string{m.Server}
	for _, name := range []string{"fsync", "synchronous_commit", "shared_buffers", "sync_binlog", "innodb_flush_log_at_trx_commit",
		"innodb_buffer_pool_size", "innodb_redo_log_capacity", "innodb_log_file_size",
		"members", "writeConcernMajorityJournalDefault", "wiredTigerCacheBytes"} {
		if value, has := m.Settings[name]; has {
			about = append(about, name+"="+value)
		}
	}
	relay := ""
	if r.Settings.Claims != "" {
		relay = " The relay has `claims: " + r.Settings.Claims + "`."
	}
	return fmt.Sprintf("%s; %d cores (%s), %s, %s; everything on one machine. Medians of the turns; a ratio is the median of the turns' ratios.%s\n",
		strings.Join(about, ", "), m.Cores, m.Processor, m.System, m.Go, relay)
}

// rows writes a line for each measure of the entries of a part.
func rows(b *strings.Builder, all map[string]*bench.Result, of part) {
	for _, e := range suite() {
		r := all[e.name]
		if e.part != of || r == nil {
			continue
		}
		title := e.title
		if r.Settings.Peer != "" {
			title += ", beside " + r.Settings.Peer
		}
		if r.Machine.Stolen >= 1 {
			title += fmt.Sprintf(" (%.0f %% stolen)", r.Machine.Stolen)
		}
		for i := range r.Measures {
			m := &r.Measures[i]
			against, ratio, verdict := "", "", ""
			if m.Against != "" {
				against, ratio = m.Against+": "+withUnit(m.AgainstMedian, m.Unit), fmt.Sprintf("%.2f", m.Ratio)
			}
			goal := m.Goal
			if of != goals { // they belong to the one drain with a goal
				goal = ""
			} else if m.Reached != nil {
				verdict = map[bool]string{true: "reached", false: "**missed**"}[*m.Reached]
			}
			figure := withUnit(m.Median, m.Unit)
			if m.Note != "" {
				figure = m.Note
			}
			fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s | %s |\n", title, m.Name, figure, against, ratio, goal, verdict)
			title = ""
		}
	}
}

func withUnit(v float64, unit string) string {
	return strings.TrimSpace(bench.Number(v) + " " + unit)
}
