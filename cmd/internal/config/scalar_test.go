package config

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestParseSize(t *testing.T) {
	for text, want := range map[string]Size{
		"0": 0, "17": 17, "17B": 17, "1kB": 1000, "1 KiB": 1024, "64MiB": 64 << 20, "1GiB": 1 << 30, "2GB": 2e9,
		"8589934591GiB": 8589934591 << 30,
	} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("ParseSize(%q) is %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-1", "MiB", "1.5GiB", "1TiB", "8589934592GiB", "1e3", "9223372036854775808"} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("ParseSize(%q) is %d, want an error", text, got)
		}
	}
}

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"7d": 168 * time.Hour, "1d12h30m": 36*time.Hour + 30*time.Minute, "-2d": -48 * time.Hour, "0d": 0, "90s": 90 * time.Second, "1.5h": 90 * time.Minute,
	} {
		if got, err := parseDuration(text); err != nil || got != want {
			t.Errorf("parseDuration(%q) is %s, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "d", "7", "1.5d", "7days", "106752d", "99999999999999999999d", "7 d"} {
		if got, err := parseDuration(text); err == nil {
			t.Errorf("parseDuration(%q) is %s, want an error", text, got)
		}
	}
}

func TestSizeReadsBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := Size(rapid.Int64Min(0).Draw(t, "bytes") >> rapid.IntRange(0, 63).Draw(t, "shift"))
		if got, err := ParseSize(size.String()); err != nil || got != size {
			t.Errorf("%d is written %s and read as %d, %v", int64(size), size, got, err)
		}
	})
}
