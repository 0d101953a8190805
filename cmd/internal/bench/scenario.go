package bench

import (
	"context"
	"slices"
	"time"
)

// scenario is a benchmark: sides that run alternately, and the comparisons between them.
type scenario struct {
	name     string
	what     string
	defaults Options
	sides    []side
	compare  []comparison
}

// side is one variant of a scenario.
type side struct {
	name string
	run  func(ctx context.Context, b *bench) (figures, error)
	// setUp prepares state that all turns of the side share. tearDown removes it.
	setUp func(ctx context.Context, b *bench) (tearDown func(context.Context) error, err error)
}

// comparison compares a measure of the first side with another side.
type comparison struct {
	measure string // of the first side
	against string // the other side; "" for none
	unit    string
	// goal is the goal, syncedGoal the goal on MySQL, MariaDB and MongoDB if it differs.
	// There a claim is a transaction whose commit waits for the disk.
	goal, syncedGoal goalBounds
}

// goalBounds limit a ratio, or a figure without a comparison. 0 is no limit.
type goalBounds struct{ max, min float64 }

// The sides.
const (
	relaySide = "relay"
	floorSide = "floor"
)

// The measures.
const (
	p50                = "p50"
	p99                = "p99"
	p999               = "p99.9"
	drainRate          = "drain"
	shareOfServiceTime = "share of what the service time allows"
	cpuPercent         = "CPU of one core"
	cpuPerRow          = "CPU per row"
	peakRSS            = "memory at its peak"
	scans              = "scans of the outbox in a minute"
)

// scenarios returns all scenarios.
func scenarios() []scenario { return append(floorScenarios(), selfScenarios()...) }

// floorScenarios compare the relay with the limits of the database and the receiver.
func floorScenarios() []scenario {
	return []scenario{
		{
			name: "latency", what: "from the return of COMMIT until the receiver has the row, with claim and completion written",
			defaults: Options{Rate: 300, Groups: 50, Duration: 10 * time.Second},
			sides:    []side{{name: relaySide, run: relayLatency}, {name: floorSide, run: floorLatency}},
			compare: []comparison{
				{measure: p50, against: floorSide, unit: "ms", goal: goalBounds{max: 1.2}, syncedGoal: goalBounds{max: 1.3}},
				{measure: p99, against: floorSide, unit: "ms", goal: goalBounds{max: 2}},
				{measure: p999, against: floorSide, unit: "ms"},
				{measure: cpuPerRow, against: floorSide, unit: "µs"},
			},
		},
		{
			name: "drain", what: "rows that were committed while nothing read them, until the last one is received",
			defaults: Options{Rows: 200_000, Groups: 1000},
			sides:    []side{{name: relaySide, run: relayDrain}, {name: floorSide, run: floorDrain}},
			compare: []comparison{
				{measure: drainRate, against: floorSide, unit: "rows/s", goal: goalBounds{min: 0.8}, syncedGoal: goalBounds{min: 0.7}},
				{measure: cpuPerRow, against: floorSide, unit: "µs"},
				{measure: peakRSS, against: floorSide, unit: "MiB"},
			},
		},
		{
			name: "slow-receiver", what: "a drain into a receiver that takes its time for each request",
			defaults: Options{Rows: 30_000, Groups: 1000, Senders: 64, Batch: 1, Delay: 20 * time.Millisecond},
			sides:    []side{{name: relaySide, run: relaySlow}},
			compare: []comparison{
				{measure: shareOfServiceTime, goal: goalBounds{min: 0.95}},
				{measure: drainRate, unit: "rows/s"},
			},
		},
	}
}

// selfScenarios compare the relay under a burden with itself without it.
func selfScenarios() []scenario {
	return []scenario{
		{
			name: "blocked-group", what: "the latency of other groups while a group with many rows is refused",
			defaults: Options{Rate: 300, Rows: 100_000, Groups: 50, Duration: 10 * time.Second},
			sides:    []side{{name: "with a blocked group", run: blockedLatency}, {name: "without", run: relayLatency}},
			compare: []comparison{
				{measure: p50, against: "without", unit: "ms", goal: goalBounds{max: 1.2}},
				{measure: p99, against: "without", unit: "ms", goal: goalBounds{max: 1.2}},
				{measure: peakRSS, unit: "MiB", goal: goalBounds{max: 256}},
			},
		},
		{
			name: "idle", what: "a relay with nothing to do",
			defaults: Options{Duration: time.Minute},
			sides:    []side{{name: relaySide, run: relayIdle}},
			compare: []comparison{
				{measure: cpuPercent, unit: "%", goal: goalBounds{max: 0.5}},
				// The scans of the sweep: the server counts one for each status word that it
				// looks up.
				{measure: scans},
				{measure: peakRSS, unit: "MiB"},
			},
		},
		{
			name: "big-table", what: "latency and drain beside many completed rows in the table",
			defaults: Options{Rate: 300, Rows: 10_000_000, Groups: 1000, Duration: 10 * time.Second},
			sides: []side{
				{name: "full table", run: fullTable, setUp: fillTable},
				{name: "empty table", run: emptyTable},
			},
			compare: []comparison{
				{measure: p50, against: "empty table", unit: "ms", goal: goalBounds{max: 1.1}},
				{measure: p99, against: "empty table", unit: "ms", goal: goalBounds{max: 1.1}},
				{measure: drainRate, against: "empty table", unit: "rows/s", goal: goalBounds{min: 1 / 1.1}},
			},
		},
	}
}

func findScenario(name string) *scenario {
	all := scenarios()
	if i := slices.IndexFunc(all, func(sc scenario) bool { return sc.name == name }); i >= 0 {
		return &all[i]
	}
	return nil
}
