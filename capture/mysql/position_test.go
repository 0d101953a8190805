package mysql

import (
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

const (
	uuidA = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
	uuidB = "4e11fa47-71ca-11e1-9e33-c80aa9429562"
)

func TestComparePositions(t *testing.T) {
	for _, c := range []struct {
		a, b store.Position
		want int
	}{
		{"", "@binlog.000001:4", -1},
		{"", "", 0},
		{"@binlog.000001:4", uuidA + ":1", -1},
		{"@binlog.000001:4", "0-1-1", -1},
		{uuidA + ":1-5", uuidA + ":1-5@binlog.000002:99", 0},
		{uuidA + ":1-5", uuidA + ":1-6", -1},
		{uuidA + ":1-5:7", uuidA + ":1-7", -1},
		{uuidA + ":1-7", uuidA + ":1-5:7", 1},
		{uuidA + ":1-5", uuidA + ":1-5," + uuidB + ":1", -1},
		{uuidA + ":1-5", uuidA + ":1-5:job:1", -1},
		{uuidA + ":1-5,\n" + uuidB + ":1", uuidA + ":1-5," + uuidB + ":1", 0},
		{"0-1-9", "0-1-10", -1},
		{"0-1-9", "0-2-10", -1},
		{"0-1-9", "0-1-9,1-1-1", -1},
		{"0-1-10,1-1-1", "0-1-10,1-1-1@binlog.000001:7", 0},
	} {
		if got := comparePositions(c.a, c.b); got != c.want {
			t.Errorf("Compare(%q, %q) = %d, want %d", c.a, c.b, got, c.want)
		}
		if got := comparePositions(c.b, c.a); got != -c.want {
			t.Errorf("Compare(%q, %q) = %d, want %d", c.b, c.a, got, -c.want)
		}
	}

	// Positions of two servers have a fixed but arbitrary order.
	if a, b := comparePositions(uuidA+":1", uuidB+":1"), comparePositions(uuidB+":1", uuidA+":1"); a == 0 || a != -b {
		t.Errorf("Compare contradicts itself on two servers: %d and %d", a, b)
	}
}

func TestPositionText(t *testing.T) {
	for _, text := range []store.Position{
		"@binlog.000001:4", uuidA + ":1-5:9@binlog.000003:4711", uuidA + ":1-5@binlog.000003:4711+1795338000", uuidA + ":1-5:job:1-3@a:b.000001:4", "0-1-270,7-2-30@binlog.000003:4711",
	} {
		p, err := parsePosition(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got := p.format(); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}

	for _, text := range []store.Position{"", "16/B374D848", "4711", "0-1", uuidA, uuidA + ":", "0-1-2@binlog.000001", "0-1-2@binlog.000001:x", "0-1-2@binlog.000001:4+x"} {
		if _, err := parsePosition(text); err == nil {
			t.Errorf("%q was accepted as a position", text)
		}
	}
}
