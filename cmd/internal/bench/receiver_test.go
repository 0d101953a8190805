package bench

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// request returns a body with rows of these numbers.
func request(numbers ...int) []byte {
	var rows []string
	for _, n := range numbers {
		rows = append(rows, payloadHead+rowID(n)+padding(60))
	}
	return []byte("[" + strings.Join(rows, ",") + "]")
}

func TestTallyFindsFaults(t *testing.T) {
	at := time.Unix(1e9, 0)
	for _, tc := range []struct {
		requests [][]int
		ordered  string // the error if order counts
		any      string // the error otherwise
	}{
		{[][]int{{5, 6}, {7, 8}}, "", ""},
		{[][]int{{6, 5}, {8, 7}}, "", ""}, // other groups
		{[][]int{{7, 8}, {5, 6}}, "2 before an earlier row", ""},
		{[][]int{{5, 6, 5}, {7, 8}}, "1 arrived twice", "1 arrived twice"},
		{[][]int{{4, 5, 6}, {7, 8, 9}}, "2 were never written", "2 were never written"},
	} {
		tl := newTally(5, 4, 2)
		for _, numbers := range tc.requests {
			if !tl.record(request(numbers...), at) {
				t.Errorf("%v was refused", numbers)
			}
		}
		select {
		case <-tl.done:
		default:
			t.Errorf("%v: not all have arrived", tc.requests)
		}
		for ordered, want := range map[bool]string{true: tc.ordered, false: tc.any} {
			if err := tl.check(ordered); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%v, ordered %v: %v, want %q", tc.requests, ordered, err, want)
			}
		}
	}
}

func TestRequestWithBlockedRowIsRefused(t *testing.T) {
	tl := newTally(1, 2, 1)
	if tl.record(request(1, firstBlockedRow+3), time.Now()) {
		t.Error("it was taken")
	}
	if tl.arrived != 0 {
		t.Errorf("%d rows of it count as arrived", tl.arrived)
	}
}

// TestReplayedRowsAreCountedApart: they were delivered before, so they are no duplicates.
func TestReplayedRowsAreCountedApart(t *testing.T) {
	to, err := startReceiver(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = to.stop() }()
	tl := newTally(5, 2, 1)
	to.tally.Store(tl)
	for _, replayed := range []bool{false, true} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, to.url+eventsPath, bytes.NewReader(request(5, 6)))
		if err != nil {
			t.Fatal(err)
		}
		if replayed {
			req.Header.Set("Sluicebox-Replay", "job")
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	if err := tl.check(true); err != nil || to.replayed.Load() != 2 {
		t.Errorf("%d rows were replayed, want 2; %v", to.replayed.Load(), err)
	}
}

func TestDrainIsTimedFromFirstRequest(t *testing.T) {
	begin := time.Unix(1e9, 0)
	tl := newTally(1, 10, 1)
	tl.record(request(1, 2), begin)
	tl.record(request(3, 4, 5, 6), begin.Add(time.Second))
	tl.record(request(7, 8, 9, 10), begin.Add(2*time.Second))
	if got := tl.drainFigures(0)[drainRate]; got != 4 {
		t.Errorf("%v rows/s, want the 8 rows behind the first request in 2 s", got)
	}
	if got := tl.drainFigures(6)[drainRate]; got != 2 {
		t.Errorf("%v rows/s, want the 4 rows behind the first wave in 2 s", got)
	}
}

func TestLatencyStartsAtCommit(t *testing.T) {
	at := time.Unix(1e9, 0)
	tl := newTally(1, 100, 1)
	for n := 1; n <= 100; n++ {
		tl.committed(n, at)
		tl.record(request(n), at.Add(time.Duration(n)*time.Millisecond))
	}
	got := latencyFigures(tl.latencies())
	if got[p50] != 51 || got[p99] != 100 {
		t.Errorf("the percentiles of 1 to 100 ms are %v", got)
	}
}

func TestPayloadHasItsSize(t *testing.T) {
	for _, size := range []int{minSize, 200, 4096} {
		if got := len(payloadHead) + idDigits + len(padding(size)); got != size {
			t.Errorf("a payload of %d bytes has %d: %s", size, got, fmt.Sprint(payloadHead, rowID(1), padding(size)))
		}
	}
}
