package bench

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRatioIsMedianOfRounds(t *testing.T) {
	b := &bench{opts: Options{Repeat: 3}, scenario: findScenario("latency"), server: &postgresServer{info: serverInfo{version: "PostgreSQL 15.1"}}}
	res := b.result([][]figures{
		{{p50: 2, p99: 8}, {p50: 3, p99: 9}, {p50: 40, p99: 10}},
		nil, // the relay with claims on
		{{p50: 1, p99: 1}, {p50: 1, p99: 9}, {p50: 40, p99: 10}},
		nil, // the floor without claims
	}, time.Second, 7)
	i := slices.IndexFunc(res.Measures, func(m Measure) bool { return m.Name == p50 })
	m := res.Measures[i]
	// The ratios are 2, 3 and 1. The ratio of the medians would be 3.
	if m.Median != 3 || m.AgainstMedian != 1 || m.Ratio != 2 || *m.Reached || m.Goal != "<= 0.8" {
		t.Errorf("p50 is %+v", m)
	}
	if i := slices.IndexFunc(res.Measures, func(m Measure) bool { return m.Name == p99 }); !*res.Measures[i].Reached {
		t.Errorf("p99 is %+v", res.Measures[i])
	}
	var text strings.Builder
	if err := res.writeText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"3 ms", "floor", "2.00", "<= 0.8", "missed", "reached", "7 % of the"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is not in the table:\n%s", want, text.String())
		}
	}
}

func TestNumbersHaveThreeDigits(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.12345: "0.123", 1.2: "1.2", 12.345: "12.3", 123.45: "123", 28123.4: "28123"} {
		if got := Number(v); got != want {
			t.Errorf("%v is written %s, want %s", v, got, want)
		}
	}
}
