package store

import "context"

// StatusReader tells which rows need no delivery any more, without changing any.
type StatusReader interface {
	// ReadSettled reports for each row, by position, whether a claim would answer
	// AlreadySettled or Gone. Where it cannot be known it says false.
	ReadSettled(ctx context.Context, rows []ClaimRow) ([]bool, error)
}
