// Package trail remembers the attempts of rows for operators: those of rows that fail, and those of
// the rows that were settled last. It is bounded, pure, and not safe for concurrent use.
package trail

import (
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// maxAttempts is how many attempts of a row are kept, the latest ones. maxError limits the text of
// each, in bytes.
const (
	maxAttempts = 10
	maxError    = 500
)

// Failures are the failed attempts of a row. Nil has none.
type Failures struct {
	latest []store.Attempt
	total  int
}

// Add records a failed attempt. It returns f, or new failures if f is nil.
func (f *Failures) Add(a store.Attempt) *Failures {
	if f == nil {
		f = &Failures{}
	}
	if len(a.Error) > maxError {
		a.Error = strings.ToValidUTF8(a.Error[:maxError], "") + "…"
	}
	if len(f.latest) == maxAttempts {
		f.latest = slices.Delete(f.latest, 0, 1)
	}
	f.latest = append(f.latest, a)
	f.total++
	return f
}

// Latest returns the latest attempts, the oldest first. The slice is the caller's.
func (f *Failures) Latest() []store.Attempt {
	if f == nil {
		return nil
	}
	return slices.Clone(f.latest)
}

// Total is the number of failed attempts.
func (f *Failures) Total() int {
	if f == nil {
		return 0
	}
	return f.total
}

// Record is a row that was answered or settled. Times are in nanoseconds since 1970, 0 if unknown, so
// that a record holds few pointers.
type Record struct {
	Ref                 store.Ref
	Committed, Captured int64
	Started, Answered   int64 // of the attempt that delivered it
	Settled             int64 // when its outcome was known to be in the store; 0: not yet
	Failures            *Failures
	Error               string       // of a FAILED row
	Attempts            int          // all requests that carried the row
	Status              store.Status // Completed or Failed
}

// Nanos returns a time as records have it.
func Nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// Time returns the time of Nanos.
func Time(nanos int64) time.Time {
	if nanos == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanos)
}

// Ring holds the latest records. The zero value holds none.
type Ring struct {
	records []Record
	next    uint32 // number of the next record, from 1; it may wrap around
	size    int
}

// NewRing returns a ring of at most size records. It takes no memory until it is used.
func NewRing(size int) Ring { return Ring{size: size} }

// Add adds a record in place of the oldest one, and returns its number, which is never 0.
func (r *Ring) Add(rec *Record) uint32 {
	if r.next++; r.next == 0 {
		r.next = 1
	}
	if len(r.records) < r.size {
		r.records = append(r.records, *rec)
		return r.next
	}
	*r.at(r.next) = *rec
	return r.next
}

// at returns the place of a number.
func (r *Ring) at(n uint32) *Record { return &r.records[int(n-1)%r.size] }

// Settle records that the outcome of a record is in the store. It does nothing if the record has
// been replaced.
func (r *Ring) Settle(n uint32, row *store.Ref, at time.Time) {
	if n == 0 || len(r.records) == 0 {
		return
	}
	if rec := r.at(n); rec.Ref == *row {
		rec.Settled = at.UnixNano()
	}
}

// Find returns the latest record of a row, nil if there is none. The time is linear in the records.
func (r *Ring) Find(row store.Ref) *Record {
	for rec := range r.latestFirst() {
		if rec.Ref.ID == row.ID && rec.Ref.Outbox == row.Outbox {
			return rec
		}
	}
	return nil
}

func (r *Ring) latestFirst() iter.Seq[*Record] {
	return func(yield func(*Record) bool) {
		if len(r.records) == 0 {
			return
		}
		last := int(r.next-1) % r.size
		for i := range r.records {
			if !yield(&r.records[(last-i+len(r.records))%len(r.records)]) {
				return
			}
		}
	}
}
