package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/sluicebox/sluicebox/cmd/internal/passwordcommand"
)

const (
	// variablePrefix is the prefix of all variables of the program.
	variablePrefix = "SLUICEBOX_"
	// SourceVariable overrides source.url.
	SourceVariable = variablePrefix + "SOURCE_URL"
	// FileVariable names the configuration file if no flag does.
	FileVariable = variablePrefix + "CONFIG"
	// testVariablePrefix is the prefix of the tests' variables, which are no overrides.
	testVariablePrefix = variablePrefix + "TEST_"

	maxFileSize = 1 << 20 // a configuration is a few pages; anything larger is another file
)

// Config is a loaded and consistent configuration.
type Config struct {
	// Settings is the complete configuration: with defaults, resolved references, and the
	// preset expanded into Outboxes and Sinks (FlowCatalyst is nil). Its secrets print as
	// a placeholder.
	Settings Settings

	unreadable map[string]problems // by sink
	files      []string            // named by references
	report     *report             // where the keys are
	reread     func() (*Config, error)
	sources    []*Config    // of the entries of sources
	entry      *sourceEntry // of sources; nil for the whole file
	passwords  *passwordcommand.Limit
}

// ReferenceErrors returns the references to unreadable files in a valid configuration, or
// nil. A sink with such a reference cannot be opened. The key is empty in Settings.
func (c *Config) ReferenceErrors() error {
	var all problems
	for _, name := range slices.Sorted(maps.Keys(c.unreadable)) {
		all = append(all, c.unreadable[name]...)
	}
	return all.err()
}

// SinkReferenceErrors returns the ReferenceErrors of one sink.
func (c *Config) SinkReferenceErrors(sink string) error { return c.unreadable[sink].err() }

// Reread returns the configuration with the current content of the referenced files. It
// does not read the configuration file again.
func (c *Config) Reread() (*Config, error) { return c.reread() }

// Files returns the referenced files and the files of the sinks' certificates and credentials.
func (c *Config) Files() []string {
	files := slices.Clone(c.files)
	for _, s := range c.Settings.Sinks {
		own := s.files()
		files = append(files, own[:]...)
	}
	slices.Sort(files)
	return slices.DeleteFunc(slices.Compact(files), func(file string) bool { return file == "" })
}

// Load reads the configuration file at path and applies the SLUICEBOX_* variables in
// environ, which has entries of the form NAME=value. Path "-" is standard input, and ""
// is no file. The error is an [*Error] that lists every problem.
func Load(path string, environ []string) (*Config, error) {
	name, data, err := read(path)
	if err != nil {
		return nil, &Error{Problems: []Problem{{Where: name, Text: fmt.Sprintf("cannot read the configuration file: %s", fileErrorCause(err))}}}
	}
	return parse(name, data, environ, readSecretFile)
}

func read(path string) (name string, data []byte, err error) {
	switch path {
	case "":
		return "", nil, nil
	case "-":
		data, err = readAll(os.Stdin, maxFileSize)
		return "standard input", data, err
	}
	data, err = readBounded(path, maxFileSize)
	return path, data, err
}

// parse is Load without reading the configuration file. An empty name means no file.
func parse(name string, data []byte, environ []string, readFile func(string) ([]byte, error)) (*Config, error) {
	root, err := document(name, data)
	if err != nil {
		return nil, err
	}
	f := &parser{name: name, readFile: readFile, readOnce: map[string][]byte{}, passwords: passwordcommand.NewLimit()}
	return f.config(root, environ, nil)
}

// parser makes the configurations of one file.
type parser struct {
	name     string
	readFile func(string) ([]byte, error)
	readOnce map[string][]byte // contents of pipes, which can be read only once

	passwords *passwordcommand.Limit // of all sources
}

// read reads a referenced file.
func (f *parser) read(path string) (data []byte, again bool, err error) {
	if data, ok := f.readOnce[path]; ok {
		return data, false, nil
	}
	data, err = f.readFile(path)
	if info, stat := os.Stat(path); err == nil && stat == nil && !info.Mode().IsRegular() {
		f.readOnce[path] = data
		return data, false, nil
	}
	return data, true, err
}

// config returns the configuration of a document, of one of its sources if one is given.
func (f *parser) config(root *yaml.Node, environ []string, one *sourceEntry) (*Config, error) {
	var files []string
	d := newDecoder(f.name, environ, func(path string) ([]byte, error) {
		data, again, err := f.read(path)
		if again {
			files = append(files, path)
		}
		return data, err
	})
	settings := d.decodeSettings(root)
	d.checkUnknownVariables()
	d.setReferences(&settings)
	k := checker{d.report}
	c := &Config{Settings: settings, unreadable: d.unreadable, files: files, report: d.report, entry: one, passwords: f.passwords}
	if len(settings.Sources) > 0 {
		k.checkSources(&settings)
		if len(d.problems) == 0 {
			c.sources, d.problems = f.sources(root, environ, settings.Sources)
		}
	} else {
		k.checkSingle(&settings)
		k.check(&settings)
		c.Settings = settings
	}
	if len(d.problems) > 0 {
		for _, of := range d.unreadable {
			d.problems = append(d.problems, of...)
		}
		return nil, one.written(d.problems).err()
	}
	c.reread = func() (*Config, error) { return f.config(root, environ, one) }
	return c, nil
}

