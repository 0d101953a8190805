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
	if err == nil {
		err = writePage(*results, *page, *part)
	}
	if err == nil {
		err = writeFigures(filepath.Dir(*results), *readme)
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
// loses none.
func (m *measurer) measure(ctx context.Context, only string) error {
	found := only == ""
	for _, e := range suite() {
		if only != "" && e.name != only {
			continue
		}
		found = true
		if e.options.Scenario == "peer" {
			if e.options.Peer = m.peer; m.peer == "" {
				fmt.Fprintln(os.Stderr, "---", e.name, "left out, because no -peer is given")
				continue
			}
		}
		fmt.Fprintln(os.Stderr, "---", e.name)
		o := e.options
		o.Source, o.JSON, o.Claims = m.source, true, cmp.Or(o.Claims, m.claims)
		if m.rounds > 0 {
			o.Repeat = m.rounds
		}
		if err := o.Validate(); err != nil {
			return err
		}
		var out bytes.Buffer
		err := bench.Run(ctx, o, bench.Environment{Stdout: &out, Stderr: os.Stderr, Program: m.program, Version: m.version})
		if err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
		var res bench.Result
		if err := json.Unmarshal(out.Bytes(), &res); err != nil {
			return err
		}
		if err := m.saveResult(e.name, &res); err != nil {
			return err
		}
	}
	if !found {
		return fmt.Errorf("unknown entry %q", only)
	}
	return nil
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
