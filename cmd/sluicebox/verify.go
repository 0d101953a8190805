package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/cmd/internal/app"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/cmd/internal/verify"
	"github.com/sluicebox/sluicebox/cmd/internal/verify/audit"
)

// verifyCommand is `sluicebox verify`.
type verifyCommand struct {
	configFlag
	Receipts []string      `required:"" sep:"none" placeholder:"FILE" help:"Receipts of the receiver: a file, - for standard input, or kafka:SINK for the topic of a sink. ROUTE=FILE for each route. May be repeated."`
	Outbox   string        `placeholder:"NAME" help:"Rows of one outbox. Default: all outboxes without routes."`
	Since    timeFlag      `placeholder:"TIME" help:"Rows inserted at this time or later: 2026-01-31T15:04:05Z, or 2h for two hours ago. Default: all; with --every, 24h."`
	Until    timeFlag      `placeholder:"TIME" help:"Rows inserted before this time."`
	Settle   time.Duration `default:"2m" placeholder:"DURATION" help:"How long a row may be on its way before it is lost. Default: ${default}."`
	Slack    time.Duration `default:"0s" placeholder:"DURATION" help:"Ignore the order of rows inserted within this time of each other, for transactions that overlap. Default: ${default}."`
	Sums     bool          `help:"Compare the sums of the receipts with the payloads in the table, which are read for it."`
	IDPrefix string        `name:"id-prefix" placeholder:"TEXT" help:"The id-prefix of the sink, which the ids of receipts begin with."`
	IDHeader string        `name:"id-header" placeholder:"NAME" help:"Header of the id in records of Kafka. Default: ce_id or id."`
	Limit    int           `default:"20" placeholder:"N" help:"The most ids to print of each finding. Default: ${default}."`
	Every    time.Duration `placeholder:"DURATION" help:"Verify again and again, and follow the receipts."`
	Listen   string        `placeholder:"ADDRESS" help:"With --every: serve /metrics for Prometheus here."`
	JSON     bool          `name:"json" help:"Print JSON; with --every, a line for each round."`
}

// Help is shown under `sluicebox verify --help`.
func (*verifyCommand) Help() string {
	return `Compares the rows of the outboxes with the receipts of their receiver, and exits with 1 if a row
is lost, out of order, COMPLETED without an arrival, or arrived with another body. Duplicates are
listed, and are no fault. A receipt is a line of JSON: {"id":"17","at":"2026-01-31T15:04:05Z"}.
It writes nothing. See deploy/verify.md.`
}

// Validate is called before Run.
func (c *verifyCommand) Validate() error {
	switch {
	case c.Every < 0, c.Settle < 0, c.Slack < 0:
		return errors.New("--every, --settle and --slack must not be negative")
	case c.Listen != "" && c.Every == 0:
		return errors.New("--listen needs --every")
	case !c.Since.IsZero() && !c.Until.IsZero() && !c.Since.Before(c.Until.Time):
		return errors.New("--since is not before --until: no row matches")
	}
	return checkLimit(c.Limit)
}

// defaultVerifyWindow bounds the memory of a program that verifies continuously.
const defaultVerifyWindow = 24 * time.Hour

// Run verifies once, or until the context ends.
func (c *verifyCommand) Run(ctx context.Context, p *program) error {
	cfg, err := c.load(p)
	if err != nil {
		return err
	}
	if _, err := outboxNames(cfg, c.Outbox); err != nil {
		return err
	}
	if c.Every > 0 && c.Since.IsZero() {
		c.Since.Time = time.Now().Add(-defaultVerifyWindow)
	}
	v := c.verification(p)
	audits, closed, err := app.OpenAudits(cfg, v)
	var request *sluicebox.RequestError
	if errors.As(err, &request) {
		return usageError(request.Problem, "")
	}
	if err != nil {
		return err
	}
	defer closed()
	if c.Every > 0 {
		return c.follow(ctx, p, cfg, audits, v.Window)
	}
	var results []*audit.Result
	for _, a := range audits {
		one, err := a.Once(ctx, v.Window, p.noteWaiting(c.Settle))
		if err != nil {
			return err
		}
		results = append(results, one)
	}
	return c.print(p, results)
}

func (c *verifyCommand) verification(p *program) *app.Verification {
	return &app.Verification{
		Options:  audit.Options{Options: verify.Options{Slack: c.Slack.Nanoseconds(), MaxFindings: c.Limit}, Settle: c.Settle, Sums: c.Sums},
		Window:   audit.Window{Since: c.Since.Time, Until: c.Until.Time},
		Receipts: c.Receipts, Outbox: c.Outbox, IDPrefix: c.IDPrefix, IDHeader: c.IDHeader, Stdin: p.stdin,
	}
}

