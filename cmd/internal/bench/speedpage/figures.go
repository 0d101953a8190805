package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/sluicebox/sluicebox/cmd/internal/bench"
)

// These two lines enclose the README's table of figures.
const (
	figuresBegin = "<!-- figures: make bench writes from here -->"
	figuresEnd   = "<!-- figures: to here -->"
)

// writeFigures writes the README's table from the results of all databases in one folder.
func writeFigures(folder, readme string) error {
	figures, err := renderFigures(folder)
	if err != nil {
		return err
	}
	return replaceSection(readme, figuresBegin, figuresEnd, figures)
}

// renderFigures returns the table, with one line for each measured database.
func renderFigures(folder string) (string, error) {
	var b strings.Builder
	for _, db := range []struct{ title, file string }{
		{"PostgreSQL", "speed.json"}, {"MySQL", "speed-mysql.json"}, {"MariaDB", "speed-mariadb.json"}, {"MongoDB", "speed-mongo.json"},
	} {
		all, err := readResults(filepath.Join(folder, db.file))
		if err != nil {
			return "", err
		}
		if all["latency"] == nil || all["drain"] == nil {
			return "", fmt.Errorf("%s: no latency or no drain; run make bench", db.file)
		}
		if b.Len() == 0 {
			fmt.Fprintf(&b, "Measured on machines with %d cores. Database, relay, writers and receiver share them, and\n"+
				"every commit is flushed to disk. In parentheses: the *floor*, the least program that reads,\n"+
				"claims, sends and completes the same rows, in turns with the relay on the same machine.\n\n", all["latency"].Machine.Cores)
			b.WriteString("| Database | Commit to receiver, p50, 300 rows/s | Commit to receiver, p99, 300 rows/s | Backlog of 200 000 rows in 1000 groups |\n|---|---|---|---|\n")
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", db.title,
			figure(all["latency"], "p50"), figure(all["latency"], "p99"), figure(all["drain"], "drain"))
	}
	return b.String(), nil
}

// figure returns a measure, with the floor's value in parentheses.
func figure(r *bench.Result, name string) string {
	for i := range r.Measures {
		if m := &r.Measures[i]; m.Name == name {
			return withUnit(m.Median, m.Unit) + " (" + bench.Number(m.AgainstMedian) + ")"
		}
	}
	return ""
}
