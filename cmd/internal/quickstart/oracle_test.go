package quickstart

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// oracleWith returns an oracle with n committed rows of one group, a millisecond apart, and
// the time of the first commit.
func oracleWith(n int) (*oracle, time.Time) {
	o, begin := newOracle(2), time.Now()
	for i := range n {
		o.committed(o.begin(1), begin.Add(time.Duration(i)*time.Millisecond), true)
	}
	return o, begin
}

func rows(numbers ...int) []order {
	list := make([]order, len(numbers))
	for i, n := range numbers {
		list[i] = order{1, n}
	}
	return list
}

// TestOracle: the oracle detects each fault of a relay and describes it.
func TestOracle(t *testing.T) {
	allDone := map[string]int{completed: 5}
	for name, tt := range map[string]struct {
		arrive [][]order
		states map[string]int
		want   string // "" for no fault
		d      [4]int // delivered, duplicates, out of order, unknown
	}{
		"all well":      {[][]order{rows(1), rows(2, 3), rows(4, 5)}, allDone, "", [4]int{5, 0, 0, 0}},
		"a loss":        {[][]order{rows(1, 2), rows(4, 5)}, allDone, "1 row was committed but not delivered\nnot delivered, for example: 0000100000003", [4]int{4, 0, 0, 0}},
		"the last lost": {[][]order{rows(1, 2, 3)}, allDone, "2 rows were committed but not delivered", [4]int{3, 0, 0, 0}},
		"a swap":        {[][]order{rows(1, 3), rows(2, 4, 5)}, allDone, "1 row arrived after a later row of its group\nrow 0000100000002 arrived after row 0000100000003", [4]int{5, 0, 1, 0}},
		"reversed":      {[][]order{rows(5, 4, 3, 2, 1)}, allDone, "4 rows arrived after a later row", [4]int{5, 0, 4, 0}},
		"a duplicate":   {[][]order{rows(1, 2), rows(2, 3, 4, 5)}, allDone, "1 row arrived again\nrow 0000100000002 arrived again", [4]int{5, 1, 0, 0}},
		"twice":         {[][]order{rows(1, 2, 3, 4, 5), rows(1, 2, 3, 4, 5)}, allDone, "5 rows arrived again", [4]int{5, 5, 0, 0}},
		"late twice":    {[][]order{rows(2), rows(1), rows(1, 3, 4, 5)}, allDone, "1 row arrived again; 1 row arrived after a later", [4]int{5, 1, 1, 0}},
		"nobody's row":  {[][]order{rows(1, 2, 3, 4, 5), rows(6)}, allDone, "1 row arrived that was not committed\nrow 0000100000006 arrived but was never written", [4]int{5, 0, 0, 1}},
		"nobody's group": {[][]order{rows(1, 2, 3, 4, 5), {{2, 1}, {-1, 1}, {0, 0}}}, allDone,
			"3 rows arrived that were not committed", [4]int{5, 0, 0, 3}},
		"FAILED": {[][]order{rows(1, 2, 3, 4, 5)}, map[string]int{completed: 4, failed: 1}, "1 row is FAILED", [4]int{5, 0, 0, 0}},
		"not settled": {[][]order{rows(1, 2, 3, 4, 5)}, map[string]int{completed: 3, "PENDING": 1, "PROCESSING": 1},
			"2 rows are not settled", [4]int{5, 0, 0, 0}},
		"not in the table": {[][]order{rows(1, 2, 3, 4, 5)}, map[string]int{completed: 4}, "the table has 4 rows, but 5 were committed", [4]int{5, 0, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			o, begin := oracleWith(5)
			for i, list := range tt.arrive {
				o.recordRequest(list, begin.Add(time.Duration(i)*time.Second))
			}
			s, _ := o.currentState()
			if got := [4]int{s.delivered, s.duplicates, s.outOfOrder, s.unknown}; got != tt.d || s.committed != 5 {
				t.Errorf("committed %d, and delivered, duplicates, out of order, unknown are %v, want 5 and %v", s.committed, got, tt.d)
			}
			err := resultError(&s, tt.states)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("resultError: got %v, want %q", err, tt.want)
			}
		})
	}
}

// TestOracleArrivalFirst: the receiver may see a row before its writer's COMMIT returns.
func TestOracleArrivalFirst(t *testing.T) {
	o, now := newOracle(1), time.Now()
	r := o.begin(0)
	o.recordRequest([]order{r}, now)
	s, _ := o.currentState()
	if s.delivered != 0 || s.uncommitted != 1 || resultError(&s, nil) == nil {
		t.Errorf("before the commit: %+v", s)
	}
	o.committed(r, now.Add(time.Millisecond), true)
	if s, _ = o.currentState(); s.delivered != 1 || s.uncommitted != 0 || s.p50 > time.Microsecond || resultError(&s, map[string]int{completed: 1}) != nil {
		t.Errorf("after it: %+v", s)
	}
}

// TestOracleUntimed: an untimed row counts as delivered, whether the commit or the arrival
// is recorded first.
func TestOracleUntimed(t *testing.T) {
	o, now := newOracle(1), time.Now()
	a, b, c := o.begin(0), o.begin(0), o.begin(0)
	o.committed(a, now, false)
	o.recordRequest([]order{a, b}, now.Add(time.Hour))
	o.committed(b, now, false)
	o.committed(c, now, true)
	o.recordRequest([]order{c}, now.Add(10*time.Millisecond))
	if s, _ := o.currentState(); s.delivered != 3 || s.p99 < 10*time.Millisecond || s.p99 > 10200*time.Microsecond {
		t.Errorf("got %+v, want 3 rows and a latency of 10 ms", s)
	}
}

// TestOracleCountsAsTheDefinitionSays compares the counts with those of a second, direct
// computation, for random arrivals.
func TestOracleCountsAsTheDefinitionSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o, begin := oracleWith(8)
		arrivals := rapid.SliceOf(rapid.IntRange(1, 9)).Draw(t, "arrivals")
		o.recordRequest(rows(arrivals...), begin)
		var delivered, duplicates, late, unknown int
		for i, n := range arrivals {
			before, later := false, false
			for _, m := range arrivals[:i] {
				before = before || m == n
				later = later || m > n && m < 9
			}
			switch {
			case n == 9:
				unknown++
			case before:
				duplicates++
			default:
				delivered++
				if later {
					late++
				}
			}
		}
		s, _ := o.currentState()
		if s.delivered != delivered || s.duplicates != duplicates || s.outOfOrder != late || s.unknown != unknown {
			t.Fatalf("%v counts as %+v, want %d delivered, %d again, %d late, %d unknown", arrivals, s.tally, delivered, duplicates, late, unknown)
		}
		whole := delivered == 8 && duplicates+late+unknown == 0
		if err := resultError(&s, map[string]int{completed: 8}); (err == nil) != whole {
			t.Fatalf("%v: resultError: got %v", arrivals, err)
		}
	})
}
