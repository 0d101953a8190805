// Command speedpage measures all scenarios of `sluicebox bench` and writes the results into
// the page on speed. `make bench` runs it.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/sluicebox/sluicebox/cmd/internal/bench"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
)

func main() {
	source := flag.String("source", "", "URL of a PostgreSQL, MySQL, MariaDB or MongoDB server on which databases may be created")
	program := flag.String("program", "bin/sluicebox", "path of the program to measure")
	version := flag.String("version", "unknown", "its version")
	results := flag.String("results", "deploy/speed.json", "file of the results")
	page := flag.String("page", "deploy/speed.md", "page of the results")
	readme := flag.String("readme", "README.md", "page with the main figures of all databases")
	part := flag.String("part", "", "part of the page, if its markers name one: mysql, mariadb or mongo")
	only := flag.String("only", "", "measure only this entry and keep the other results")
	rounds := flag.Int("rounds", 0, "rounds of each entry; 0 is as many as the page has")
	claims := flag.String("claims", "", "dispatch.claims of the relay; empty is its default")
	peer := flag.String("peer", "", "program to measure in the entry peer; empty leaves the entry out")
	show := flag.Bool("show", false, "do not measure; write the page from the results")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var err error
	if !*show {
		m := measurer{source: config.URL(*source), program: *program, version: *version, file: *results, rounds: *rounds, claims: *claims, peer: *peer}
		err = m.measure(ctx, *only)
	}
	if ctx.Err() == nil { // with the entries that could be measured
		err = errors.Join(err, writePage(*results, *page, *part), writeFigures(filepath.Dir(*results), *readme))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "speedpage:", err)
		os.Exit(1)
	}
}

// measurer runs entries of the suite and keeps their results in a file.
type measurer struct {
	source                 config.URL
	program, version, file string
	claims                 string // of entries that have none
	peer                   string // of the entry with a peer
	rounds                 int    // of each entry; 0 is as many as the suite has
}

// measure runs all entries, or one. It saves each result at once, so that an interruption
// loses none. An entry that fails does not end the others.
func (m *measurer) measure(ctx context.Context, only string) error {
	found := only == ""
	var failed error
	for _, e := range suite() {
		if only != "" && e.name != only {
			continue
		}
		found = true
		if reason := m.leftOut(&e); reason != "" {
			fmt.Fprintf(os.Stderr, "--- %s left out: %s\n", e.name, reason)
			continue
		}
		fmt.Fprintln(os.Stderr, "---", e.name)
		if err := m.measureEntry(ctx, &e); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", e.name, err))
			fmt.Fprintln(os.Stderr, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	if !found {
		return fmt.Errorf("unknown entry %q", only)
	}
	return failed
}

// leftOut returns the reason why an entry is not measured, or "".
func (m *measurer) leftOut(e *entry) string {
	switch {
	case e.options.Scenario == "peer" && m.peer == "":
		return "no -peer is given"
	case e.options.Scenario == "bulk-transaction" && m.source.Mongo():
		return "the transaction does not fit in MongoDB's cache"
	}
	return ""
}

// measureEntry runs one entry.
func (m *measurer) measureEntry(ctx context.Context, e *entry) error {
	o := e.options
	o.Source, o.JSON, o.Claims = m.source, true, cmp.Or(o.Claims, m.claims)
	if o.Scenario == "peer" {
		o.Peer = m.peer
	}
	if m.rounds > 0 {
		o.Repeat = m.rounds
	}
	if err := o.Validate(); err != nil {
		return err
	}
	var out bytes.Buffer
	err := bench.Run(ctx, o, bench.Environment{Stdout: &out, Stderr: os.Stderr, Program: m.program, Version: m.version})
	if err != nil {
		return err
	}
	var res bench.Result
	if err := json.Unmarshal(out.Bytes(), &res); err != nil {
		return err
	}
	return m.saveResult(e.name, &res)
}

// saveResult replaces a result in the file.
func (m *measurer) saveResult(name string, res *bench.Result) error {
	all, err := readResults(m.file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if all == nil {
		all = map[string]*bench.Result{}
	}
	all[name] = res
	text, err := json.MarshalIndent(all, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(m.file, append(text, '\n'), 0o644)
}

func readResults(file string) (map[string]*bench.Result, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var all map[string]*bench.Result
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return all, nil
}
