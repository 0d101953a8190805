package config

import (
	"fmt"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/sluicebox/sluicebox/store"
)

// report collects the problems of a configuration, each at the place of its key.
type report struct {
	file       string
	locations  map[string]location // origin of each given key
	presetKeys map[string]string   // keys made by the preset, as the file has them
	faultyKeys map[string]bool     // keys with a problem
	problems   problems
}

func newReport(file string) *report {
	return &report{file: file, locations: map[string]location{}, presetKeys: map[string]string{}, faultyKeys: map[string]bool{}}
}

// location is the origin of a value.
type location struct {
	name string // file:line or a variable
	line int    // 0 for a variable
}

// fail reports a problem of a key at its origin.
func (r *report) fail(path, format string, args ...any) {
	path = r.originalKey(path)
	r.failAt(r.locationOf(path), path, fmt.Sprintf(format, args...))
}

func (r *report) failAt(p location, path, text string) {
	r.faultyKeys[path] = true
	r.problems = append(r.problems, Problem{Where: p.name, Key: path, Text: text, line: p.line})
}

// originalKey returns the key in the file for a key made by the preset.
func (r *report) originalKey(path string) string {
	if written, ok := r.presetKeys[path]; ok {
		return written
	}
	return path
}

// locationOf returns the origin of a key or, if the key was not given, of its section.
func (r *report) locationOf(path string) location {
	for {
		if p, ok := r.locations[path]; ok {
			return p
		}
		cut := strings.LastIndexAny(path, ".[")
		if cut < 0 {
			return location{name: r.file}
		}
		path = path[:cut]
	}
}

func (r *report) nodeLocation(n *yaml.Node) location {
	return location{name: fileLine(r.file, n.Line), line: n.Line}
}

// isGiven reports whether a key, or a key inside it, was given.
func (r *report) isGiven(path string) bool {
	path = r.originalKey(path)
	for at := range r.locations {
		if rest, below := strings.CutPrefix(at, path); below && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return true
		}
	}
	return false
}

// hasNoProblem reports whether neither a key nor a section around it has a problem
// already, so that each mistake is reported once.
func (r *report) hasNoProblem(path string) bool {
	path = r.originalKey(path)
	for path != "" {
		if r.faultyKeys[path] {
			return false
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
	return true
}

// requireValue reports a missing required key.
func (r *report) requireValue(path, value, remedy string) bool {
	if value != "" {
		return true
	}
	if r.hasNoProblem(path) {
		r.fail(path, "is required; %s (or set %s)", remedy, variableName(r.originalKey(path)))
	}
	return false
}

// hasNoProblemBelow reports whether neither a section nor a key in it has a problem.
func (r *report) hasNoProblemBelow(path string) bool {
	for key := range r.faultyKeys {
		if rest, below := strings.CutPrefix(key, r.originalKey(path)); below && (rest == "" || rest[0] == '.') {
			return false
		}
	}
	return true
}

func (r *report) requirePositive(path string, t time.Duration) {
	if t <= 0 && r.hasNoProblem(path) {
		r.fail(path, "is %s, must be above 0", t)
	}
}

func (r *report) requireNonNegative(path string, t time.Duration) {
	if t < 0 && r.hasNoProblem(path) {
		r.fail(path, "is %s, must not be below 0s", t)
	}
}

// failFields reports the invalid values that a Validate found in the section at path. fileKey
// returns the key in the file for a key of the section, or "" if it is checked elsewhere.
func (r *report) failFields(path string, found error, fileKey func(key string) string) {
	for _, e := range store.FieldErrorsOf(found) {
		key := fileKey(e.Key)
		if p := joinKey(path, key); key != "" && r.hasNoProblem(p) {
			r.fail(p, "%s", e.Text)
		}
	}
}
