package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/sluicebox/sluicebox/cmd/internal/app"
	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store"
)

// doctorCommand is `sluicebox doctor`.
type doctorCommand struct {
	configFlag
	JSON bool `name:"json" help:"Print JSON."`
}

// Help is shown under `sluicebox doctor --help`.
func (*doctorCommand) Help() string {
	return `It changes nothing and may run beside a relay. It probes sinks and delivers nothing.

Exit codes: 0 no fault (advice does not count); 78 a fault that the configuration, a grant or
sluicebox init fixes; 1 the database or a sink is unreachable.`
}

// Run runs all checks and prints the findings.
func (c *doctorCommand) Run(ctx context.Context, p *program) error {
	var found []app.Finding
	cfg, err := c.load(p)
	var faults *config.Error
	switch {
	case errors.As(err, &faults):
		found = configFindings(faults)
	case err != nil:
		return err
	default:
		found = app.Doctor(ctx, cfg, currentVersion().Version)
	}

	if ctx.Err() != nil {
		return ctx.Err() // the findings are incomplete
	}
	print := p.printFindings
	if c.JSON {
		print = p.jsonFindings
	}

	if err := print(found); err != nil {
		return err
	}
	return doctorError(found)
}

// configFindings returns the problems of an invalid configuration as findings.
func configFindings(faults *config.Error) []app.Finding {
	found := make([]app.Finding, len(faults.Problems))
	for i, problem := range faults.Problems {
		found[i] = app.Finding{Part: app.PartConfiguration, Finding: store.Finding{
			Grade: store.GradeFault, Subject: problem.Where, Text: strings.TrimPrefix(problem.String(), problem.Where+": "),
		}}
	}
	return found
}

// findingCounts counts findings by kind.
type findingCounts struct{ faults, unreachable, advice int }

func countFindings(found []app.Finding) (n findingCounts) {
	for i := range found {
		switch f := &found[i]; {
		case f.Grade == store.GradeFault && f.Unreachable:
			n.unreachable++
		case f.Grade == store.GradeFault:
			n.faults++
		case f.Grade == store.GradeAdvice:
			n.advice++
		}
	}
	return n
}

// String returns the summary line.
func (n findingCounts) String() string {
	var parts []string
	for _, part := range []struct {
		n         int
		one, many string
	}{
		{n.faults, "1 fault", "%d faults"},
		{n.unreachable, "1 unreachable", "%d unreachable"},
		{n.advice, "1 piece of advice", "%d pieces of advice"},
	} {
		switch {
		case part.n == 1:
			parts = append(parts, part.one)
		case part.n > 1:
			parts = append(parts, fmt.Sprintf(part.many, part.n))
		}
	}

	switch {
	case len(parts) == 0:
		return "No problems found."
	case n.faults+n.unreachable == 0:
		return "No fault, " + strings.Join(parts, ", ") + "."
	}

	return strings.Join(parts, ", ") + "."
}

// doctorError returns the error with the exit code if there is a fault.
func doctorError(found []app.Finding) error {
	n := countFindings(found)
	text := strings.TrimSuffix(n.String(), ".")
	switch {
	case n.faults > 0:
		return &commandError{code: exitConfig, problem: "not ready: " + text, remedy: "fix the faults from the top, then run doctor again"}
	case n.unreachable > 0:
		return &commandError{code: exitFailed, problem: "not ready: " + text}
	}
	return nil
}
