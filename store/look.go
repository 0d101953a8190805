package store

import "context"

// Looker tells which rows need no delivery any more, without changing any.
type Looker interface {
	// Settled reports for each row, by position, whether a claim would answer
	// AlreadySettled or Gone. Where it cannot be known it says false.
	Settled(ctx context.Context, rows []ClaimRow) ([]bool, error)
}
