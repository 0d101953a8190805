package main

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/cmd/internal/app"
)

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
		for _, line := range append(lines[1:], remedyLines(f.Remedy)...) {
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
		list[i] = jsonFinding{Part: f.Part, Grade: f.Grade.String(), Subject: f.Subject, Text: f.Text, Remedy: f.Remedy, Statements: statementsOf(f.Remedy), Unreachable: f.Unreachable}
	}
	n := countFindings(found)
	return p.json(struct {
		Findings    []jsonFinding `json:"findings"`
		Faults      int           `json:"faults"`
		Unreachable int           `json:"unreachable"`
		Advice      int           `json:"advice"`
	}{list, n.faults, n.unreachable, n.advice})
}
