package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store"
)

// minLastColumn is the minimum width of the last column.
const minLastColumn = 20

// printList prints a list as JSON, or as a table, or a note that it is empty.
func (p *program) printList(asJSON bool, list any, empty string, header []string, lines [][]string) error {
	if asJSON {
		return p.json(list)
	}
	if len(lines) == 0 {
		p.note("%s", empty)
		return nil
	}
	return printTable(p.stdout, header, lines)
}

// tableRows returns a row for each element of a list.
func tableRows[T any](list []T, row func(one *T) []string) [][]string {
	lines := make([][]string, len(list))
	for i := range list {
		lines[i] = row(&list[i])
	}
	return lines
}

// printTable prints rows in columns. On a terminal it cuts only the last column, which is
// free text, to the width.
func printTable(to io.Writer, header []string, lines [][]string) error {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{header}, lines...) {
		if _, err := fmt.Fprintln(w, strings.Join(row, "\t")); err != nil {
			return err
		}
	}

	if err := w.Flush(); err != nil {
		return err
	}
	text := b.String()
	if width := terminalWidth(to); width > 0 {
		first, _, _ := strings.Cut(text, "\n")
		last := utf8.RuneCountInString(first) - utf8.RuneCountInString(header[len(header)-1])
		text = cutLines(text, max(width, last+minLastColumn))
	}

	_, err := io.WriteString(to, text)
	return err
}

// terminalWidth returns the width of a terminal, or 0 for other outputs.
func terminalWidth(to io.Writer) (width int) {
	if f, ok := to.(*os.File); ok {
		width, _, _ = terminalSize(f)
	}
	return width
}

// isTerminal reports whether an input or output is a terminal.
func isTerminal(stream any) (terminal bool) {
	if f, ok := stream.(*os.File); ok {
		_, _, terminal = terminalSize(f)
	}
	return terminal
}

func cutLines(text string, width int) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if runes := []rune(line); len(runes) > width {
			line = string(runes[:width-1]) + "…"
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

// oneLine returns a text for the end of a line, without control characters.
func oneLine(text string) string {
	return strings.Map(printable, strings.Join(strings.Fields(text), " "))
}

func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return unicode.ReplacementChar
}

// printableLines replaces what does not print, except line breaks and tabs. An argument may come from
// a row.
func printableLines(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		return printable(r)
	}, text)
}

// quoteCell returns a name in full, quoted if it would be ambiguous.
func quoteCell(name string) string {
	plain := name != "" && name != "-" && !strings.HasPrefix(name, "(") && !strings.HasPrefix(name, `"`) &&
		!strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) || r == ' ' })
	if plain {
		return name
	}
	return strconv.Quote(name)
}

// groupCell returns a group, or (none) for rows without one.
func groupCell(group store.Group) string {
	if !group.Valid {
		return group.String()
	}
	return quoteCell(group.Name)
}

// ageText returns the time since t in its largest unit.
func ageText(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return durationText(now.Sub(t))
}

func durationText(d time.Duration) string {
	switch d = max(d, 0); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

// rowsText formats a number of rows.
func rowsText(n int) string {
	if n == 1 {
		return "1 row"
	}
	return fmt.Sprintf("%d rows", n)
}

// note writes a line to standard error.
func (p *program) note(format string, args ...any) {
	_, _ = io.WriteString(p.stderr, printableLines(fmt.Sprintf(format+"\n", args...))) // there is no other output for the error
}

// json prints a result as indented JSON.
func (p *program) json(v any) error { return writeJSON(p.stdout, v, "  ") }

// writeJSON writes a value as JSON, in one line if indent is empty. It escapes everything
// that does not print, so that a value cannot control the terminal. The output decodes to
// the same value.
func writeJSON(to io.Writer, v any, indent string) error {
	var plain bytes.Buffer
	enc := json.NewEncoder(&plain)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := jsonWriter{to}.Write(plain.Bytes())
	return err
}

// jsonWriter writes JSON and escapes everything that does not print. Each write is whole values.
type jsonWriter struct{ to io.Writer }

func (w jsonWriter) Write(plain []byte) (int, error) {
	var text bytes.Buffer
	for _, r := range string(plain) { // JSON is valid UTF-8
		switch {
		case r == '\n' || unicode.IsPrint(r):
			text.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&text, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&text, `\u%04x`, r)
		}
	}
	if _, err := w.to.Write(text.Bytes()); err != nil {
		return 0, err
	}
	return len(plain), nil
}

// screen is a terminal on which a text replaces the previous one.
type screen struct {
	terminal *os.File
	begun    bool
}

// newScreen returns nil if the output is no terminal.
func newScreen(to io.Writer) *screen {
	if !isTerminal(to) {
		return nil
	}
	return &screen{terminal: to.(*os.File)}
}

// draw shows a text from the upper left corner, cut to the screen. It overwrites line by
// line to avoid flicker.
func (s *screen) draw(text string) error {
	width, height, _ := terminalSize(s.terminal)
	if width > 0 {
		text = cutLines(text, width)
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if height > 1 && len(lines) >= height {
		lines = lines[:height-1] // the last line is the cursor's
	}

	var b strings.Builder
	if !s.begun {
		b.WriteString("\x1b[2J")
		s.begun = true
	}

	b.WriteString("\x1b[H")
	for _, line := range lines {
		b.WriteString(line + "\x1b[K\n")
	}

	b.WriteString("\x1b[J")
	_, err := io.WriteString(s.terminal, b.String())
	return err
}

// line replaces the terminal's current line with a text, cut to the width.
func (s *screen) line(text string) error {
	if width := terminalWidth(s.terminal); width > 1 {
		text = strings.TrimSuffix(cutLines(text, width-1), "\n") // the last column is the cursor's
	}
	_, err := io.WriteString(s.terminal, "\r"+text+"\x1b[K")
	return err
}

// fail reports an error and returns its exit code.
func (p *program) fail(err error) int {
	var faults *config.Error
	if errors.As(err, &faults) {
		p.printProblem(err.Error(), "")
		return exitConfig
	}

	code := exitFailed
	for _, one := range joinedErrors(err) {
		text, remedy := one.Error(), ""
		var setup *store.SetupError
		if errors.As(one, &setup) {
			code, remedy = exitConfig, setup.Remedy
			text = strings.TrimSuffix(text, "; "+remedy)
		}
		var own *commandError
		if errors.As(one, &own) {
			code, text, remedy = own.code, own.problem, own.remedy
		}
		p.printProblem(text, remedy)
	}

	return code
}

// joinedErrors returns the parts of a joined error.
func joinedErrors(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || strings.Count(err.Error(), "\n") == 0 {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, joinedErrors(e)...)
	}
	return all
}

// printProblem writes one block: the problem, then the remedy on its own line.
func (p *program) printProblem(problem, remedy string) {
	block := "sluicebox: " + problem + "\n"
	if remedy != "" {
		block += "  " + strings.ReplaceAll(remedy, "\n", "\n  ") + "\n"
	}
	_, _ = io.WriteString(p.stderr, printableLines(block)) // there is no other output for the error
}
