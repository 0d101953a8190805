package quickstart

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
)

// The final statuses of a row.
const (
	completed = "COMPLETED"
	failed    = "FAILED"
)

// result is the result of a quickstart, as --json prints it.
type result struct {
	Committed  int     `json:"committed"`    // rows whose transaction was committed
	Delivered  int     `json:"delivered"`    // distinct committed rows that arrived
	Duplicates int     `json:"duplicates"`   // repeated arrivals of a row
	OutOfOrder int     `json:"out_of_order"` // rows that arrived after a later row of their group
	Failed     int     `json:"failed"`       // FAILED rows in the table
	P50        float64 `json:"p50_ms"`       // from commit to arrival
	P99        float64 `json:"p99_ms"`
	RowsPerS   float64 `json:"rows_per_s"` // delivered, from the begin of the load to the last arrival
}

func (q *quickstart) result(s *state) result {
	return result{
		Committed: s.committed, Delivered: s.delivered, Duplicates: s.duplicates, OutOfOrder: s.outOfOrder,
		Failed: q.states[failed],
		P50:    milliseconds(s.p50), P99: milliseconds(s.p99),
		RowsPerS: rowsPerSecond(s.delivered-1, max(q.opts.For, s.lastArrival.Sub(q.load.begin))),
	}
}

func milliseconds(t time.Duration) float64 {
	return math.Round(float64(t)/float64(time.Microsecond)) / 1000
}

// rowsPerSecond returns a rate with one decimal, or 0 if rows or t is not positive.
func rowsPerSecond(rows int, t time.Duration) float64 {
	if rows <= 0 || t <= 0 {
		return 0
	}
	return math.Round(10*float64(rows)/t.Seconds()) / 10
}

// resultError describes all faults of a result. It returns nil if there are none.
func resultError(s *state, states map[string]int) error {
	var wrong []string
	count := func(n int, one, many string) {
		if n == 1 {
			wrong = append(wrong, "1 "+one)
		} else if n > 1 {
			wrong = append(wrong, fmt.Sprintf("%d %s", n, many))
		}
	}

	count(s.committed-s.delivered, "row was committed but not delivered", "rows were committed but not delivered")
	count(s.duplicates, "row arrived again", "rows arrived again")
	count(s.outOfOrder, "row arrived after a later row of its group", "rows arrived after a later row of their group")
	count(s.unknown+s.uncommitted, "row arrived that was not committed", "rows arrived that were not committed")
	count(states[failed], "row is FAILED", "rows are FAILED")
	all := 0
	for _, n := range states {
		all += n
	}

	count(all-states[completed]-states[failed], "row is not settled in the table", "rows are not settled in the table")
	if all != s.committed {
		wrong = append(wrong, fmt.Sprintf("the table has %d rows, but %d were committed", all, s.committed))
	}
	if len(wrong) == 0 {
		return nil
	}

	text := strings.Join(wrong, "; ")
	if len(s.lost) > 0 {
		text += "\nnot delivered, for example: " + strings.Join(s.lost, ", ")
	}
	if len(s.examples) > 0 {
		text += "\n" + strings.Join(s.examples, "\n")
	}
	return errors.New(text)
}

// report prints the result and returns its faults as an error.
func (q *quickstart) report() error {
	s, _ := q.oracle.currentState()
	wrong := resultError(&s, q.states)
	out := q.env.Stdout
	if q.opts.JSON {
		if err := json.NewEncoder(out).Encode(q.result(&s)); err != nil {
			return fmt.Errorf("print result: %w", err)
		}
		out = q.env.Stderr
	} else if _, err := fmt.Fprint(out, q.summaryText(&s, wrong)); err != nil {
		return fmt.Errorf("print result: %w", err)
	}
	if wrong != nil {
		q.printText(q.env.Stderr, "Relay log:\n%s", q.log.String())
	}
	if q.shouldKeep() {
		q.printText(out, "%s", q.keptText())
	} else if !q.opts.JSON && wrong == nil {
		q.printText(out, "%s", nextStepsText(q.env.Command, q.opts.Source))
	}
	return wrong
}

// openingText describes the run before it starts.
func (q *quickstart) openingText(receiver string) string {
	o := q.opts
	text := fmt.Sprintf("Outbox:    %s\nReceiver:  %s\nRelay:     as `%s run -c %s`\nLoad:      %d orders a second in %d message groups, for %s; writers: %d\n",
		q.dbInfo.description, receiver, q.env.Command, q.configFile, o.Rate, o.Groups, o.For, q.load.writerCount())
	if o.FailRate > 0 {
		text += fmt.Sprintf("Failures:  %g %% of the requests, on purpose\n", 100*o.FailRate)
	}
	return text + "\n"
}

