package main

import (
	"io"
	"os"
	"strings"
)

// screen is a terminal on which one text takes the place of another.
type screen struct {
	terminal *os.File
	begun    bool
}

// newScreen returns nil for what is no terminal.
func newScreen(to io.Writer) *screen {
	if f, ok := to.(*os.File); ok {
		if _, terminal := terminalColumns(f); terminal {
			return &screen{terminal: f}
		}
	}
	return nil
}

// draw shows a text from the upper left corner on, cut to what there is room for.
// Line by line is overwritten, so that nothing flickers.
func (s *screen) draw(text string) error {
	if width := terminalWidth(s.terminal); width > 0 {
		text = cutLines(text, width)
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if height := terminalHeight(s.terminal); height > 1 && len(lines) >= height {
		lines = lines[:height-1] // the cursor takes the last
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

// line shows a text in the terminal's current line, in place of the one before, cut to
// the width.
func (s *screen) line(text string) error {
	if width := terminalWidth(s.terminal); width > 1 {
		text = strings.TrimSuffix(cutLines(text, width-1), "\n") // the cursor takes the last column
	}
	_, err := io.WriteString(s.terminal, "\r"+text+"\x1b[K")
	return err
}
