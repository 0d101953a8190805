// Package deadletter requeues and deletes FAILED rows on any database. It selects rows
// without a lock, which may take long, and then writes those rows that are still FAILED.
package deadletter

import (
	"fmt"

	"github.com/sluicebox/sluicebox/store"
)

// maxTries limits how often rows are selected again because all of them had changed before
// the write.
const maxTries = 5

// FiltersInProgram reports whether the group of each row must be compared in Go, because
// the group is inside JSON.
func FiltersInProgram(o *store.Outbox, f *store.DeadLetterFilter) bool {
	return f.Group != nil && len(o.Layout.GroupPath) > 0
}

// Resolve selects rows of an outbox, writes them, and returns the written rows.
func Resolve(outbox string, choose func() ([]store.DeadLetter, error), write func([]store.DeadLetter) ([]store.DeadLetter, error)) ([]store.DeadLetter, error) {
	for range maxTries {
		letters, err := choose()
		if err != nil {
			return nil, err
		}
		done, err := write(letters)
		if err != nil || len(done) > 0 || len(letters) == 0 {
			return done, err
		}
	}
	return nil, &store.RefusedError{Err: fmt.Errorf("outbox %s: FAILED rows keep changing before the write, or a trigger restores them", outbox)}
}
