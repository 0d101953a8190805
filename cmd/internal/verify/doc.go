// Package verify compares the rows of an outbox with the receipts of a receiver. It is pure: it reads
// no table and no file, so tests can plant each fault.
//
// A Checker takes rows and arrivals in any order, and Report joins them. Its caller reads the rows
// before the receipts: a receiver writes a receipt before it answers, so every row that was COMPLETED
// when the table was read has its receipt by then.
//
// A row takes about 150 bytes with an id of 36 bytes; see BenchmarkChecker.
package verify

import "time"

// State is what the outbox and the relay's records say of a row.
type State uint8

// States of a row.
const (
	// Owed: the row is neither settled nor does anything excuse that it has not arrived.
	Owed State = iota + 1
	// Waiting: the row is not settled, and may be on its way: it is young, spilled, or its lane is held.
	Waiting
	// Completed: the outbox says that the receiver accepted the row.
	Completed
	// Failed: the row is an explicit gap in its lane. It may have arrived.
	Failed
)

// Row is a row of the outbox.
type Row struct {
	ID    string
	Lane  string // rows of a lane arrive in order; "": the row has no order with any other
	State State
	// Order sorts the rows of a lane, for example the time of the insert in nanoseconds. Rows with the
	// same value have no order between them.
	Order int64
	// Sum is the hash of the body that the receiver should have got, in any form that receipts use;
	// "" if unknown. Case is ignored.
	Sum string
}

// Arrival is a receipt of a receiver.
type Arrival struct {
	ID  string
	At  time.Time
	Sum string // hash of the body; "" if unknown
	// Source numbers the file or topic. Arrivals of one source come in their order, whatever
	// their clock says; At compares those of several sources.
	Source int
	// Chain is the header Sluicebox-Chain of the message, "" if unknown, or if the arrivals of its
	// lane are in several sources.
	Chain string
}

// Kind is a kind of finding.
type Kind string

// Kinds of findings. All but Duplicate are faults.
const (
	Lost           Kind = "lost"            // Owed, and did not arrive
	FalseCompleted Kind = "false_completed" // Completed, and did not arrive
	OutOfOrder     Kind = "out_of_order"    // arrived first behind a later row of its lane
	BodyDiffers    Kind = "body_differs"    // arrived with another body, or with several
	Gap            Kind = "gap"             // arrived while a row before it in its chain had not
	Duplicate      Kind = "duplicate"       // arrived more than once
)

// Kinds are all kinds, the worst first.
func Kinds() []Kind { return []Kind{Lost, FalseCompleted, OutOfOrder, BodyDiffers, Gap, Duplicate} }

// Finding is a row with a fault, or with duplicates.
type Finding struct {
	Kind Kind   `json:"kind"`
	ID   string `json:"id"`
	Lane string `json:"lane,omitempty"`
	// Behind is the later row that arrived before an OutOfOrder row.
	Behind string `json:"behind,omitempty"`
	// Arrivals is how often the row arrived.
	Arrivals int `json:"arrivals"`
}

// Report is what a Checker found.
type Report struct {
	Rows      int `json:"rows"`      // of the outbox
	Completed int `json:"completed"` // of Rows
	Failed    int `json:"failed"`
	Waiting   int `json:"waiting"` // of Rows, without an arrival
	Arrived   int `json:"arrived"` // of Rows, at least once
	// Unknown counts ids that arrived and that the outbox does not have, for example because
	// their rows were deleted.
	Unknown int `json:"unknown"`
	// Duplicates counts arrivals beyond the first of a row.
	Lost           int `json:"lost"`
	FalseCompleted int `json:"false_completed"`
	OutOfOrder     int `json:"out_of_order"`
	BodyDiffers    int `json:"body_differs"`
	Gaps           int `json:"gaps"`
	Duplicates     int `json:"duplicates"`
	// Findings are at most Options.MaxFindings of each kind, the worst kind first.
	Findings []Finding `json:"findings"`
}

// Count returns the number of findings of a kind; of Duplicate, the surplus arrivals.
func (r *Report) Count(k Kind) int { return *r.count(k) }

func (r *Report) count(k Kind) *int {
	switch k {
	case Lost:
		return &r.Lost
	case FalseCompleted:
		return &r.FalseCompleted
	case OutOfOrder:
		return &r.OutOfOrder
	case BodyDiffers:
		return &r.BodyDiffers
	case Gap:
		return &r.Gaps
	}
	return &r.Duplicates
}

// Faulty reports whether anything but duplicates was found.
func (r *Report) Faulty() bool {
	return r.Lost+r.FalseCompleted+r.OutOfOrder+r.BodyDiffers+r.Gaps > 0
}
