package app

import (
	"context"
	"math"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// Go keeps as much garbage as the program has live memory, and after a spike keeps it
// for minutes: a row of 100 MiB passes through several buffers of its size. So a relay
// has a soft limit, at which garbage is collected sooner, and gives memory back once
// large rows are gone. Neither costs anything where rows are small.
const (
	// minMemoryLimit is the least limit, for one sink with the default buffer-bytes; others
	// have as many times their buffers.
	minMemoryLimit     = 512 << 20
	limitPerBufferByte = 8
	// minReleasableMemory is how much memory a process must have to give some back.
	minReleasableMemory = 96 << 20
	// minReleaseInterval doubles to maxReleaseInterval while hardly anything can be given back.
	minReleaseInterval, maxReleaseInterval = time.Second, 20 * time.Second
)

// setMemoryLimit sets the soft limit, unless GOMEMLIMIT does, and returns it; 0 if it is
// not the relay's.
func setMemoryLimit(buffers int64) int64 {
	if debug.SetMemoryLimit(-1) != math.MaxInt64 {
		return 0
	}
	limit := max(minMemoryLimit, limitPerBufferByte*buffers)
	debug.SetMemoryLimit(limit)
	return limit
}

// releaseMemory gives memory back to the system from time to time, until the context
// ends. It raises a limit that what is live comes close to: collecting garbage all the
// time would not help.
func releaseMemory(ctx context.Context, limit int64) {
	wait := minReleaseInterval
	for sleep(ctx, wait) == nil {
		before, _ := readMemory()
		if before < minReleasableMemory {
			wait = minReleaseInterval
			continue
		}
		debug.FreeOSMemory()
		held, live := readMemory()
		if limit > 0 {
			debug.SetMemoryLimit(max(limit, 2*live))
		}
		if wait = min(2*wait, maxReleaseInterval); held < before*2/3 {
			wait = minReleaseInterval
		}
	}
}

// readMemory returns how much memory the runtime has from the system, and how much of
// it was live after the last collection, in bytes.
func readMemory() (held, live int64) {
	samples := []metrics.Sample{
		{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}, {Name: "/gc/heap/live:bytes"},
	}
	metrics.Read(samples)
	of := func(i int) int64 { return int64(samples[i].Value.Uint64()) } //nolint:gosec // bytes
	return of(0) - of(1), of(2)
}
