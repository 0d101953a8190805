package app

import (
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/admin"
)

func TestRates(t *testing.T) {
	now := time.Unix(1_700_000_000, 500)
	var m meter
	expect := func(at time.Time, ten, minute float64) {
		t.Helper()
		if got := ratesOf(&m, at); got != (admin.Rates{TenSeconds: ten, Minute: minute}) {
			t.Errorf("the rates are %+v, want %v and %v", got, ten, minute)
		}
	}
	expect(now, 0, 0)
	m.add(now, 100)
	expect(now, 0, 0) // the current second does not count yet
	expect(now.Add(2*time.Second), 50, 50)
	for range 60 {
		now = now.Add(time.Second)
		m.add(now, 100)
	}
	expect(now, 100, 100)
	expect(now.Add(6*time.Second), 50, 55*100/60.)
	expect(now.Add(time.Minute), 0, 100/60.)
	expect(now.Add(time.Hour), 0, 0)
	m.add(now.Add(time.Hour), 7)
	expect(now.Add(time.Hour+time.Second), 0.7, 7/60.)
}
