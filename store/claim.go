package store

import (
	"fmt"
	"time"
)

// ClaimRow is one row to claim.
type ClaimRow struct {
	Ref
	// Txn is the transaction that inserted the row, as the log names it; 0 for a
	// row that was read from its table, and in databases whose log is never ahead
	// of what statements see.
	Txn Txn
	// OwnClaimAt is the time that this leader wrote at an earlier claim of the row;
	// zero if there was none. With a takeover time-out it tells the leader's
	// own claim from somebody else's.
	OwnClaimAt time.Time
	// WantPayload asks for the payload as the row has it now.
	WantPayload bool
}

// ClaimResult says what became of one row of a claim.
type ClaimResult uint8

// What a claim answers for a row.
const (
	// Claimed: the row is this leader's, and PROCESSING where claims are written.
	// Send it.
	Claimed ClaimResult = iota + 1
	// AlreadySettled: the row is COMPLETED or FAILED. Drop it.
	AlreadySettled
	// Held: somebody else's claim holds the row until ClaimAnswer.Until. Wait.
	Held
	// NotYetVisible: the log is ahead of what statements see, or somebody is
	// writing the row just now. Ask again soon; the row is not lost.
	NotYetVisible
	// Gone: the transaction is visible and the row is not there. Drop it.
	Gone
	// TableLocked: somebody keeps the table of the row's outbox locked, and nothing
	// was written of this outbox. Wait for it with AwaitTable, then claim again.
	TableLocked
)

// String names the result for logs and metrics.
func (r ClaimResult) String() string {
	switch r {
	case Claimed:
		return "claimed"
	case AlreadySettled:
		return "already_settled"
	case Held:
		return "held"
	case NotYetVisible:
		return "not_yet_visible"
	case Gone:
		return "gone"
	case TableLocked:
		return "table_locked"
	}
	return "unknown"
}

// ClaimAnswer is what a claim found out about one row.
type ClaimAnswer struct {
	Result ClaimResult
	// Until is when a row that is Held may be claimed.
	Until time.Time
	// RetryCount is the count that a Claimed row records, 0 if the claim did not
	// look at the row.
	RetryCount int
	// Unwritten: the claim left no trace in the row. There is nothing to give back.
	Unwritten bool
	// Payload is a Claimed row's payload, if it was wanted. The caller owns it.
	Payload []byte
	// Error says why the table refused the claim of a row. Claim leaves it empty: the
	// caller derives it, with NotYetVisible, from a RefusedError for a single row.
	Error string
}

// Outcome is what a relay writes into a row.
type Outcome struct {
	Ref
	// Txn is that of the row's claim. By it Settle tells a row that is not visible
	// yet, which no claim has looked at, from one that is gone.
	Txn Txn
	// Status is Completed, Failed, or Pending for a counted retry or a claim
	// that is given back.
	Status Status
	// RetryCount is the new count. It is written with every status but
	// Completed.
	RetryCount int
	// Error is written with a failure. Empty leaves the row's text alone.
	Error  string
	Reason Reason
	// At is written as the time of settlement. A retry keeps the claim's time.
	At time.Time
	// Block asks, of a FAILED row, that its lane stays Blocked: the lane and the
	// time are those given here, the rest is the outcome's. The hold is recorded
	// in the outcome's transaction, if the row is FAILED after it; also if it was
	// FAILED before, because an earlier answer was lost. Of several outcomes of
	// one lane in a call, the last one's hold stays. Layouts that keep no state
	// cannot block: Settle refuses the call with a *SetupError.
	Block *Hold
	// SpilledSeq is the seq under which the row is parked, 0 if it is not. With an
	// outcome that settles the row the parked one is forgotten in the same
	// transaction, whatever Settle answers for it, unless it is to be written Again,
	// and the call is durable: a server that crashed must not bring the one back without the other.
	SpilledSeq Seq
}

// Validate reports whether an outcome may be written for its outbox.
func (o *Outcome) Validate(box *Outbox) error {
	switch {
	case o.Status != Pending && !o.Status.Settled():
		return fmt.Errorf("%s is no outcome (row %q of outbox %s)", o.Status, o.ID, o.Outbox)
	case o.Block == nil:
		return nil
	case o.Status != Failed:
		return fmt.Errorf("row %q of outbox %s is to be %s, and only a FAILED row blocks its lane", o.ID, o.Outbox, o.Status)
	case o.Block.Lane.Outbox != o.Outbox:
		return fmt.Errorf("row %q of outbox %s cannot block lane %s, of another outbox", o.ID, o.Outbox, o.Block.Lane)
	}
	h := o.Hold()
	return h.Validate(box)
}

// Hold returns the hold that Block asks for; Block must not be nil.
func (o *Outcome) Hold() Hold {
	return Hold{
		Lane: o.Block.Lane, Kind: Blocked, Since: o.Block.Since,
		ID: o.ID, RetryCount: o.RetryCount, Reason: o.Error,
	}
}

// SettleResult says what became of one outcome.
type SettleResult uint8

// What Settle answers for a row.
const (
	// Written: the row now says what the outcome says.
	Written SettleResult = iota + 1
	// WasSettled: the row was COMPLETED or FAILED already and is left as it is.
	WasSettled
	// WasGone: there is no such row.
	WasGone
	// TooEarly: the log is ahead of what statements see, and no claim has waited
	// for the row. Nothing was written of this outcome; write it again soon.
	TooEarly
	// WasLocked: somebody keeps the row locked. Nothing was written of this outcome;
	// write it again, together with others.
	WasLocked
	// TableWasLocked: somebody keeps the table of the outbox locked, and nothing was
	// written of this outbox. Wait for it with AwaitTable, then write again.
	TableWasLocked
	// Refused: the table did not take the outcome (a trigger or a constraint
	// objects). Settle does not answer it: the caller derives it from a RefusedError
	// for a single row.
	Refused
)

// NeedsRetry reports whether the outcome has yet to be written.
func (r SettleResult) NeedsRetry() bool {
	return r == TooEarly || r == WasLocked || r == TableWasLocked || r == Refused
}
