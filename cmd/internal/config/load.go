package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

const (
	// variablePrefix begins the name of every variable of the program.
	variablePrefix = "SLUICEBOX_"
	// FileVariable names the configuration file where no flag does.
	FileVariable = variablePrefix + "CONFIG"
	// testVariablePrefix begins the variables of the tests, which are not overrides.
	testVariablePrefix = variablePrefix + "TEST_"

	maxFileSize = 1 << 20 // a configuration is a page or two; more is another file
)

// Config is a configuration that was read and found consistent.
type Config struct {
	// Settings is the configuration in full: defaults filled in, references
	// resolved, the preset expanded into Outboxes and Sinks (FlowCatalyst is
	// nil). Its secrets print as a placeholder.
	Settings Settings

	unreadable map[string]problems // by sink
	files      []string            // that references name
	reread     func() (*Config, error)
}

// ReferenceErrors returns what keeps sinks from being opened though the configuration is sound:
// references to files that cannot be read. Nil if nothing does. Such a key is empty in
// Settings.
func (c *Config) ReferenceErrors() error {
	var all problems
	for _, name := range slices.Sorted(maps.Keys(c.unreadable)) {
		all = append(all, c.unreadable[name]...)
	}
	return all.err()
}

// SinkReferenceErrors is Unread for one sink.
func (c *Config) SinkReferenceErrors(sink string) error { return c.unreadable[sink].err() }

// Reread returns the configuration with what the files that it refers to hold now. The
// configuration file itself is not read again.
func (c *Config) Reread() (*Config, error) { return c.reread() }

// Files returns the files that references name, and the sinks' authorities.
func (c *Config) Files() []string {
	files := slices.Clone(c.files)
	for _, s := range c.Settings.Sinks {
		if s.CAFile != "" {
			files = append(files, s.CAFile)
		}
	}
	slices.Sort(files)
	return slices.Compact(files)
}

// Load reads a configuration: the file at path ("-" is standard input, "" is no
// file), overridden by the SLUICEBOX_* variables among environ, whose entries
// have the form NAME=value. The error is an [*Error] that lists every fault, or
// says that the file cannot be read.
func Load(path string, environ []string) (*Config, error) {
	name, data, err := read(path)
	if err != nil {
		return nil, &Error{Problems: []Problem{{Where: name, Text: fmt.Sprintf("the configuration file cannot be read: %s", fileErrorCause(err))}}}
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

// parse is Load without its files. An empty name says that there is no file.
func parse(name string, data []byte, environ []string, readFile func(string) ([]byte, error)) (*Config, error) {
	root, err := document(name, data)
	if err != nil {
		return nil, err
	}
	var files []string
	kept := map[string][]byte{}
	again := func(path string) ([]byte, error) {
		if data, ok := kept[path]; ok {
			return data, nil
		}
		return readFile(path)
	}
	d := newDecoder(name, environ, func(path string) ([]byte, error) {
		data, err := again(path)
		if info, stat := os.Stat(path); err == nil && stat == nil && !info.Mode().IsRegular() {
			kept[path] = data // a pipe is read once
		} else {
			files = append(files, path)
		}
		return data, err
	})
	settings := d.decodeSettings(root)
	d.checkUnknownVariables()
	d.check(&settings)
	if len(d.problems) > 0 {
		for _, of := range d.unreadable {
			d.problems = append(d.problems, of...)
		}
		return nil, d.problems.err()
	}
	return &Config{
		Settings: settings, unreadable: d.unreadable, files: files,
		reread: func() (*Config, error) { return parse(name, data, environ, again) },
	}, nil
}

// document returns the root of the one document in data, or nil if there is
// none.
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
		return nil, fault(second.Line, "a second document begins here; one file holds one configuration")
	} else if !errors.Is(err, io.EOF) {
		line, text := syntaxError(err, data)
		return nil, fault(line, text)
	}
	if first.Kind != yaml.DocumentNode || len(first.Content) == 0 {
		return nil, nil
	}
	return first.Content[0], nil
}

// syntaxError says where and why data is not YAML, with a hint for what is easily
// got wrong.
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
		text += "; indent with spaces, not with tabs"
	case strings.Contains(bad, "${"):
		text += "; inside { } a value with ${…} needs quotes"
	}
	return line, text
}

// fileLine names a line of a file.
func fileLine(file string, line int) string {
	if line == 0 || file == "" {
		return file
	}
	return fmt.Sprintf("%s:%d", file, line)
}
