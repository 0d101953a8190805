package audit_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/cmd/internal/verify"
	"github.com/sluicebox/sluicebox/cmd/internal/verify/audit"
)

// read returns the ids of the receipts that were added.
func read(t *testing.T, r audit.Receipts) (ids []string) {
	t.Helper()
	if err := r.Read(t.Context(), func(a verify.Arrival) { ids = append(ids, a.ID) }); err != nil {
		t.Fatal(err)
	}
	return ids
}

// A file is followed: lines that are added, a line that is written in two parts, a file that is renamed
// and created again, and one that is truncated.
func TestFileIsFollowed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "receipts")
	add := func(text string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = f.WriteString(text)
			_ = f.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	wide := strings.Repeat("w", 100_000) // more than one read
	r := audit.File(path, 0)
	defer r.Close()
	for _, step := range []struct {
		name string
		do   func()
		want []string
	}{
		{"lines, and the start of one", func() { add("{\"id\":\"1\"}\n\n{\"id\":\"2\"}\n{\"id\":") }, []string{"1", "2"}},
		{"nothing", func() {}, nil},
		{"the rest of the line", func() { add("\"3\"}\n{\"id\":\"" + wide + "\"}\n") }, []string{"3", wide}},
		{"a rename, with a last line without an end", func() {
			add(`{"id":"4"}`)
			if err := os.Rename(path, path+".1"); err != nil {
				t.Fatal(err)
			}
			add("{\"id\":\"5\"}\n{\"id\":\"6\"}\n")
		}, []string{"4", "5", "6"}},
		{"a truncation", func() {
			if err := os.Truncate(path, 0); err != nil {
				t.Fatal(err)
			}
			add("{\"id\":\"7\"}\n")
		}, []string{"7"}},
	} {
		step.do()
		if got := read(t, r); !slices.Equal(got, step.want) {
			t.Fatalf("%s: got %.200q, want %.200q", step.name, got, step.want)
		}
	}
}

// A line that is no receipt ends the read, with its number.
func TestBadReceipts(t *testing.T) {
	for text, want := range map[string]string{
		"{\"id\":\"1\"}\n17\n":            "line 2",
		"{\"group\":\"g\"}\n":             "id is missing",
		"{\"id\":\"1\",\"at\":\"soon\"}":  "line 1",
		strings.Repeat("x", 3<<20) + "\n": "line 1",
	} {
		err := audit.Stream("r", strings.NewReader(text), 0).Read(t.Context(), func(verify.Arrival) {})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: error %.200v, want %q", text, err, want)
		}
	}
	missing := filepath.Join(t.TempDir(), "missing")
	if err := audit.File(missing, 0).Read(t.Context(), nil); err == nil || !strings.Contains(fmt.Sprint(err), missing) {
		t.Errorf("a missing file: %v", err)
	}
}

// A line that is no receipt hides no other: a program that verifies again and again reads on behind it.
func TestReceiptsBehindBadLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "receipts")
	if err := os.WriteFile(path, []byte("{\"id\":\"1\"}\n17\n{\"id\":\"2\"}\n"+strings.Repeat("x", 1<<20+9)+"\n{\"id\":\"3\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := audit.File(path, 0)
	defer r.Close()
	var ids, faults []string
	for range 4 {
		if err := r.Read(t.Context(), func(a verify.Arrival) { ids = append(ids, a.ID) }); err != nil {
			faults = append(faults, err.Error())
		}
	}
	if !slices.Equal(ids, []string{"1", "2", "3"}) {
		t.Errorf("got the receipts %q, want 1, 2 and 3", ids)
	}
	if len(faults) < 2 || !strings.Contains(faults[0], "line 2:") || !strings.Contains(faults[1], "line 4: longer than") {
		t.Errorf("got the errors %.200q, want one of line 2 and one of line 4", faults)
	}
}

// FuzzReceipts: no text ends the program, an error names its line, and a file gives the same receipts
// whether it is read at once or while it grows.
func FuzzReceipts(f *testing.F) {
	for _, text := range []string{"{\"id\":\"1\"}\n\n{\"id\":\"2\",\"at\":\"2026-01-31T15:04:05Z\"}", "17\n{\"id\":\"1\"}\n", "{\"id\":1}\n[]\nnull\n", "\x00\xff\r\n", "{\"id\":\"\\ud83d\"}"} {
		f.Add([]byte(text), uint16(len(text)/2))
	}
	f.Fuzz(func(t *testing.T, text []byte, at uint16) {
		path := filepath.Join(t.TempDir(), "receipts")
		split := min(int(at), len(text))
		all := func(parts ...[]byte) (ids []string) {
			r := audit.File(path, 0)
			defer r.Close()
			for i := range parts {
				if err := os.WriteFile(path, bytes.Join(parts[:i+1], nil), 0o600); err != nil {
					t.Fatal(err)
				}
				for before, err := -1, error(nil); before != len(ids) || err != nil; {
					before = len(ids)
					err = r.Read(t.Context(), func(a verify.Arrival) { ids = append(ids, a.ID) })
					if err != nil && !strings.Contains(err.Error(), "line ") {
						t.Fatalf("%q: error %v names no line", text, err)
					}
				}
			}
			return ids
		}
		once, grown := all(text), all(text[:split], text[split:])
		if !slices.Equal(once, grown) || slices.Contains(once, "") {
			t.Errorf("%q: got %q at once and %q while it grows from %d", text, once, grown, split)
		}
	})
}
