package main

import (
	"strings"
	"testing"
	"time"
)

func TestCells(t *testing.T) {
	for name, want := range map[string]string{
		"0JPX1": "0JPX1", "a/b:c": "a/b:c", "ü": "ü", "": `""`, "two words": `"two words"`, "(none)": `"(none)"`, "-": `"-"`,
		"a\tb": `"a\tb"`, "\x1b[2J": `"\x1b[2J"`, `"a"`: `"\"a\""`, "a\u202eb": `"a\u202eb"`,
	} {
		if got := quoteCell(name); got != want {
			t.Errorf("%q is shown as %s, want %s", name, got, want)
		}
	}
	if got := oneLine(" a\r\n\tb\x1b[2J \u202e"); got != "a b�[2J �" {
		t.Errorf("got %q", got)
	}
}

func TestSpans(t *testing.T) {
	now := time.Now()
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 0: "0s", 90 * time.Second: "90s", 119*time.Second + 999*time.Millisecond: "119s", 2 * time.Minute: "2m",
		119 * time.Minute: "119m", 2 * time.Hour: "2h", 47*time.Hour + 59*time.Minute: "47h", 48 * time.Hour: "2d", 1000 * time.Hour: "41d",
	} {
		if got := ageText(now.Add(-d), now); got != want {
			t.Errorf("%s is %s, want %s", d, got, want)
		}
	}
	if got := ageText(time.Time{}, now); got != "-" {
		t.Errorf("no time is %s", got)
	}
}

func TestCutLines(t *testing.T) {
	if got := cutLines("ID  ERROR\nüü  0123456789\n1   \n", 8); got != "ID  ERR…\nüü  012…\n1\n" {
		t.Errorf("got %q", got)
	}
	var b strings.Builder
	if err := printTable(&b, []string{"ID", "ERROR"}, [][]string{{"1", strings.Repeat("x", 500)}}); err != nil || !strings.Contains(b.String(), strings.Repeat("x", 500)) {
		t.Errorf("what is no terminal gets %q, %v", b.String(), err)
	}
}
