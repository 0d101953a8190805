package main

import (
	"io"
	"os"
	"strings"
)

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
