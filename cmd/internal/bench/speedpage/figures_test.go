package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReadmeFiguresAreCurrent: the figures in the README equal those of the speed pages.
func TestReadmeFiguresAreCurrent(t *testing.T) {
	root := filepath.Join("..", "..", "..", "..")
	want, err := renderFigures(filepath.Join(root, "deploy"))
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), figuresBegin+"\n\n"+want+"\n"+figuresEnd) {
		t.Errorf("README.md differs from deploy/speed*.json; run go run ./cmd/internal/bench/speedpage -show. Want:\n%s", want)
	}
}
