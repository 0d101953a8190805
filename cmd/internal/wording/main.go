// Command wording counts phrases in the comments of Go files: some hide the subject of a
// sentence, others give a reason or an example. It prints their frequency per 1000 words
// and enforces no limit.
//
//	git ls-files '*.go' | go run ./cmd/internal/wording
package main

import (
	"bufio"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"os"
	"regexp"
	"strings"
)

// phrase is a counted phrase with the wanted frequency per 1000 words.
type phrase struct {
	name, goal string
	pattern    *regexp.Regexp
}

func phrases() []phrase {
	return []phrase{
		{"what is", "below 0.5", regexp.MustCompile(`(?i)\bwhat (is|was|are|it|the)\b`)},
		{"those that, one that", "below 0.3", regexp.MustCompile(`(?i)\b(those|ones?) (that|which|who)\b`)},
		{"is told, tells", "below 0.2", regexp.MustCompile(`(?i)\b((is|are|be) told|tells?)\b`)},
		{"because, for example", "above 1", regexp.MustCompile(`(?i)\b(because\b|for example\b|e\.g\.)`)},
	}
}

var word = regexp.MustCompile(`[A-Za-z][\w'-]*`)

func main() {
	if err := count(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "wording:", err)
		os.Exit(1)
	}
}

// count reads names of Go files, one per line, and prints a row for each phrase. It skips
// tests, because readers of a package see only its own comments.
func count(names io.Reader, out io.Writer) error {
	var text strings.Builder
	for lines := bufio.NewScanner(names); lines.Scan(); {
		if name := lines.Text(); !strings.HasSuffix(name, "_test.go") {
			if err := comments(name, &text); err != nil {
				return err
			}
		}
	}
	all := strings.Join(strings.Fields(text.String()), " ")
	words := len(word.FindAllString(all, -1))
	if words == 0 {
		return fmt.Errorf("no comment in the files that standard input names")
	}
	_, _ = fmt.Fprintf(out, "%d words of comments; in 1000 of them:\n", words)
	for _, p := range phrases() {
		n := len(p.pattern.FindAllString(all, -1))
		_, _ = fmt.Fprintf(out, "  %-22s %5.2f  (goal: %s)\n", p.name, 1000*float64(n)/float64(words), p.goal)
	}
	return nil
}

// comments appends the comments of a file to text, without directives.
func comments(name string, text *strings.Builder) error {
	f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, group := range f.Comments {
		text.WriteString(group.Text())
		text.WriteByte('\n')
	}
	return nil
}
