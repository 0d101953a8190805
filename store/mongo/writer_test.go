package mongo

import (
	"errors"
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/mongo"
)

// Only the server knows that a transaction was not committed.
func TestAbortedTransaction(t *testing.T) {
	const transient = "TransientTransactionError"
	for what, c := range map[string]struct {
		err  error
		want bool
	}{
		"the server has no such transaction": {mongo.CommandError{Code: 251, Labels: []string{transient}}, true},
		"the same, wrapped":                  {fmt.Errorf("commit: %w", mongo.CommandError{Code: 112, Labels: []string{transient}}), true},
		"the driver has no connection":       {mongo.CommandError{Labels: []string{transient}}, false},
		"a broken connection":                {mongo.CommandError{Labels: []string{"NetworkError", "UnknownTransactionCommitResult"}}, false},
		"a majority that is slow":            {mongo.CommandError{Code: 64, Labels: []string{"UnknownTransactionCommitResult"}}, false},
		"no answer of any kind":              {errors.New("eof"), false},
	} {
		if got := isAborted(c.err); got != c.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}