// LoadDraft is Load for a configuration that is not complete yet, for example without outboxes
// and sinks. Only the section source is checked.
func LoadDraft(path string, environ []string) (*Settings, error) {
	return loadPart(path, environ, func(c checker, s *Settings) { c.checkSource(&s.Source) },
		func(key string) bool { return key == "source" || strings.HasPrefix(key, "source.") })
}

// LoadPart is Load for some keys of a configuration, which may lack all others. It reports
// problems of keys for which needed is true: unknown keys and values of another type, no values
// out of range.
func LoadPart(path string, environ []string, needed func(key string) bool) (*Settings, error) {
	return loadPart(path, environ, func(checker, *Settings) {}, needed)
}

// loadPart decodes a configuration and reports the problems of some keys.
func loadPart(path string, environ []string, check func(checker, *Settings), needed func(key string) bool) (*Settings, error) {
	name, data, err := read(path)
	if err != nil {
		return nil, &Error{Problems: []Problem{{Where: name, Text: fmt.Sprintf("cannot read the configuration file: %s", fileErrorCause(err))}}}
	}
	root, err := document(name, data)
	if err != nil {
		return nil, err
	}
	d := newDecoder(name, environ, readSecretFile)
	settings := d.decodeSettings(root)
	check(checker{d.report}, &settings)
	d.problems = slices.DeleteFunc(d.problems, func(p Problem) bool { return !needed(p.Key) })
	return &settings, d.problems.err()
}

// document returns the root of the only document in data, or nil if there is none.
func document(name string, data []byte) (*yaml.Node, error) {
	fault := func(line int, text string) error {
		return &Error{Problems: []Problem{{Where: fileLine(name, line), Text: text, line: line}}}
	}
	loader, err := yaml.NewLoader(bytes.NewReader(data))
	if err != nil {
		return nil, fault(0, err.Error())
	}

	var first, second yaml.Node
	if err := loader.Load(&first); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		line, text := syntaxError(err, data)
		return nil, fault(line, text)
	}

	if err := loader.Load(&second); err == nil {
		return nil, fault(second.Line, "second document; a file holds one configuration")
	} else if !errors.Is(err, io.EOF) {
		line, text := syntaxError(err, data)
		return nil, fault(line, text)
	}

	if first.Kind != yaml.DocumentNode || len(first.Content) == 0 {
		return nil, nil
	}
	return first.Content[0], nil
}

// syntaxError returns the line and the reason of a YAML syntax error, with a hint for
// common mistakes.
func syntaxError(err error, data []byte) (line int, text string) {
	text = "is not YAML: " + err.Error()
	var le *yaml.LoadError
	if !errors.As(err, &le) {
		return 0, text
	}

	line = le.Mark.Line
	text = "is not YAML: " + le.Message
	if begun := le.ContextMark.Line; begun > 0 && begun < line {
		text += fmt.Sprintf("; look from line %d on", begun)
	}

	lines := bytes.Split(data, []byte("\n"))
	if line < 1 || line > len(lines) {
		return 0, text
	}

	switch bad := string(lines[line-1]); {
	case strings.HasPrefix(strings.TrimLeft(bad, " "), "\t"):
		text += "; indent with spaces, not tabs"
	case strings.Contains(bad, "${"):
		text += "; inside { } a value with ${…} needs quotes"
	}

	return line, text
}

// fileLine formats a line of a file.
func fileLine(file string, line int) string {
	if line == 0 || file == "" {
		return file
	}
	return fmt.Sprintf("%s:%d", file, line)
}

// Problem is one error in a configuration.
type Problem struct {
	// Where is file:line, the name of a variable, or the file.
	Where string
	// Key is the key, for example dispatch.max-retries. It may be empty.
	Key string
	// Text is the cause and the remedy. It contains no secret.
	Text string

	line int // for sorting; 0 if unknown
}

// String returns the problem in one line.
func (p Problem) String() string {
	parts := make([]string, 0, 3)
	for _, part := range []string{p.Where, p.Key, p.Text} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, ": ")
}

// Error lists all problems of a configuration.
type Error struct {
	Problems []Problem
}

func (e *Error) Error() string {
	if len(e.Problems) == 1 {
		return e.Problems[0].String()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "the configuration has %d faults:", len(e.Problems))
	for _, p := range e.Problems {
		b.WriteString("\n  " + p.String())
	}
	return b.String()
}

// problems collects problems.
type problems []Problem

// err returns the problems sorted by line, or nil.
func (ps problems) err() error {
	if len(ps) == 0 {
		return nil
	}
	slices.SortStableFunc(ps, func(a, b Problem) int { return cmp.Compare(a.line, b.line) })
	return &Error{Problems: ps}
}
