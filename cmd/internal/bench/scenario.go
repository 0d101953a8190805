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
	file *relayFile // of the relay, for --compare
	// setUp prepares state that all turns of the side share. tearDown removes it.
	setUp func(ctx context.Context, b *bench) (tearDown func(context.Context) error, err error)
}

// comparison compares a measure of the first side with another side.
type comparison struct {
	measure string // of the first side
	against string // the other side; "" for none
	unit    string
	goal    goalBounds
	// syncedGoal is the goal on MySQL, MariaDB and MongoDB if it differs. There a claim is a
	// transaction whose commit waits for the disk.
	syncedGoal *goalBounds
	// brokerGoal is the goal with --sink. A broker's confirmations take the time that claims take
	// elsewhere.
	brokerGoal goalBounds
}

// goalBounds limit a ratio, or a figure without a comparison. 0 is no limit.
type goalBounds struct{ max, min float64 }

// The sides.
const (
	relaySide     = "relay"
	floorSide     = "floor"
	postFloorSide = "floor without claims"
	claimsOnSide  = "claims: on"
	withoutSide   = "without"
	aloneSide     = "alone"
	threeSide     = "three routes"
	peerSide      = "peer"
)

// The measures.
const (
	p50                = "p50"
	p99                = "p99"
	p999               = "p99.9"
	longest            = "longest"
	drainRate          = "drain"
	shareOfServiceTime = "share of what the service time allows"
	cpuPercent         = "CPU of one core"
	cpuPerRow          = "CPU per row"
	cpuPerRowBoth      = "CPU per row, with the server"
	peakRSS            = "memory at its peak"
	replayRate         = "replayed"
	scans              = "scans of the outbox in a minute"
	statementsPerRow   = "statements per row"
)

// scenarios returns all scenarios.
func scenarios() []scenario {
	return slices.Concat(floorScenarios(), otherScenarios(), selfScenarios(), routeScenarios())
}

// floorScenarios compare the relay with the limits of the database and the receiver.
func floorScenarios() []scenario {
	floors := []side{
		{name: floorSide, run: withFloor(floorLatency, floorVariant{})},
		{name: postFloorSide, run: withFloor(floorLatency, floorVariant{noClaims: true})},
	}
	bulk := []side{
		{name: floorSide, run: withFloor(floorDrain, floorVariant{bulk: true})},
		{name: postFloorSide, run: withFloor(floorDrain, floorVariant{bulk: true, noClaims: true})},
	}
	return []scenario{
		{
			name: "latency", what: "from the return of COMMIT until the receiver has the row, with its outcome written",
			defaults: Options{Rate: 300, Groups: 50, Duration: 10 * time.Second},
			sides:    append([]side{{name: relaySide, run: relayLatency}, {name: claimsOnSide, run: withClaims(relayLatency)}}, floors...),
			compare: []comparison{
				{measure: p50, against: floorSide, unit: "ms", goal: goalBounds{max: 0.8}, syncedGoal: &goalBounds{max: 0.9}},
				{measure: p99, against: floorSide, unit: "ms", goal: goalBounds{max: 1}, syncedGoal: &goalBounds{max: 2}},
				{measure: p999, against: floorSide, unit: "ms"},
				{measure: p50, against: postFloorSide, unit: "ms", goal: goalBounds{max: 1.15}, syncedGoal: &goalBounds{}},
				{measure: p99, against: postFloorSide, unit: "ms", goal: goalBounds{max: 1.5}, syncedGoal: &goalBounds{}},
				{measure: p50, against: claimsOnSide, unit: "ms"},
				{measure: cpuPerRow, against: floorSide, unit: "µs"},
				{measure: cpuPerRowBoth, against: claimsOnSide, unit: "µs", goal: goalBounds{max: 0.7}},
			},
		},
		{
			name: "drain", what: "rows that were committed while nothing read them, until the last one is received",
			defaults: Options{Rows: 200_000, Groups: 1000},
			sides:    append([]side{{name: relaySide, run: relayDrain}, {name: claimsOnSide, run: withClaims(relayDrain)}}, bulk...),
			compare: []comparison{
				{measure: drainRate, against: floorSide, unit: "rows/s", goal: goalBounds{min: 1.1}, syncedGoal: &goalBounds{min: 0.7}, brokerGoal: goalBounds{min: 0.8}},
				{measure: drainRate, against: postFloorSide, unit: "rows/s"},
				{measure: drainRate, against: claimsOnSide, unit: "rows/s"},
				{measure: cpuPerRow, against: floorSide, unit: "µs"},
				{measure: cpuPerRowBoth, against: claimsOnSide, unit: "µs", goal: goalBounds{max: 0.7}},
				{measure: peakRSS, against: floorSide, unit: "MiB"},
			},
		},
		{
			name: "ungrouped", what: "a drain of rows without a group, which no order holds back",
			defaults: Options{Rows: 200_000, Ungrouped: true},
			sides:    append([]side{{name: relaySide, run: relayDrain}}, bulk...),
			compare: []comparison{
				{measure: drainRate, against: floorSide, unit: "rows/s", goal: goalBounds{min: 0.95}},
				{measure: drainRate, against: postFloorSide, unit: "rows/s"},
				{measure: cpuPerRow, against: floorSide, unit: "µs"},
				{measure: cpuPerRowBoth, against: floorSide, unit: "µs"},
			},
		},
	}
}

