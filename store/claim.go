package store

import (
	"fmt"
	"time"
)

// ClaimRow is one row to claim.
type ClaimRow struct {
	Ref
	// Txn is the transaction that inserted the row, as the log names it. It is 0 for a row
	// read from its table, and in databases whose log is never ahead of statement
	// visibility.
	Txn Txn
	// OwnClaimAt is the claim time that this leader wrote in an earlier claim of the row;
	// zero if there was none. With a takeover timeout, Claim compares it with the row to
	// distinguish the leader's own claim from another processor's.
	OwnClaimAt time.Time
	// RetryCount is the retry count that the caller believes to be stored in the row. A store may
	// expect it, to claim the row without reading it, and reads the row if it is another one.
	RetryCount int
	// WantPayload requests the row's current payload and attributes.
	WantPayload bool
}

// ClaimResult is the result of a claim for one row.
type ClaimResult uint8

// Results of a claim.
const (
	// Claimed: this leader owns the row, and the row is PROCESSING where claims are
	// written. Send it.
	Claimed ClaimResult = iota + 1
	// AlreadySettled: the row is COMPLETED or FAILED. Drop it.
	AlreadySettled
	// Held: another processor's claim holds the row until ClaimAnswer.Until. Wait.
	Held
	// NotYetVisible: the log is ahead of statement visibility, or another session is
	// writing the row. The row is not lost: claim it again soon.
	NotYetVisible
	// Gone: the inserting transaction is visible and the row does not exist. Drop it.
	Gone
	// TableLocked: another session keeps the outbox's table locked, and nothing was written
	// for this outbox. Wait with AwaitTable, then claim again.
	TableLocked
)

// String returns the result's name in logs and metrics.
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

// ClaimAnswer is the answer of Claim for one row.
type ClaimAnswer struct {
	Result ClaimResult
	// Until is when a Held row may be claimed.
	Until time.Time
	// RetryCount is the retry count stored in a Claimed row, 0 if the claim did not read
	// the row.
	RetryCount int
	// Unwritten reports that the claim wrote nothing into the row, so there is no claim to
	// give back.
	Unwritten bool
	// Payload and Attributes are a Claimed row's content, if requested. The caller owns it.
	Payload    []byte
	Attributes Attributes
	// Error is the reason why the table refused the claim of this row. Claim leaves it
	// empty: the caller sets it, with NotYetVisible, from a RefusedError for a single row.
	Error string
}

// Outcome is the result that the relay writes into a row.
type Outcome struct {
	Ref
	// Txn is the Txn of the row's claim. Settle uses it to distinguish a row that is not
	// visible yet, and that no claim has read, from a deleted row.
	Txn Txn
	// Status is Completed, Failed, or Pending. Pending is a counted retry or a claim that
	// is given back.
	Status Status
	// RetryCount is the new retry count. Settle writes it with every status except
	// Completed.
	RetryCount int
	// Error is the error text, written with Failed and Pending. An empty Error leaves the
	// row's text unchanged.
	Error  string
	Reason Reason
	// At is the settlement time. A retry keeps the time of the claim.
	At time.Time
	// Row is the row of a Failed outcome. The relay's own records keep what they need of it if
	// the layout does not store FAILED: its lane, kind and size, and its content if only the
	// log has the row; see Layout.LogOnly.
	Row *Item
	// Block makes a FAILED row block its lane: the row's lane becomes Blocked. Only Lane
	// and Since are read from Block; Settle takes the rest of the hold from the outcome.
	//
	//   - Settle records the hold in the outcome's transaction if the row is FAILED after
	//     it. That includes a row that was FAILED before, because the answer of an earlier
	//     call may have been lost.
	//   - If a call has several outcomes of one lane, the hold of the last is kept.
	Block *Hold
	// Receipt is the answer of the destination to the delivery of a Completed row. Settle writes
	// the values that the layout records; see Layout.Record.
	Receipt []Receipt
	// SpilledSeq is the Seq of the row's copy among the spilled rows, 0 if the row is not
	// spilled. An outcome that settles the row deletes the copy in the same transaction,
	// whatever the SettleResult, unless NeedsRetry is true for it. The call is then
	// durable: a server crash must not undo one write without the other.
	SpilledSeq Seq
	// Leg, if not nil, is the leg whose end brings the outcome. Settle then writes the outcome
	// into the row, and what accompanies it, in the same transaction, for the leg: its FAILED
	// record, its block, the deletion of its spilled copy, and the row's record. The call is
	// durable, as with SpilledSeq.
	Leg *LegEnd
}

// Validate reports whether the outcome may be written to box.
func (o *Outcome) Validate(box *Outbox) error {
	switch {
	case o.Status != Pending && !o.Status.Settled():
		return fmt.Errorf("invalid outcome status %s (row %q of outbox %s)", o.Status, o.ID, o.Outbox)
	case o.Block == nil:
		return nil
	case o.Status != Failed:
		return fmt.Errorf("row %q of outbox %s: outcome %s cannot block the lane; only FAILED can", o.ID, o.Outbox, o.Status)
	case o.Block.Lane.Outbox != o.Outbox:
		return fmt.Errorf("row %q of outbox %s: cannot block lane %s of another outbox", o.ID, o.Outbox, o.Block.Lane)
	}
	h := o.Hold()
	return h.Validate(box)
}

// DeletesSpilled reports whether the outcome also deletes its row from the spilled rows.
func (o *Outcome) DeletesSpilled() bool { return o.SpilledSeq != 0 && o.Status.Settled() }

// ChangesRecords reports whether the relay's records change in the transaction of the outcome, so
// that it must be durable.
func (o *Outcome) ChangesRecords() bool {
	return o.Status == Failed || o.DeletesSpilled() || o.Leg != nil
}

// Hold returns the hold that Block requests. Block must not be nil.
func (o *Outcome) Hold() Hold {
	return Hold{
		Lane: o.Block.Lane, Kind: Blocked, Since: o.Block.Since,
		ID: o.ID, RetryCount: o.RetryCount, Reason: o.Error,
	}
}

// SettleResult is the result of Settle for one outcome.
type SettleResult uint8

// Results of Settle.
const (
	// Written: the row has the outcome's values.
	Written SettleResult = iota + 1
	// WasSettled: the row was already COMPLETED or FAILED and is unchanged.
	WasSettled
	// WasGone: the row does not exist.
	WasGone
	// TooEarly: the log is ahead of statement visibility, and no claim waited for the row.
	// Nothing was written for this outcome; write it again soon.
	TooEarly
	// WasLocked: another session keeps the row locked. Nothing was written for this
	// outcome; write it again, together with others.
	WasLocked
	// TableWasLocked: another session keeps the outbox's table locked, and nothing was
	// written for this outbox. Wait with AwaitTable, then write again.
	TableWasLocked
	// Refused: the table rejected the outcome, for example by a trigger or a constraint.
	// Settle never returns it; the caller derives it from a RefusedError for a single row.
	Refused
)

// NeedsRetry reports whether the outcome has not been written yet.
func (r SettleResult) NeedsRetry() bool {
	return r == TooEarly || r == WasLocked || r == TableWasLocked || r == Refused
}
