//go:build unix && !solaris && !illumos

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestWithOpenOutput checks that only a pipe without a reader ends its writer.
func TestWithOpenOutput(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "rows"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	person, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	for _, f := range []*os.File{file, null, out} {
		if isOutputClosed(f) {
			t.Errorf("%s is taken for one that nobody reads", f.Name())
		}
	}
	ctx, end := withOpenOutput(t.Context(), out)
	defer end()
	if ctx.Err() != nil {
		t.Error("it ends although somebody reads")
	}
	_ = person.Close()
	<-ctx.Done()
	if !errors.Is(context.Cause(ctx), errOutputClosed) {
		t.Errorf("it ends because of %v", context.Cause(ctx))
	}
}
