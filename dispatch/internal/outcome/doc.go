// Package outcome holds the outcomes of rows on their way to the store. It is pure: it
// starts no goroutine, reads no clock and writes nothing.
//
// An outcome is in one place at a time:
//
//	Place         Enters it                                  Leaves it
//	waiting       Add, while its table is not locked         Next, or a lock of its table
//	being written Next                                       Written
//	deferred      Handle: TooEarly, WasLocked or Refused     Due, when its time has come
//	set aside     Add or Handle, while its table is locked   UnlockTable
//
// While many outcomes wait they are written in two statements at a time: each writes one half of the lanes, so
// that a lane's rows are settled in order. One statement would leave the server idle while its result is
// handled and the next one is built. While few outcomes wait, one statement writes all.
//
// Due and UnlockTable give outcomes back to the caller, which adds them again: a row may
// have been spilled meanwhile. Each result that needs a retry has its own wait:
//
//	Result          Wait
//	TooEarly        that of a claim of a row not yet visible
//	WasLocked       100 ms doubling to 1 s, aligned so that locked rows share a statement
//	TableWasLocked  until the table is free
//	Refused         1 s doubling to 1 min; it is then written alone
//
// For example, a trigger that rejects FAILED is met after 1, 2, 4, … 60 seconds, and the
// outcomes of other rows are written meanwhile.
package outcome
