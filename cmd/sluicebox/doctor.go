package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
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
	return `It changes nothing and may run beside a relay. It probes sinks and delivers nothing. Of several
sources it checks all, and shows what several of them have in common once.

Exit codes: 0 no fault (advice does not count); 78 a fault that the configuration, a grant or
sluicebox init fixes; 1 the database or a sink is unreachable.`
}

// Run runs all checks and prints the findings.
func (c *doctorCommand) Run(ctx context.Context, p *program) error {
	var found []app.Finding
	var names []string // of several sources
	cfg, err := c.loadAll(p)
	var faults *config.Error
	switch {
	case errors.As(err, &faults):
		found = configFindings(faults)
	case err != nil:
		return err
	default:
		found, names = app.Doctor(ctx, cfg, currentVersion().Version), cfg.SourceNames()
	}

	if ctx.Err() != nil {
		return ctx.Err() // the findings are incomplete
	}
	print := p.printFindings
	if c.JSON {
		print = p.jsonFindings
	}

	if err := print(found, names); err != nil {
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
		n.add(&found[i])
	}
	return n
}

func (n *findingCounts) add(f *app.Finding) {
	switch {
	case f.Grade == store.GradeFault && f.Unreachable:
		n.unreachable++
	case f.Grade == store.GradeFault:
		n.faults++
	case f.Grade == store.GradeAdvice:
		n.advice++
	}
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
// a summary. names are the sources of a process with several; nil for one.
func (p *program) printFindings(found []app.Finding, names []string) error {
	var b strings.Builder
	shared, own := []*app.Finding{}, []*app.Finding{}
	for i := range found {
		if found[i].Source == "" {
			shared = append(shared, &found[i])
		} else {
			own = append(own, &found[i])
		}
	}
	writeFindings(&b, shared)
	if names != nil {
		writeSources(&b, own, names)
	}
	fmt.Fprintf(&b, "\n%s\n", countFindings(found))
	_, err := io.WriteString(p.stdout, b.String())
	return err
}

// writeFindings writes findings by part.
func writeFindings(b *strings.Builder, found []*app.Finding) {
	part := ""
	for _, f := range found {
		if f.Part != part {
			if part != "" {
				b.WriteByte('\n')
			}
			part = f.Part
			b.WriteString(part + "\n")
		}
		writeFinding(b, f, "")
	}
}

// writeFinding writes a finding, and below its text a line about where it is, if not "".
func writeFinding(b *strings.Builder, f *app.Finding, where string) {
	lines := wrap(findingText(f), doctorWidth-doctorIndent, "")
	fmt.Fprintf(b, "  %-*s%s\n", doctorIndent-2, f.Grade, lines[0])
	rest := lines[1:]
	if where != "" {
		rest = append(rest, wrap(where, doctorWidth-doctorIndent, "")...)
	}
	for _, line := range slices.Concat(rest, remedyLines(f.Remedy), configurationLines(f.Configuration)) {
		b.WriteString(strings.Repeat(" ", doctorIndent) + line + "\n")
	}
}

// findingText returns the text of a finding in one line, behind its subject.
func findingText(f *app.Finding) string {
	text := oneLine(f.Text)
	if f.Subject != "" {
		text = oneLine(f.Subject) + ": " + text
	}
	return text
}

// sourceVerdict is what doctor found of one source.
type sourceVerdict struct {
	name  string
	n     findingCounts
	first *app.Finding // the first fault; nil without one
}

// grade is the worst of the source.
func (v *sourceVerdict) grade() string {
	switch {
	case v.n.faults > 0:
		return "fault"
	case v.n.unreachable > 0:
		return "unreachable"
	case v.n.advice > 0:
		return "advice"
	}
	return "ok"
}

// sourceVerdicts returns the verdicts of all sources, the worst first.
func sourceVerdicts(found []*app.Finding, names []string) []sourceVerdict {
	all, at := make([]sourceVerdict, len(names)), make(map[string]int, len(names))
	for i, name := range names {
		all[i].name, at[name] = name, i
	}
	for _, f := range found {
		v := &all[at[f.Source]]
		v.n.add(f)
		if v.first == nil && f.Grade == store.GradeFault {
			v.first = f
		}
	}
	slices.SortStableFunc(all, func(a, b sourceVerdict) int {
		return cmp.Or(cmp.Compare(b.n.faults, a.n.faults), cmp.Compare(b.n.unreachable, a.n.unreachable), cmp.Compare(b.n.advice, a.n.advice))
	})
	return all
}

// writeSources writes the faults and advice of sources, each once, then a line for each source with a
// fault, the worst first.
func writeSources(b *strings.Builder, found []*app.Finding, names []string) {
	b.WriteString("\nsources\n")
	for _, same := range groupFindings(found) {
		where := "in " + firstNames(same, maxShownSources)
		if len(same) > 1 {
			where += " (--source-name NAME shows that of one)"
		}
		writeFinding(b, same[0], where)
	}
	all := sourceVerdicts(found, names)
	failing := slices.IndexFunc(all, func(v sourceVerdict) bool { return v.first == nil })
	if failing < 0 {
		failing = len(all)
	}
	counts := map[string]int{}
	for i := range all {
		counts[all[i].grade()]++
	}
	if failing > 0 {
		b.WriteString("\n")
		_ = printTable(b, []string{"SOURCE", "GRADE", "FAULTS", "ADVICE", "FIRST"}, tableRows(all[:failing], func(v *sourceVerdict) []string {
			return []string{v.name, v.grade(), strconv.Itoa(v.n.faults + v.n.unreachable), strconv.Itoa(v.n.advice), findingText(v.first)}
		})) // a builder never fails
	}
	fmt.Fprintf(b, "\n%d sources: %d with faults, %d unreachable, %d with advice, %d ok\n", len(all), counts["fault"], counts["unreachable"], counts["advice"], counts["ok"])
}

// maxShownSources is the most sources that a finding names.
const maxShownSources = 5

// firstNames lists the sources of findings.
func firstNames(found []*app.Finding, most int) string {
	var names []string
	for _, f := range found[:min(most, len(found))] {
		names = append(names, f.Source)
	}
	text := strings.Join(names, ", ")
	if more := len(found) - len(names); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// groupFindings returns the faults and the advice of sources, the worst first. Findings that differ
// only in the name of the source are together.
func groupFindings(found []*app.Finding) (groups [][]*app.Finding) {
	type kind struct {
		rank          int
		subject, text string
	}
	rank := func(f *app.Finding) int {
		if f.Grade == store.GradeFault && f.Unreachable {
			return 1
		}
		return map[store.Grade]int{store.GradeFault: 0, store.GradeAdvice: 2}[f.Grade]
	}
	at := map[kind]int{}
	for _, f := range found {
		if f.Grade == store.GradeOK {
			continue
		}
		k := kind{rank(f), f.Subject, strings.ReplaceAll(f.Text+f.Remedy+f.Configuration, f.Source, "\x00")}
		i, known := at[k]
		if !known {
			i, at[k] = len(groups), len(groups)
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], f)
	}
	slices.SortStableFunc(groups, func(a, b []*app.Finding) int { return cmp.Compare(rank(a[0]), rank(b[0])) })
	return groups
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
	Source      string          `json:"source,omitempty"` // "" if the sources of a process share the part
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

// jsonSource is the verdict of one of several sources. Grade is fault, unreachable, advice or ok.
type jsonSource struct {
	Name        string `json:"name"`
	Grade       string `json:"grade"`
	Faults      int    `json:"faults"`
	Unreachable int    `json:"unreachable"`
	Advice      int    `json:"advice"`
}

// jsonFindings prints findings for programs.
func (p *program) jsonFindings(found []app.Finding, names []string) error {
	list, own := make([]jsonFinding, len(found)), []*app.Finding{}
	for i := range found {
		f := &found[i]
		if f.Source != "" {
			own = append(own, f)
		}
		list[i] = jsonFinding{Source: f.Source, Part: f.Part, Grade: f.Grade.String(), Subject: f.Subject, Text: f.Text, Remedy: f.Remedy, Statements: statementsOf(f.Remedy), Unreachable: f.Unreachable, Configuration: f.Configuration}
	}
	var sources []jsonSource
	for _, v := range sourceVerdicts(own, names) {
		sources = append(sources, jsonSource{v.name, v.grade(), v.n.faults, v.n.unreachable, v.n.advice})
	}
	n := countFindings(found)
	return p.json(struct {
		Findings    []jsonFinding `json:"findings"`
		Faults      int           `json:"faults"`
		Unreachable int           `json:"unreachable"`
		Advice      int           `json:"advice"`
		Sources     []jsonSource  `json:"sources,omitempty"`
	}{list, n.faults, n.unreachable, n.advice, sources})
}
