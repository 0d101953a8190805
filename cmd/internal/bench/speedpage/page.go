package main

import (
	"fmt"
	"os"
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

// writePage writes the results into a part of the page.
func writePage(results, page, part string) error {
	beginMark, endMark := sectionMarkers(part)
	all, err := readResults(results)
	if err != nil {
		return err
	}
	return replaceSection(page, beginMark, endMark, render(all))
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

// render renders the results.
func render(all map[string]*bench.Result) string {
	var b strings.Builder
	for _, e := range suite() {
		if r := all[e.name]; r != nil {
			b.WriteString(machine(&r.Machine))
			break
		}
	}

	const head = "| What | | Relay | Against | Ratio | Goal | |\n|---|---|---|---|---|---|---|\n"
	b.WriteString("\n" + head)
	rows(&b, all, goals)
	section(&b, "\nOther drains of 200 000 rows, each beside the bulk floor on the same table:\n\n"+head, func(b *strings.Builder) {
		rows(b, all, drains)
		rows(b, all, otherLine)
	})

	section(&b, "\n### Growth\n\n", func(b *strings.Builder) {
		plot(b, all, "Drain by the number of groups", "groups", "drain", "rows/s", "groups-")
		plot(b, all, "Latency by the rate (p50)", "rows a second", "p50", "ms", "rate-")
		plot(b, all, "Latency by the rate (p99)", "rows a second", "p99", "ms", "rate-")
	})
	return b.String()
}

// section writes a heading and its content, if there is any.
func section(b *strings.Builder, head string, write func(b *strings.Builder)) {
	var under strings.Builder
	if write(&under); under.Len() > 0 {
		b.WriteString(head + under.String())
	}
}

func machine(m *bench.Machine) string {
	about := []string{m.Server}
	for _, name := range []string{"fsync", "synchronous_commit", "shared_buffers", "sync_binlog", "innodb_flush_log_at_trx_commit",
		"innodb_buffer_pool_size", "innodb_redo_log_capacity", "innodb_log_file_size",
		"members", "writeConcernMajorityJournalDefault", "wiredTigerCacheBytes"} {
		if value, has := m.Settings[name]; has {
			about = append(about, name+"="+value)
		}
	}
	return fmt.Sprintf("%s; %d cores (%s), %s, %s; everything on one machine. Medians of the turns; a ratio is the median of the turns' ratios.\n",
		strings.Join(about, ", "), m.Cores, m.Processor, m.System, m.Go)
}

// rows writes a line for each measure of the entries of a part.
func rows(b *strings.Builder, all map[string]*bench.Result, of part) {
	for _, e := range suite() {
		r := all[e.name]
		if e.part != of || r == nil {
			continue
		}
		title := e.title
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

// plot draws a measure of the relay and of the floor over the entries whose names have a
// prefix.
func plot(b *strings.Builder, all map[string]*bench.Result, title, x, measure, unit, prefix string) {
	var at, relay, floor []string
	for _, e := range suite() {
		r := all[e.name]
		if r == nil || !strings.HasPrefix(e.name, prefix) {
			continue
		}
		for i := range r.Measures {
			if m := &r.Measures[i]; m.Name == measure {
				at = append(at, `"`+e.title+`"`)
				relay, floor = append(relay, bench.Number(m.Median)), append(floor, bench.Number(m.AgainstMedian))
			}
		}
	}
	if len(at) == 0 {
		return
	}

	fmt.Fprintf(b, "%s: %s of the relay (first line) and of the floor (second).\n\n", title, unit)
	fmt.Fprintf(b, "```mermaid\nxychart-beta\n    title %q\n    x-axis %q [%s]\n    y-axis %q\n    line [%s]\n    line [%s]\n```\n\n",
		title, x, strings.Join(at, ", "), unit, strings.Join(relay, ", "), strings.Join(floor, ", "))
	fmt.Fprintf(b, "| %s | %s |\n|---|%s\n| relay, %s | %s |\n| floor, %s | %s |\n\n", x, strings.ReplaceAll(strings.Join(at, " | "), `"`, ""),
		strings.Repeat("---|", len(at)), unit, strings.Join(relay, " | "), unit, strings.Join(floor, " | "))
}
