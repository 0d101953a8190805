package main

import (
	"cmp"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/cmd/internal/bench"
)

func TestThePageKeepsWhatIsWrittenByHand(t *testing.T) {
	for _, part := range []string{"", "mariadb"} {
		t.Run("part "+part, func(t *testing.T) { keepsByHand(t, part) })
	}
}

func keepsByHand(t *testing.T, part string) {
	beginMark, endMark := sectionMarkers(part)
	folder := t.TempDir()
	results, page := filepath.Join(folder, "speed.json"), filepath.Join(folder, "speed.md")
	missed := false
	measured := map[string]*bench.Result{
		"latency": {Machine: bench.Machine{Server: "PostgreSQL 15.1", Cores: 2}, Measures: []bench.Measure{
			{Name: "p50", Unit: "ms", Median: 0.6, Against: "floor", AgainstMedian: 0.5, Ratio: 1.2, Goal: "<= 1.1", Reached: &missed}}},
		"idle":        {Measures: []bench.Measure{{Name: "scans", Note: "not measured on this server"}}},
		"groups-10":   {Measures: []bench.Measure{{Name: "drain", Unit: "rows/s", Median: 30000, Against: "floor", AgainstMedian: 40000}}},
		"groups-1000": {Measures: []bench.Measure{{Name: "drain", Unit: "rows/s", Median: 20000, Against: "floor", AgainstMedian: 41000}}},
	}
	text, err := json.Marshal(measured)
	if err == nil {
		err = os.WriteFile(results, text, 0o600)
	}
	if err == nil {
		err = os.WriteFile(page, []byte("by hand\n"+beginMark+"\nold\n"+endMark+"\nand more\n"), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second run finds the page of the first
		if err := writePage(results, page, part); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"by hand\n", "\nand more\n", "PostgreSQL 15.1", "| p50 | 0.6 ms | floor: 0.5 ms | 1.20 | <= 1.1 | **missed** |",
		"| scans | not measured on this server |",
		"| message groups | 10 | 1 000 |", "| relay, rows/s | 30000 | 20000 |", "| floor, rows/s | 40000 | 41000 |"} {
		if !strings.Contains(string(got), want) {
			t.Errorf("%q is not on the page:\n%s", want, got)
		}
	}
	for _, name := range []string{"latency", "groups-drain"} {
		file := cmp.Or(part, "postgres") + "-" + name + ".svg"
		svg, err := os.ReadFile(filepath.Join(folder, "speed", file))
		if err != nil || !strings.Contains(string(svg), ">floor</text>") || !strings.Contains(string(got), "(speed/"+file+")") {
			t.Errorf("the chart %s is not on the page, or has no floor: %v\n%s", file, err, svg)
		}
	}
	if strings.Contains(string(got), "old") || strings.Count(string(got), beginMark) != 1 {
		t.Errorf("the page is\n%s", got)
	}
}

func TestAPageWithoutTheMarksIsLeftAlone(t *testing.T) {
	folder := t.TempDir()
	results, page := filepath.Join(folder, "speed.json"), filepath.Join(folder, "speed.md")
	if err := os.WriteFile(results, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(page, []byte("by hand"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writePage(results, page, ""); err == nil || !strings.Contains(err.Error(), page) {
		t.Errorf("the error is %v", err)
	}
	if got, err := os.ReadFile(page); err != nil || string(got) != "by hand" {
		t.Errorf("the page is %q, %v", got, err)
	}
}

func TestTheSuiteCanBeMeasured(t *testing.T) {
	seen := map[string]bool{}
	for _, e := range suite() {
		e.options.Source = "postgres://user@host/db"
		if e.options.Scenario == "peer" {
			e.options.Peer = "program" // a flag names it
		}
		if err := e.options.Validate(); err != nil || seen[e.name] {
			t.Errorf("%s: %v, twice %v", e.name, err, seen[e.name])
		}
		seen[e.name] = true
	}
}
