package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCount(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	// Nine words, one of each phrase; directives, code and tests do not count.
	code := write("a.go", "//go:build linux\n\n// What is here, because those that\n// wait is told.\npackage a\n\nvar tells = `what is`\n")
	test := write("a_test.go", "package a // what is what is\n")
	var out strings.Builder
	if err := count(strings.NewReader(code+"\n"+test+"\n"), &out); err != nil {
		t.Fatal(err)
	}
	got := out.String()
	for _, want := range []string{"9 words", "what is                111.11", "those that, one that   111.11", "is told, tells         111.11", "because, for example   111.11"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	if err := count(strings.NewReader(test), &out); err == nil {
		t.Error("no file to count is no error")
	}
}
