package sluicebox

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
)

// The bounds of CONTRIBUTING.md that no linter checks.
const (
	maxLines   = 600 // of a Go file or a script
	maxFiles   = 25  // of a package, without tests
	maxMethods = 60
	maxFields  = 25
)

// TestBounds finds files, packages and types that have outgrown one subject. Suites for tests have
// a method for each test, so the bounds of types exempt code that imports testing.
func TestBounds(t *testing.T) {
	files, methods, fields := map[string]int{}, map[string]int{}, map[string]int{}
	err := fs.WalkDir(os.DirFS("."), ".", func(name string, entry fs.DirEntry, err error) error {
		code := strings.HasSuffix(name, ".go")
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != "." && strings.HasPrefix(entry.Name(), "."):
			return fs.SkipDir
		case entry.IsDir(), !code && !strings.HasSuffix(name, ".sh"):
			return nil
		}
		text, err := os.ReadFile(name)
		if n := bytes.Count(text, []byte("\n")); n > maxLines {
			t.Errorf("%s has %d lines, the bound is %d", name, n, maxLines)
		}
		if err != nil || !code || strings.HasSuffix(name, "_test.go") {
			return err
		}
		files[path.Dir(name)]++
		return countMembers(name, text, methods, fields)
	})
	if err != nil || methods["dispatch.Dispatcher"] == 0 || fields["dispatch.Dispatcher"] == 0 {
		t.Fatalf("the search did not end, or did not find dispatch.Dispatcher: %v", err)
	}
	for _, bound := range []struct {
		of     string
		most   int
		counts map[string]int
	}{{"files", maxFiles, files}, {"methods", maxMethods, methods}, {"fields", maxFields, fields}} {
		for name, n := range bound.counts {
			if n > bound.most {
				t.Errorf("%s has %d %s, the bound is %d: give a part with a subject of its own its own place", name, n, bound.of, bound.most)
			}
		}
	}
}

// countMembers adds the methods and fields of each type of a file.
func countMembers(name string, text []byte, methods, fields map[string]int) error {
	file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
	if err != nil || slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"testing"` }) {
		return err
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Recv != nil {
				of, _, _ := strings.Cut(strings.TrimPrefix(types.ExprString(n.Recv.List[0].Type), "*"), "[")
				methods[path.Dir(name)+"."+of]++
			}
			return false
		case *ast.TypeSpec:
			if s, ok := n.Type.(*ast.StructType); ok {
				fields[path.Dir(name)+"."+n.Name.Name] = s.Fields.NumFields()
			}
		}
		return true
	})
	return nil
}
