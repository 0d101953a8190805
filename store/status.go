package store

// Status is the state of a row.
type Status uint8

// The states of a row. They are numbered from 1, so that a forgotten one shows.
const (
	Pending Status = iota + 1
	Processing
	Completed
	Failed
)

// String returns the word that the README and the logs use.
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

// Reason says why a row FAILED or is being retried, for layouts that keep a
// code for it.
type Reason uint8

// The reasons that layouts tell apart.
const (
	ReasonNone         Reason = iota
	ReasonBadRequest          // 400 and other 4xx
	ReasonUnauthorized        // 401
	ReasonForbidden           // 403
	ReasonGateway             // 502, 503, 504 and no connection
	ReasonInternal            // everything else
)

// String returns the word that configurations use.
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
