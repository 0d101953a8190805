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
	// softLimit is the least limit, for one sink with the default buffer-bytes; others
	// have as many times their buffers.
	softLimit      = 512 << 20
	buffersOfLimit = 8
	// worthwhile is how much memory a process must have to give some back.
	worthwhile = 96 << 20
	// lookFirst doubles to lookMost while hardly anything can be given back.
	lookFirst, lookMost = time.Second, 20 * time.Second
)

// limitMemory sets the soft limit, unless GOMEMLIMIT does, and returns it; 0 if it is
// not the relay's.
func limitMemory(buffers int64) int64 {
	if debug.SetMemoryLimit(-1) != math.MaxInt64 {
		return 0
	}
	limit := max(softLimit, buffersOfLimit*buffers)
	debug.SetMemoryLimit(limit)
	return limit
}

// returnMemory gives memory back to the system from time to time, until the context
// ends. It raises a limit that what is live comes close to: collecting garbage all the
// time would not help.
func returnMemory(ctx context.Context, limit int64) {
	wait := lookFirst
	for rest(ctx, wait) == nil {
		before, _ := readMemory()
		if before < worthwhile {
			wait = lookFirst
			continue
		}
		debug.FreeOSMemory()
		held, live := readMemory()
		if limit > 0 {
			debug.SetMemoryLimit(max(limit, 2*live))
		}
		if wait = min(2*wait, lookMost); held < before*2/3 {
			wait = lookFirst
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
