package dispatch_test

import (
	"testing"

	"github.com/sluicebox/sluicebox/dispatch"
)

func TestRate(t *testing.T) {
	for text, want := range map[string]struct {
		rate    float64
		printed string
	}{
		"100/s": {100, "100/s"}, "600/m": {10, "10/s"}, "30/m": {0.5, "30/m"}, "1000/h": {1000.0 / 3600, "1000/h"}, "1/h": {1.0 / 3600, "1/h"},
		"0/s": {0, "0/s"}, " 2.5 /s": {2.5, "150/m"}, "0/m": {0, "0/s"},
	} {
		got, err := dispatch.ParseRate(text)
		if err != nil || float64(got) != want.rate || got.String() != want.printed {
			t.Errorf("%q: %v, %s, %v", text, float64(got), got, err)
		}
		if again, err := dispatch.ParseRate(got.String()); err != nil || again != got {
			t.Errorf("%s is read as %v: %v", got, float64(again), err)
		}
	}
	for _, text := range []string{"", "100", "/s", "-1/s", "100/d", "x/s", "NaN/s", "Inf/s", "1e300/s"} {
		if got, err := dispatch.ParseRate(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}
