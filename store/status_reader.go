package store

import "context"

// StatusReader reports, without changing them, which rows no longer need delivery.
type StatusReader interface {
	// ReadSettled reports for each row, by position, whether a claim would return
	// AlreadySettled or Gone. It reports false if unknown.
	ReadSettled(ctx context.Context, rows []ClaimRow) ([]bool, error)
}