// noteWaiting returns a function that says once why the command waits.
func (p *program) noteWaiting(settle time.Duration) func(rows int) {
	said := false
	return func(rows int) {
		if !said {
			p.note("%d rows have not arrived and are not settled; waiting for up to %s (--settle)", rows, settle)
		}
		said = true
	}
}

// follow verifies at the interval, and serves the metrics.
func (c *verifyCommand) follow(ctx context.Context, p *program, cfg *config.Config, audits []*audit.Audit, w audit.Window) error {
	log, metrics := p.logger(cfg.Settings.Log), app.NewVerifyMetrics()
	group, ctx := errgroup.WithContext(ctx)
	ctx, end := context.WithCancel(ctx)
	defer end()
	if c.Listen != "" {
		group.Go(func() error {
			return metrics.Serve(ctx, c.Listen, func(at net.Addr) { log.Info("metrics served", "address", at.String()) })
		})
	}
	faulty := false
	group.Go(func() error {
		defer end()
		return app.VerifyEvery(ctx, audits, w, c.Every, log, func(results []*audit.Result, err error) error {
			metrics.Observe(results, err)
			if err != nil {
				return nil
			}
			faulty = anyFaulty(results)
			for _, r := range results {
				logResult(log, r)
			}
			if c.JSON {
				return writeJSON(p.stdout, verifyOutput{faulty, results}, "")
			}
			return nil
		})
	})
	if err := group.Wait(); err != nil {
		return err
	}
	if faulty {
		return &commandError{code: exitFailed, problem: "the last verification found faults"}
	}
	return nil
}

func logResult(log *slog.Logger, r *audit.Result) {
	attrs := []any{"target", r.Target, "rows", r.Rows, "arrived", r.Arrived, "waiting", r.Waiting}
	for _, k := range verify.Kinds() {
		attrs = append(attrs, string(k), r.Count(k))
	}
	if !r.Faulty() {
		log.Info("rows verified", attrs...)
		return
	}
	log.Error("verification found faults", append(attrs, "id", r.Findings[0].ID)...)
}

func anyFaulty(results []*audit.Result) bool {
	for _, r := range results {
		if r.Faulty() {
			return true
		}
	}
	return false
}

// verifyOutput is the output of --json.
type verifyOutput struct {
	Faulty  bool            `json:"faulty"`
	Targets []*audit.Result `json:"targets"`
}

// print prints the results. The error sets the exit code.
func (c *verifyCommand) print(p *program, results []*audit.Result) error {
	faulty := anyFaulty(results)
	if c.JSON {
		if err := p.json(verifyOutput{faulty, results}); err != nil {
			return err
		}
	}
	for _, r := range results {
		if c.JSON {
			break
		}
		if err := printResult(p, r); err != nil {
			return err
		}
	}
	if faulty {
		return &commandError{code: exitFailed, problem: "rows are not as they should be", remedy: "see deploy/verify.md for the findings; sluicebox explain ID shows what the relay knows of a row"}
	}
	return nil
}

func printResult(p *program, r *audit.Result) error {
	var b strings.Builder
	if r.Target != "" {
		fmt.Fprintf(&b, "%s\n", r.Target)
	}
	fmt.Fprintf(&b, "%d rows: %d COMPLETED, %d FAILED, %d waiting; %d arrived\n", r.Rows, r.Completed, r.Failed, r.Waiting, r.Arrived)
	if r.Unknown > 0 {
		fmt.Fprintf(&b, "%d ids arrived whose rows are not in the outbox or not in the window\n", r.Unknown)
	}
	for _, k := range verify.Kinds() {
		fmt.Fprintf(&b, "%-16s %d\n", findingName(k), r.Count(k))
	}
	for _, note := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", oneLine(note))
	}
	if _, err := p.stdout.Write([]byte(b.String())); err != nil || len(r.Findings) == 0 {
		return err
	}
	err := printTable(p.stdout, []string{"FINDING", "ID", "ARRIVALS", "LANE"}, tableRows(r.Findings, func(f *verify.Finding) []string {
		lane := quoteCell(f.Lane)
		if f.Behind != "" {
			lane += ", behind " + quoteCell(f.Behind)
		}
		if f.Lane == "" {
			lane = ""
		}
		return []string{findingName(f.Kind), quoteCell(f.ID), strconv.Itoa(f.Arrivals), lane}
	}))
	if printed := printedOf(r.Findings); slices.ContainsFunc(verify.Kinds(), func(k verify.Kind) bool { return r.Count(k) > printed[k] && k != verify.Duplicate }) {
		p.note("not all findings are shown; --limit N shows up to N of each")
	}
	return err
}

// printedOf counts the findings of each kind.
func printedOf(found []verify.Finding) map[verify.Kind]int {
	n := map[verify.Kind]int{}
	for i := range found {
		n[found[i].Kind]++
	}
	return n
}

func findingName(k verify.Kind) string { return strings.ReplaceAll(string(k), "_", " ") }
