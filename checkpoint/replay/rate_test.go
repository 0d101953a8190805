package replay

import (
	"testing"
	"time"
)

// TestRate: a limit permits its burst at once, and then its rate.
func TestRate(t *testing.T) {
	now := time.Unix(1000, 0)
	r := newRateLimiter(50, 10)
	sent, begun := 0, now
	for now.Sub(begun) < 10*time.Second {
		rows, next := r.available(now, 7)
		if rows > 7 {
			t.Fatalf("%d rows may go", rows)
		}
		if rows == 0 {
			if !next.After(now) {
				t.Fatalf("at %s none may go, and one at %s", now, next)
			}
			now = next
			continue
		}
		r.consume(now, rows)
		sent += rows
	}

	if sent < 499 || sent > 511 {
		t.Errorf("%d rows went in 10 s", sent)
	}

	now = now.Add(time.Hour)
	if rows, _ := r.available(now, 100); rows != 10 {
		t.Errorf("after an hour %d rows may go at once", rows)
	}

	none := newRateLimiter(0, 10)
	if rows, _ := none.available(now, 100); rows != 100 {
		t.Errorf("without a bound %d rows may go", rows)
	}
}
