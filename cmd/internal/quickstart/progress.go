package quickstart

import (
	"fmt"
	"io"
	"sync"
	"time"
)

const (
	rewriteInterval = 200 * time.Millisecond
	lineInterval    = 2 * time.Second
)

// progress prints the state of a quickstart. On a terminal it rewrites one line each
// rewriteInterval; elsewhere it prints a line each lineInterval.
type progress struct {
	out       io.Writer
	terminal  bool
	readState func() (state, faultCount)
	begin     time.Time
}

// run prints the state until the channel is closed. On a terminal it then erases the
// line.
func (p *progress) run(done <-chan struct{}) {
	every := lineInterval
	if p.terminal {
		every = rewriteInterval
	}

	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-done:
			if p.terminal {
				_, _ = io.WriteString(p.out, "\r\x1b[K")
			}
			return
		case <-tick.C:
			s, f := p.readState()
			line := progressLine(time.Since(p.begin), &s, &f)
			if p.terminal {
				line = "\r\x1b[K" + line
			} else {
				line += "\n"
			}
			_, _ = io.WriteString(p.out, line) // progress is not worth an error
		}
	}
}

// start prints progress until the caller calls stop.
func (p *progress) start() (stop func()) {
	done := make(chan struct{})
	var shown sync.WaitGroup
	shown.Go(func() { p.run(done) })
	return sync.OnceFunc(func() { close(done); shown.Wait() })
}

// progressLine formats the state in fewer than 80 columns.
func progressLine(t time.Duration, s *state, f *faultCount) string {
	line := fmt.Sprintf("%5.1fs  %d committed  %d delivered  %d in flight  p50 %s  p99 %s",
		t.Seconds(), s.committed, s.delivered, s.committed-s.delivered, shortTime(s.p50), shortTime(s.p99))
	if n := f.total(); n > 0 {
		line += fmt.Sprintf("  %d faults", n)
	}
	return line
}

// shortTime formats a duration in milliseconds with two to three digits.
func shortTime(t time.Duration) string {
	ms := float64(t) / float64(time.Millisecond)
	switch {
	case t == 0:
		return "-"
	case ms < 10:
		return fmt.Sprintf("%.2f ms", ms)
	case ms < 100:
		return fmt.Sprintf("%.1f ms", ms)
	case ms < 10_000:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.0f s", ms/1000)
}
