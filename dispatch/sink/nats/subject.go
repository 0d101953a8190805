package nats

import (
	"fmt"
	"strings"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/ascii"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/template"
)

const (
	// maxSubject is the maximum length of a subject in bytes. A server ends the connection of a
	// client whose line exceeds max_control_line, 4096 bytes by default, and that would look like
	// an outage.
	maxSubject = 2 << 10

	// notInSubject are the characters of a value that are encoded although they are visible:
	// separators and wildcards, the beginning of the subjects of the system, and the quotes around
	// a subject in an error of the server. Percent signs are encoded too, so different values stay
	// different.
	notInSubject = ".*>$\""

	// notInStream are the characters that no name of a stream has (server, isValidName).
	notInStream = " \t\r\n\f.*>/\\"
)

// checkSubject returns the fault of a template of subjects, "" if it has none.
func checkSubject(text string) string {
	if text == "" {
		return "is not set; set it to the subject of the messages, for example orders.{group}"
	}
	t, err := template.Parse(text)
	if err != nil {
		return err.Error()
	}
	example := textOfExample(&t)
	switch {
	case strings.ContainsAny(example, " \t\r\n*>"):
		return fmt.Sprintf("is %q; a subject to publish to has no blanks and no wildcards", text)
	case strings.HasPrefix("."+example+".", "..") || strings.Contains(example+".", ".."):
		return fmt.Sprintf("is %q, which has an empty token between its dots", text)
	case strings.HasPrefix(example, "$JS.") || strings.HasPrefix(example, "$SYS."):
		return fmt.Sprintf("is %q, which belongs to the server; choose another subject", text)
	case len(example) > maxSubject:
		return fmt.Sprintf("has %d bytes, at most %d are possible", len(example), maxSubject)
	}
	return ""
}

// checkStream returns the fault of a template of names of streams, "" if it has none.
func checkStream(text string) string {
	t, err := template.Parse(text)
	switch {
	case err != nil:
		return err.Error()
	case strings.ContainsAny(textOfExample(&t), notInStream):
		return fmt.Sprintf("is %q; the name of a stream has no blanks, dots, slashes, * or >", text)
	}
	return ""
}

// textOfExample returns the text for a row whose values are all x.
func textOfExample(t *template.Template) string { return strings.Join(t.Literals(), "x") }

// subjectOf returns the subject for a row. reason is set if it can never be sent. A value stays
// within its token, whatever it has: consumers filter by tokens, and a value with a dot would
// reach others.
func subjectOf(t *template.Template, m *sink.Message) (subject, reason string) {
	empty := false
	subject, missing := t.Text(m, func(value string) string {
		empty = empty || value == ""
		return ascii.PercentEncode(value, notInSubject)
	})
	switch {
	case missing != "":
		return "", "row has no " + missing + ", which subject needs"
	case empty:
		return "", "a value of the row in the subject is empty"
	case len(subject) > maxSubject:
		return "", fmt.Sprintf("subject of %d bytes exceeds %d", len(subject), maxSubject)
	}
	return subject, ""
}

// streamOf returns the stream for a row, "" for any. reason is set if it can never be sent.
func streamOf(t *template.Template, m *sink.Message) (stream, reason string) {
	invalid := false
	stream, missing := t.Text(m, func(value string) string {
		invalid = invalid || value == "" || strings.ContainsAny(value, notInStream)
		return value
	})
	switch {
	case missing != "":
		return "", "row has no " + missing + ", which stream needs"
	case invalid || len(stream) > maxStream:
		return "", fmt.Sprintf("a value of the row cannot be in the name of a stream: it is empty, too long, or has one of %q", notInStream)
	}
	return stream, ""
}

// maxStream is the maximum length of the name of a stream (server, JSMaxNameLen).
const maxStream = 255
