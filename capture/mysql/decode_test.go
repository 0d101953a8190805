package mysql

import (
	"bytes"
	"slices"
	"testing"

	"github.com/klauspost/compress/zstd"
)

func TestParseMembers(t *testing.T) {
	for text, want := range map[string][]string{
		"enum('a')":                  {"a"},
		"enum('a','b')":              {"a", "b"},
		"set('it''s','','x,y','''')": {"it's", "", "x,y", "'"},
		"int":                        nil,
		"enum('open":                 nil,
	} {
		if got := parseMembers(text); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

func TestStringLength(t *testing.T) {
	for meta, want := range map[uint16]int{0xfe10: 16, 0xfeff: 255, 0xeefc: 508, 0xcefc: 1020} {
		if got := stringLength(meta); got != want {
			t.Errorf("%#x: got length %d, want %d", meta, got, want)
		}
	}
}

func TestFirstWords(t *testing.T) {
	for query, want := range map[string][2]string{
		"BEGIN":                       {"BEGIN", ""},
		"XA START X'01',X'',1":        {"XA", "START"},
		"rollback  to `s`":            {"ROLLBACK", "TO"},
		"":                            {"", ""},
		"COMMIT;":                     {"COMMIT", ""},
		"create table outbox (a int)": {"CREATE", "TABLE"},
	} {
		if first, second := firstWords([]byte(query)); first != want[0] || second != want[1] {
			t.Errorf("%q: got %q and %q", query, first, second)
		}
	}
}

func TestUTF16(t *testing.T) {
	cs := newCharsets()
	got, err := cs.byName["utf16"].append(nil, []byte{0, 'a', 0xd8, 0x3d, 0xde, 0x00, 0x20, 0xac})
	if err != nil || string(got) != "a😀€" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := cs.byName["utf16le"].append(nil, []byte{1}); err == nil {
		t.Error("half a character was accepted")
	}
}

// FuzzEvents checks that a truncated event is an error and never a panic.
func FuzzEvents(f *testing.F) {
	header := make([]byte, headerSize)
	f.Add(append(bytes.Clone(header), 1, 0, 0, 0, 0, 0, 1, 0, 3, 'a', 'b', 'c', 0, 1, 'x', 0, 1))
	f.Add(append(bytes.Clone(header), 2, 1, 0, 3, 1, 5, 0, 'x'))
	unpack, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(1<<20))
	if err != nil {
		f.Fatal(err)
	}

	f.Cleanup(unpack.Close)
	f.Fuzz(func(t *testing.T, raw []byte) {
		if _, _, err := tableIDOf(raw); err == nil && len(raw) < headerSize+8 {
			t.Error("a truncated event has a table")
		}
		if key, _, err := tableMapKey(raw); err == nil {
			isOwnTable(key)
		}
		if len(raw) >= headerSize {
			_, _ = decompress(unpack, raw)
		}
		_ = eachEvent(raw, func([]byte) error { return nil })
		firstWords(raw)
		parseMembers(string(raw))
	})
}
