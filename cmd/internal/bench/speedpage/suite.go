package main

import (
	"fmt"
	"slices"

	"github.com/sluicebox/sluicebox/cmd/internal/bench"
)

// entry is one benchmark of the page.
type entry struct {
	name    string // in the file of results, and for -only
	title   string // on the page
	part    part
	options bench.Options
}

// part is the part of the page that shows an entry.
type part uint8

const (
	goals     part = iota // with a goal or a comparison
	drains                // other drains
	growth                // plotted
	otherLine             // its own line
)

// fewRounds is the number of rounds of a benchmark without a goal.
const fewRounds = 3

// suite returns all benchmarks, in order.
func suite() []entry {
	floor := []string{"floor"} // of a benchmark without a goal
	all := []entry{
		{"latency", "commit to received, 300 rows/s", goals, bench.Options{Scenario: "latency"}},
		{"drain", "drain of 200 000 rows, 1000 groups, batches of 100", goals, bench.Options{Scenario: "drain"}},
		{"drain-ungrouped", "drain of 200 000 rows without a group, `ungrouped: parallel`", goals, bench.Options{Scenario: "ungrouped"}},
		{"peer", "300 rows/s, then a drain of 200 000 rows, 1000 groups", goals, bench.Options{Scenario: "peer"}},
		{"slow-receiver", "receiver that takes 20 ms, one row a request, 64 senders", goals, bench.Options{Scenario: "slow-receiver"}},
		{"bulk-transaction", "a transaction of 300 000 rows of a refused group, others at 100 rows/s", goals, bench.Options{Scenario: "bulk-transaction"}},
		{"replay", "300 rows/s beside a replay of other groups", goals, bench.Options{Scenario: "replay"}},
		{"idle", "a minute without rows", goals, bench.Options{Scenario: "idle"}},
		{"drain-one-row-groups", "one row per group", drains, bench.Options{Scenario: "drain", Groups: 200_000, Against: floor, Repeat: fewRounds}},
		{"drain-outage", "1 500 000 rows: more log than `max-hold`", drains, bench.Options{Scenario: "drain", Rows: 1_500_000, Against: floor, Repeat: fewRounds}},
		{"drain-no-claims", "`claims: off`", drains, bench.Options{Scenario: "drain", Claims: "off", Against: []string{"floor", "floor without claims"}, Repeat: fewRounds}},
		{"drain-outbox-messages", "layout `outbox-messages`, which deletes", drains, bench.Options{Scenario: "drain", Layout: "outbox-messages", Against: floor, Repeat: fewRounds}},
		{"slow-receiver-runs", "receiver that takes 20 ms, 100 rows a request, 64 senders", otherLine, bench.Options{Scenario: "slow-receiver", Batch: 100, Rows: 200_000, Repeat: fewRounds}},
	}

	for _, groups := range []int{10, 1000, 100_000} {
		all = append(all, entry{fmt.Sprint("groups-", groups), fmt.Sprint(groups), growth,
			bench.Options{Scenario: "drain", Groups: groups, Against: floor, Repeat: fewRounds}})
	}

	for _, rate := range []int{100, 1000, 5000} {
		all = append(all, entry{fmt.Sprint("rate-", rate), fmt.Sprint(rate), growth,
			bench.Options{Scenario: "latency", Rate: rate, Clients: 8, Against: floor, Repeat: fewRounds}})
	}
	return append(all,
		entry{"big-table", "beside 10 000 000 completed rows", goals, bench.Options{Scenario: "big-table"}},
		entry{"blocked-group", "a group with 1 000 000 rows is refused, others at 300 rows/s", goals,
			bench.Options{Scenario: "blocked-group", Rows: 1_000_000, Repeat: fewRounds}},
	)
}

// titleOf returns the title of an entry.
func titleOf(name string) string {
	all := suite()
	return all[slices.IndexFunc(all, func(e entry) bool { return e.name == name })].title
}