// otherScenarios compare the relay with another program, and with the receiver's limit.
func otherScenarios() []scenario {
	return []scenario{
		{
			name: "peer", what: "latency and drain beside another program, which reads the same table and posts to the same receiver",
			defaults: Options{Rate: 300, Rows: 200_000, Groups: 1000, Duration: 10 * time.Second},
			sides: []side{
				{name: relaySide, run: latencyAndDrain(relayLatency, relayDrain)},
				{name: peerSide, run: latencyAndDrain(withFloor(floorLatency, floorVariant{peer: true}), withFloor(floorDrain, floorVariant{bulk: true, peer: true}))},
			},
			compare: []comparison{
				{measure: p50, against: peerSide, unit: "ms", goal: goalBounds{max: 1}},
				{measure: p99, against: peerSide, unit: "ms"},
				{measure: drainRate, against: peerSide, unit: "rows/s", goal: goalBounds{min: 1}},
				{measure: cpuPerRow, against: peerSide, unit: "µs"},
				{measure: cpuPerRowBoth, against: peerSide, unit: "µs"},
				{measure: peakRSS, against: peerSide, unit: "MiB"},
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
			sides:    []side{{name: "with a blocked group", run: blockedLatency}, {name: withoutSide, run: relayLatency}},
			compare: []comparison{
				{measure: p50, against: withoutSide, unit: "ms", goal: goalBounds{max: 1.2}},
				{measure: p99, against: withoutSide, unit: "ms", goal: goalBounds{max: 1.2}},
				{measure: peakRSS, unit: "MiB", goal: goalBounds{max: 256}},
			},
		},
		{
			name: "bulk-transaction", what: "the latency of other groups while a transaction with many rows of a refused group commits",
			defaults: Options{Rate: 100, Rows: 300_000, Groups: 50, Duration: 15 * time.Second},
			sides:    []side{{name: "with a bulk transaction", run: bulkLatency}, {name: withoutSide, run: relayLatency}},
			compare: []comparison{
				{measure: longest, against: withoutSide, unit: "ms"},
				{measure: longest, unit: "ms", goal: goalBounds{max: 2000}},
				{measure: p50, against: withoutSide, unit: "ms"},
				{measure: p99, against: withoutSide, unit: "ms"},
				{measure: peakRSS, unit: "MiB", goal: goalBounds{max: 256}},
			},
		},
		{
			name: "replay", what: "the latency of rows while delivered rows of other groups are sent again",
			defaults: Options{Rate: 300, Rows: 200_000, Groups: 50, Duration: 10 * time.Second},
			sides:    []side{{name: "beside a replay", run: replayLatency}, {name: aloneSide, run: deliveredLatency}},
			compare: []comparison{
				{measure: p50, against: aloneSide, unit: "ms"},
				{measure: p99, against: aloneSide, unit: "ms", goal: goalBounds{max: 1.2}},
				{measure: replayRate, unit: "rows/s"},
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

// routeScenarios returns the scenarios that compare an outbox with routes with another one: it has none, or
// all of its routes work.
func routeScenarios() []scenario {
	both := latencyAndDrain(countedLatency, relayDrain)
	return []scenario{
		{
			name: "routes", what: "latency and drain of an outbox with one route, beside one without routes and one with three",
			defaults: Options{Rate: 300, Rows: 200_000, Groups: 1000, Duration: 10 * time.Second},
			sides: []side{
				{name: "one route", run: withRoutes(1, false, both)},
				{name: withoutSide, run: both},
				{name: threeSide, run: withRoutes(3, false, both)},
			},
			compare: []comparison{
				{measure: p50, against: withoutSide, unit: "ms", goal: goalBounds{max: 1.03}},
				{measure: p99, against: withoutSide, unit: "ms"},
				{measure: drainRate, against: withoutSide, unit: "rows/s", goal: goalBounds{min: 0.97}},
				{measure: cpuPerRow, against: withoutSide, unit: "µs"},
				{measure: cpuPerRowBoth, against: withoutSide, unit: "µs"},
				{measure: statementsPerRow, against: withoutSide},
				{measure: statementsPerRow, against: threeSide, goal: goalBounds{min: 0.97}},
			},
		},
		{
			name: "dead-route", what: "the latency of one of three routes while the destination of another is dead",
			defaults: Options{Rate: 1000, Groups: 50, Duration: 10 * time.Second},
			sides: []side{
				{name: "with a dead route", run: withRoutes(3, true, relayLatency)},
				{name: withoutSide, run: withRoutes(3, false, relayLatency)},
			},
			compare: []comparison{
				{measure: p50, against: withoutSide, unit: "ms"},
				{measure: p99, against: withoutSide, unit: "ms", goal: goalBounds{max: 1.2}},
				{measure: cpuPerRowBoth, against: withoutSide, unit: "µs"},
				{measure: peakRSS, unit: "MiB", goal: goalBounds{max: 256}},
			},
		},
	}
}

// beside returns the scenario with the first side and some of the others.
func (sc *scenario) beside(others []string) *scenario {
	some := *sc
	some.sides = slices.DeleteFunc(slices.Clone(sc.sides), func(s side) bool { return s.name != sc.sides[0].name && !slices.Contains(others, s.name) })
	some.compare = slices.DeleteFunc(slices.Clone(sc.compare), func(c comparison) bool { return c.against != "" && !slices.Contains(others, c.against) })
	return &some
}

// writesRows reports whether a scenario measures a relay that has rows to send.
func (sc *scenario) writesRows() bool { return sc.defaults.Rate > 0 || sc.defaults.Rows > 0 }

func findScenario(name string) *scenario {
	all := scenarios()
	if i := slices.IndexFunc(all, func(sc scenario) bool { return sc.name == name }); i >= 0 {
		return &all[i]
	}
	return nil
}
