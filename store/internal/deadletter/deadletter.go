// Package deadletter mends FAILED rows, whatever the database: rows are chosen
// without a lock, however long that takes, and then those are written that are
// still FAILED.
package deadletter

import (
	"fmt"

	"github.com/sluicebox/sluicebox/store"
)

// maxTries bounds how often rows are chosen again because all that were chosen had
// changed when it came to write.
const maxTries = 5

// FiltersInProgram reports whether the program has to look at the group of each row: it
// stands in JSON.
func FiltersInProgram(o *store.Outbox, f *store.DeadLetterFilter) bool {
	return f.Group != nil && len(o.Layout.GroupPath) > 0
}

// Resolve chooses rows of an outbox, writes them, and returns those that were written.
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
	return nil, &store.RefusedError{Err: fmt.Errorf("outbox %s: a trigger keeps the FAILED rows as they are, or somebody else changes them again and again", outbox)}
}