// summaryText describes the result.
func (q *quickstart) summaryText(s *state, wrong error) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	r, f := q.result(s), q.faults.counts()
	line("%d orders were committed, each with its outbox row in the same transaction.", s.committed)
	if wrong == nil {
		line("All %d rows were delivered, each once and in the commit order of its group.", s.delivered)
	} else {
		line("%d rows were delivered, with faults: %s", s.delivered, wrong)
	}

	line("")
	line("  latency    p50 %s, p99 %s, from the commit to the receiver", shortTime(s.p50), shortTime(s.p99))
	requests := ""
	if q.opts.Sink == "" {
		requests = fmt.Sprintf(", in %d requests", f.requests)
	}
	line("  rate       %g rows/s delivered%s", r.RowsPerS, requests)
	if asked := int(q.opts.For.Seconds() * float64(q.opts.Rate)); s.committed < asked*95/100 {
		line("             %d orders were due: the database or this machine is at its limit", asked)
	}
	if q.opts.FailRate > 0 {
		line("  failures   %d requests failed on purpose, before a row was accepted:", f.total())
		line("             %d with status 503, %d with status 500, %d by a dropped connection", f.failed[unavailable], f.failed[serverError], f.failed[disconnected])
		line("  retries    %d rows were accepted at a later attempt, none after more than %d; only", f.retriedRows, max(1, f.maxTries))
		line("             their groups waited. No row fails more than %d times on purpose,", maxStrikes)
		line("             so none uses up its retries (max-retries is 3)")
	}

	var states []string
	for _, word := range slices.Sorted(maps.Keys(q.states)) {
		states = append(states, fmt.Sprintf("%d %s", q.states[word], word))
	}

	line("  table      %s", strings.Join(states, ", "))
	if q.isPolling {
		line("\nThe relay may not read the database's log, so it polled the table. Relay log:\n%s", q.log.String())
	}

	line("")
	return b.String()
}

// nextStepsText suggests commands to try next. Their URLs have the source's scheme.
func nextStepsText(command string, source config.URL) string {
	command = shellWord(command)
	scheme, other := "postgres", "in a schema of its own; mysql://, mariadb:// and mongodb:// take a database of its own"
	if source.MySQL() || source.Mongo() {
		scheme, _, _ = strings.Cut(source.Reveal(), ":")
		other = "in a database of its own; postgres:// takes a schema of its own"
	}
	return fmt.Sprintf(`Try next:
  %[1]s quickstart --fail-rate 0.2
      the receiver fails one request in five
  %[1]s quickstart --source %[2]s://USER@HOST/DATABASE
      the same on your server, %[3]s;
      everything is removed afterwards
  %[1]s quickstart --sink kafka://HOST:9092
      delivers to a new topic of your broker; nats:// takes a new stream, amqp:// a new exchange
  %[1]s quickstart --keep
      keeps the outbox, so that you can look at the table

For a table of your own this prints the configuration, with the reason of each guess:

  %[1]s init --from-table TABLE --source %[2]s://USER@HOST/DATABASE

The tables of FlowCatalyst need four lines in sluicebox.yaml:

  source:
    url: %[2]s://relay@db.example/shop
  flowcatalyst:
    api-base-url: https://platform.example

  %[1]s run -c sluicebox.yaml
`, command, strings.ToLower(scheme), other)
}

// keptText lists the kept objects, with commands to inspect, continue and remove them.
func (q *quickstart) keptText() string {
	command, file := shellWord(q.env.Command), shellWord(q.configFile)
	remove := "rm -r " + shellWord(q.folder)
	if q.dbInfo.removeCommand != "" {
		remove = q.dbInfo.removeCommand + "\n  " + remove
	}
	if q.dbInfo.remainsNote != "" {
		remove += "\n" + q.dbInfo.remainsNote
	}
	again := `Continue. The receiver ended with the quickstart, so name another:
  SLUICEBOX_FLOWCATALYST_API_BASE_URL=http://127.0.0.1:8080 `
	if q.opts.Sink != "" {
		again = "Continue:\n  "
		remove += "\nThe topic " + q.dbInfo.name + " of the broker stays too."
	}
	return fmt.Sprintf(`Kept: %s
Configuration: %s

Look at the table:
  %s
%s%s run -c %s
Remove it:
  %s
`, q.dbInfo.description, q.configFile, q.dbInfo.inspectCommand, again, command, file, remove)
}
