package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

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

const (
	// doctorWidth is the width at which prose is wrapped. Statements are not wrapped.
	doctorWidth = 80
	// doctorIndent is the width of the column of grades.
	doctorIndent = 10
)

// printFindings prints findings for people: by part, each with its grade and remedy, and
// a summary.
func (p *program) printFindings(found []app.Finding) error {
	var b strings.Builder
	part := ""
	for i := range found {
		f := &found[i]
		if f.Part != part {
			if part != "" {
				b.WriteByte('\n')
			}
			part = f.Part
			b.WriteString(part + "\n")
		}
		text := oneLine(f.Text)
		if f.Subject != "" {
			text = oneLine(f.Subject) + ": " + text
		}
		lines := wrap(text, doctorWidth-doctorIndent, "")
		fmt.Fprintf(&b, "  %-*s%s\n", doctorIndent-2, f.Grade, lines[0])
		for _, line := range slices.Concat(lines[1:], remedyLines(f.Remedy), configurationLines(f.Configuration)) {
			b.WriteString(strings.Repeat(" ", doctorIndent) + line + "\n")
		}
	}

	fmt.Fprintf(&b, "\n%s\n", countFindings(found))
	_, err := io.WriteString(p.stdout, b.String())
	return err
}

// remedyLines returns the lines of a remedy. It wraps prose and comments but not
// statements.
func remedyLines(remedy string) (lines []string) {
	for line := range strings.Lines(remedy) {
		line = strings.TrimRight(line, "\n")
		switch {
		case isStatement(line):
			lines = append(lines, strings.Map(printable, line))
		case commentPrefix(line) != "":
			lines = append(lines, wrap(oneLine(line), doctorWidth-doctorIndent, commentPrefix(line))...)
		case line != "":
			lines = append(lines, wrap(oneLine(line), doctorWidth-doctorIndent, "")...)
		}
	}
	return lines
}

// configurationLines returns the lines of a proposed configuration, which are not wrapped, so
// that they can be copied.
func configurationLines(text string) (lines []string) {
	if text == "" {
		return nil
	}
	lines = []string{"or write the outbox as the table is:"}
	for line := range strings.Lines(text) {
		lines = append(lines, strings.Map(printable, strings.TrimRight(line, "\n")))
	}
	return lines
}

// isStatement reports whether a line of a remedy can be run as it is.
func isStatement(line string) bool {
	return strings.HasSuffix(line, ";") && commentPrefix(line) == ""
}

// commentPrefix returns the comment prefix of a line, of SQL or of MongoDB's shell, or ""
// if it is no comment.
func commentPrefix(line string) string {
	for _, mark := range []string{"-- ", "// "} {
		if strings.HasPrefix(line, mark) {
			return mark
		}
	}
	return ""
}

// wrap breaks a text at blanks into lines of a width. All lines but the first start with
// prefix.
func wrap(text string, width int, prefix string) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= width:
			line += " " + word
		default:
			lines = append(lines, line)
			line = prefix + word
		}
	}

	return append(lines, line)
}

// jsonFinding is a finding for programs. Statements are the statements in Remedy.
type jsonFinding struct {
	Part        string          `json:"part"`
	Grade       string          `json:"grade"` // ok, advice or fault
	Subject     string          `json:"subject"`
	Text        string          `json:"text"`
	Remedy      string          `json:"remedy,omitempty"`
	Statements  []jsonStatement `json:"statements,omitempty"`
	Unreachable bool            `json:"unreachable,omitempty"`
	// Configuration is YAML.
	Configuration string `json:"configuration,omitempty"`
}

// jsonStatement is a statement that can be run as it is. Condition says by whom, when, or
// in which case. A statement without a condition is always safe to run.
type jsonStatement struct {
	SQL       string `json:"sql"`
	Condition string `json:"condition,omitempty"`
}

// statementsOf returns the statements of a remedy. A comment above several statements
// applies to all of them.
func statementsOf(remedy string) (list []jsonStatement) {
	condition, above := "", false
	for line := range strings.Lines(remedy) {
		line = strings.TrimRight(line, "\n")
		if isStatement(line) {
			list, above = append(list, jsonStatement{line, condition}), false
			continue
		}
		if !above {
			condition, above = "", true
		}
		condition = strings.TrimSpace(condition + " " + strings.TrimPrefix(line, commentPrefix(line)))
	}
	return list
}

// jsonFindings prints findings for programs.
func (p *program) jsonFindings(found []app.Finding) error {
	list := make([]jsonFinding, len(found))
	for i := range found {
		f := &found[i]
		list[i] = jsonFinding{Part: f.Part, Grade: f.Grade.String(), Subject: f.Subject, Text: f.Text, Remedy: f.Remedy, Statements: statementsOf(f.Remedy), Unreachable: f.Unreachable, Configuration: f.Configuration}
	}
	n := countFindings(found)
	return p.json(struct {
		Findings    []jsonFinding `json:"findings"`
		Faults      int           `json:"faults"`
		Unreachable int           `json:"unreachable"`
		Advice      int           `json:"advice"`
	}{list, n.faults, n.unreachable, n.advice})
}
