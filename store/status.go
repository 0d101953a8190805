package store

import "context"

// Status is the state of a row.
type Status uint8

// States of a row. They start at 1, so that an unset status is noticed.
const (
	Pending Status = iota + 1
	Processing
	Completed
	Failed
)

// String returns the word in the README and the logs.
func (s Status) String() string {
	switch s {
	case Pending:
		return "PENDING"
	case Processing:
		return "PROCESSING"
	case Completed:
		return "COMPLETED"
	case Failed:
		return "FAILED"
	}
	return "UNKNOWN"
}

// Settled reports whether the state is final.
func (s Status) Settled() bool { return s == Completed || s == Failed }

// Reason is the class of a failure, for layouts that store a code for it.
type Reason uint8

// Reasons that layouts distinguish.
const (
	ReasonNone         Reason = iota
	ReasonBadRequest          // 400 and other 4xx
	ReasonUnauthorized        // 401
	ReasonForbidden           // 403
	ReasonGateway             // 502, 503, 504 and no connection
	ReasonInternal            // everything else
)

// String returns the word in configurations.
func (r Reason) String() string {
	switch r {
	case ReasonBadRequest:
		return "bad-request"
	case ReasonUnauthorized:
		return "unauthorized"
	case ReasonForbidden:
		return "forbidden"
	case ReasonGateway:
		return "gateway"
	case ReasonInternal:
		return "internal"
	}

	return "none"
}

// StatusReader reports, without changing them, which rows no longer need delivery.
type StatusReader interface {
	// ReadSettled reports for each row, by position, whether a claim would return
	// AlreadySettled or Gone. It reports false if unknown.
	ReadSettled(ctx context.Context, rows []ClaimRow) ([]bool, error)
}
