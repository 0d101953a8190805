package quickstart

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestProgressLine(t *testing.T) {
	s := state{tally: tally{committed: 1260, delivered: 1258}, p50: 412 * time.Microsecond, p99: 1260 * time.Microsecond}
	if got, want := progressLine(4200*time.Millisecond, &s, &faultCount{}), "  4.2s  1260 committed  1258 delivered  2 in flight  p50 0.41 ms  p99 1.26 ms"; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	f := faultCount{}
	f.failed[disconnected], f.failed[serverError] = 3, 4
	if got := progressLine(0, &state{}, &f); got != "  0.0s  0 committed  0 delivered  0 in flight  p50 -  p99 -  7 faults" {
		t.Errorf("got %q", got)
	}
	// A typical line fits 80 columns.
	s = state{tally: tally{committed: 99999, delivered: 99990}, p50: 9990 * time.Microsecond, p99: 99 * time.Millisecond}
	if got := progressLine(99*time.Second, &s, &faultCount{}); len(got) >= 80 {
		t.Errorf("%d columns: %q", len(got), got)
	}
}

func TestShortTime(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "-", time.Microsecond: "0.00 ms", 345 * time.Microsecond: "0.34 ms", 9990 * time.Microsecond: "9.99 ms",
		12345 * time.Microsecond: "12.3 ms", 250 * time.Millisecond: "250 ms", 9 * time.Second: "9000 ms", 90 * time.Second: "90 s",
	} {
		if got := shortTime(d); got != want {
			t.Errorf("%s is %q, want %q", d, got, want)
		}
	}
}

// showProgress runs progress for a time while a row arrives each 100 ms.
func showProgress(t *testing.T, terminal bool, d time.Duration) string {
	t.Helper()
	var out bytes.Buffer
	synctest.Test(t, func(*testing.T) {
		begin := time.Now()
		p := &progress{out: &out, terminal: terminal, begin: begin, readState: func() (state, faultCount) {
			n := int(time.Since(begin) / (100 * time.Millisecond))
			return state{tally: tally{committed: n, delivered: n}}, faultCount{}
		}}
		stop := p.start()
		time.Sleep(d)
		stop()
		stop() // a second call is allowed
	})
	return out.String()
}

func TestProgressOnATerminal(t *testing.T) {
	out := showProgress(t, true, 1100*time.Millisecond)
	lines := strings.Split(out, "\r\x1b[K")
	if len(lines) != 7 || strings.Contains(out, "\n") || lines[6] != "" {
		t.Fatalf("5 lines a second, each in place of the one before, and none at the end; got %q", lines)
	}
	if !strings.HasPrefix(lines[5], "  1.0s  10 committed") {
		t.Errorf("the last line is %q", lines[5])
	}
}

func TestProgressElsewhere(t *testing.T) {
	out := showProgress(t, false, 5*time.Second)
	lines := strings.Split(out, "\n")
	if len(lines) != 3 || lines[2] != "" || strings.ContainsAny(out, "\r\x1b") {
		t.Fatalf("2 lines in 5 s, and no control characters; got %q", out)
	}
	if !strings.HasPrefix(lines[1], "  4.0s  40 committed") {
		t.Errorf("the last line is %q", lines[1])
	}
}
