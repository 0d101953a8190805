package app

import (
	"context"
	"math"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
	"time"

	"github.com/sluicebox/sluicebox/store/backoff"
)

// Go lets garbage grow to the size of the live heap and keeps it for minutes after a
// spike. For example, a row of 100 MiB passes through several buffers of its size. So the
// relay sets a soft limit, at which Go collects sooner, and returns memory to the system
// after large rows. Neither has a cost where rows are small.
const (
	// minMemoryLimit is the limit for one sink with the default buffer-bytes. Larger
	// buffers raise it to limitPerBufferByte times their size.
	minMemoryLimit     = 512 << 20
	limitPerBufferByte = 8
	// minReleasableMemory is the size of a process below which no memory is returned.
	minReleasableMemory = 96 << 20
	// The interval doubles from minReleaseInterval to maxReleaseInterval while hardly any
	// memory can be returned.
	minReleaseInterval, maxReleaseInterval = time.Second, 20 * time.Second
)

// memoryLimit is the soft memory limit of the process.
type memoryLimit struct{ bytes atomic.Int64 } // 0 if GOMEMLIMIT is set

// start sets the limit, unless GOMEMLIMIT is set; see set.
func (m *memoryLimit) start(buffers, ingest int64) {
	if debug.SetMemoryLimit(-1) == math.MaxInt64 {
		m.bytes.Store(1) // no longer that of the environment
		m.set(buffers, ingest)
	}
}

// set changes the limit after a reload. ingest is what requests to ingest may take.
func (m *memoryLimit) set(buffers, ingest int64) {
	if m.bytes.Load() > 0 {
		m.bytes.Store(max(minMemoryLimit, limitPerBufferByte*buffers) + ingest)
		debug.SetMemoryLimit(m.bytes.Load())
	}
}

// release periodically returns memory to the system until the context ends. It raises the limit
// when live memory comes close to it, because constant collection would not free anything.
func (m *memoryLimit) release(ctx context.Context) {
	wait := backoff.Doubling{Min: minReleaseInterval, Max: maxReleaseInterval}
	for wait.Wait(ctx) == nil {
		before, _ := readMemory()
		if before < minReleasableMemory {
			wait.Reset()
			continue
		}
		debug.FreeOSMemory()
		held, live := readMemory()
		if limit := m.bytes.Load(); limit > 0 {
			debug.SetMemoryLimit(max(limit, 2*live))
		}
		if held < before*2/3 {
			wait.Reset()
		}
	}
}

// readMemory returns the bytes that the runtime holds from the system and the bytes that
// were live after the last collection.
func readMemory() (held, live int64) {
	samples := []metrics.Sample{
		{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}, {Name: "/gc/heap/live:bytes"},
	}
	metrics.Read(samples)
	of := func(i int) int64 { return int64(samples[i].Value.Uint64()) } //nolint:gosec // bytes
	return of(0) - of(1), of(2)
}
