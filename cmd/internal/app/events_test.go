package app

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// logEvent is an event as code logs it, or as deploy/events.md lists it.
type logEvent struct{ message, level string }

// eventRow matches a row of a table in deploy/events.md. Each cell must have a text.
var eventRow = regexp.MustCompile("^\\| `([^`]+)` \\| (DEBUG|INFO|WARN|ERROR) \\| ([^|]+) \\| ([^|]+) \\|$")

// TestEventsAreListed compares the events that the program logs with deploy/events.md,
// which operators match alerts against.
func TestEventsAreListed(t *testing.T) {
	const page = "../../../deploy/events.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var listed []logEvent
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		cells := eventRow.FindStringSubmatch(line)
		switch {
		case cells != nil:
			listed = append(listed, logEvent{cells[1], cells[2]})
		case strings.HasPrefix(line, "| `"):
			t.Errorf("deploy/events.md: malformed row %s", line)
		}
	}
	logged := loggedEvents(t, "../../..")
	for _, e := range logged {
		if !slices.Contains(listed, e) {
			t.Errorf("deploy/events.md: no row for %q at %s", e.message, e.level)
		}
		if words := len(strings.Fields(e.message)); words > 8 {
			t.Errorf("%q has %d words, want at most 8", e.message, words)
		}
	}
	for i, e := range listed {
		if !slices.Contains(logged, e) {
			t.Errorf("deploy/events.md: no code logs %q at %s", e.message, e.level)
		}
		if slices.Contains(listed[:i], e) {
			t.Errorf("deploy/events.md: two rows for %q", e.message)
		}
	}
}

// loggedEvents returns the events in the non-test code of a module. A message must be a
// string literal, or a parameter for which every caller in the package passes one.
func loggedEvents(t *testing.T, root string) (events []logEvent) {
	t.Helper()
	packages := map[string][]*ast.File{} // by directory
	files := token.NewFileSet()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && path != root):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		packages[filepath.Dir(path)] = append(packages[filepath.Dir(path)], file)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, pkg := range packages {
		for _, file := range pkg {
			for _, decl := range file.Decls {
				ast.Inspect(decl, func(n ast.Node) bool {
					level, message := logCall(n)
					if message == nil {
						return true
					}
					messages := literals(message, decl, pkg)
					if len(messages) == 0 {
						t.Errorf("%s: the message of a log call is no constant", files.Position(n.Pos()))
					}
					for _, m := range messages {
						events = append(events, logEvent{m, level})
					}
					return true
				})
			}
		}
	}
	if len(events) < 50 {
		t.Fatalf("%d events found in the code", len(events))
	}
	return events
}

// logCall returns the level and the message of a call such as r.log.Info("standing by").
// The message is nil for other nodes.
func logCall(n ast.Node) (level string, message ast.Expr) {
	call, _ := n.(*ast.CallExpr)
	if call == nil || len(call.Args) == 0 {
		return "", nil
	}
	method, _ := call.Fun.(*ast.SelectorExpr)
	if method == nil || !slices.Contains([]string{"log", "logger", "slog"}, strings.ToLower(lastName(method.X))) {
		return "", nil
	}
	name, at := method.Sel.Name, 0
	if short, ok := strings.CutSuffix(name, "Context"); ok {
		name, at = short, 1
	}
	if !slices.Contains([]string{"Debug", "Info", "Warn", "Error"}, name) || len(call.Args) <= at {
		return "", nil
	}
	return strings.ToUpper(name), call.Args[at]
}

// lastName returns the last name of a selector: log of both log and d.relay.log.
func lastName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// literals returns the values of a message in a declaration: its own, or those which
// callers pass for it.
func literals(message ast.Expr, decl ast.Decl, pkg []*ast.File) (values []string) {
	if lit, ok := message.(*ast.BasicLit); ok && lit.Kind == token.STRING {
		value, err := strconv.Unquote(lit.Value)
		if err != nil {
			return nil
		}
		return []string{value}
	}
	param, _ := message.(*ast.Ident)
	fn, _ := decl.(*ast.FuncDecl)
	if param == nil || fn == nil {
		return nil
	}
	at := slices.Index(paramNames(fn), param.Name)
	if at < 0 {
		return nil
	}
	constant := true
	for _, file := range pkg {
		ast.Inspect(file, func(n ast.Node) bool {
			call, _ := n.(*ast.CallExpr)
			if call == nil || lastName(call.Fun) != fn.Name.Name || len(call.Args) <= at {
				return true
			}
			lit, _ := call.Args[at].(*ast.BasicLit)
			if lit == nil || lit.Kind != token.STRING {
				constant = false
				return true
			}
			value, err := strconv.Unquote(lit.Value)
			constant = constant && err == nil
			values = append(values, value)
			return true
		})
	}
	if !constant {
		return nil
	}
	return values
}

// paramNames returns the names of a function's parameters, in order.
func paramNames(fn *ast.FuncDecl) (names []string) {
	for _, field := range fn.Type.Params.List {
		for _, name := range field.Names {
			names = append(names, name.Name)
		}
	}
	return names
}
