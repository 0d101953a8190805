// Package ledger keeps the relay's own records: the checkpoint, named checkpoints, replays
// and their errors, holds, spilled rows and the rows of replays. It writes each of them once,
// as a typed Go value, over a small [Backend] that every database implements.
//
// # Records and queues
//
// A record is a JSON text under a kind and a key. A queue holds rows of the outboxes in
// lanes, each row under a number: the spilled rows under their Seq, in the queue "", and the
// rows of a replay under their N, in the queue that is named like the key of its record.
//
// An operator's request and the leader's report are separate records, so that neither
// overwrites the other. For example, the kind job-spec has what a replay was asked to do, and
// the kind job has how far it is.
//
// # Transactions
//
// [Backend.Update] is fenced: only the leader writes. [Backend.Request] is not, because any
// process may write requests. A store that writes records together with rows of an outbox
// calls [Ledger.AfterSettle] or [Ledger.AfterResolve] in its own transaction.
//
// A transaction locks a hold before the record of its blocking row, so that two of them do
// not deadlock. Calls of the leader that change the same replay run one after another,
// because each reads the record and writes it back. Calls for different replays may overlap.
// Another process cannot interfere, because it does not lead.
package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Durability is the kind of crash that a committed transaction survives.
type Durability uint8

const (
	// Normal transactions survive the death of any process. A power failure may undo the
	// latest of them.
	Normal Durability = iota
	// Full transactions survive a power failure.
	Full
	// Barrier is Full, and every write that finished since AcquireLeadership is durable too.
	// If that is uncertain, Update writes nothing and returns store.ErrInterrupted.
	Barrier
)

// Backend stores the records and queues of one relay. Package ledgertest is its test suite.
//
// A call may run do several times, each time after it rolled the changes back, so do must
// reset what it collects. An error of do rolls back and is returned; it wraps the error of
// do unchanged. do must not call the Backend.
//
// The name of a queue follows the rules of a key, or is "".
//
// A value that the database rejects, for example by a trigger, is a *store.RefusedError.
type Backend interface {
	// Update runs do in a transaction of the leader. It returns store.ErrNotLeader, and
	// writes nothing, unless the leader row has the epoch and this store's holder.
	Update(ctx context.Context, epoch store.Epoch, d Durability, do func(context.Context, Tx) error) error
	// Request runs do in a Full transaction of any process. It counts the request: nth is
	// its number, and the version of the record Requests. Requests run one after another.
	Request(ctx context.Context, do func(ctx context.Context, tx Tx, nth int64) error) error
	// View runs do on one snapshot.
	View(ctx context.Context, do func(context.Context, Reader) error) error
}

// RelayKind is the kind of the single records of a relay, and Requests the key of the record
// that counts its requests. The record has no content; Request writes it.
const (
	RelayKind = "relay"
	Requests  = "requests"
)

// AfterKeys follows every character of a key, so the keys with a prefix end before the prefix
// and AfterKeys.
const AfterKeys = "\x7f"

// SpilledQueue is the queue of the spilled rows.
const SpilledQueue = ""

// Record is a JSON text in ASCII under a key. Kinds and keys are printable ASCII, have at
// most 100 bytes, and are not empty.
type Record struct {
	Key  string
	Body []byte
}

// RecordReader reads records.
type RecordReader interface {
	// Get returns the body of each record, by position, nil if there is none.
	Get(ctx context.Context, kind string, keys ...string) ([][]byte, error)
	// List calls take for the records whose key begins with prefix, ordered by key, up to
	// limit of them; 0 means all. It reads them as it goes, because there may be millions.
	// take must not use the reader.
	List(ctx context.Context, kind, prefix string, limit int, take func(Record) error) error
}

// QueueReader reads queues. The Seq of a row is its number in the queue.
type QueueReader interface {
	// Range returns, for each range by position, up to each rows of the lane behind After,
	// ordered by number. The rows are as enqueued, without Captured. A Txn is 0 once the
	// transaction is visible.
	Range(ctx context.Context, queue string, from []store.SpilledRange, each int) ([][]store.Item, error)
	// Scan returns the rows of a queue, ordered by number and outbox, without payload.
	Scan(ctx context.Context, q Scan) ([]store.Item, error)
	// Lanes calls take for each lane of an outbox with rows in the queue, in no order. It
	// reads them as it goes, because there may be millions. If two kinds share a KindHash,
	// Kind may be either.
	Lanes(ctx context.Context, queue, outbox string, take func(store.SpilledLane)) error
}

// Scan selects the first rows of a queue by their numbers.
type Scan struct {
	Queue    string
	Outboxes []string // nil: all
	After    int64    // the rows have greater numbers
	Limit    int      // must be positive
	// Heads omits rows with an earlier row in their lane, whatever its number.
	Heads bool
}

// Reader reads records and queues.
type Reader interface {
	RecordReader
	QueueReader
}

// Ref names a row of a queue by its outbox and number. The row must also be of the lane, or
// have the id if Lane is zero. So a row that got the same number by mistake is not meant.
type Ref struct {
	store.Ref
	N    int64
	Lane store.LaneHash
}

// Writer writes records and queues.
type Writer interface {
	// Put writes records and increases their versions by 1. A new record has version 1. The
	// keys of a call differ.
	Put(ctx context.Context, kind string, records ...Record) error
	// Delete deletes records. A missing one is not an error.
	Delete(ctx context.Context, kind string, keys ...string) error
	// Enqueue adds rows to a queue, each under its Seq, and returns their number.
	//
	//   - A row that is in the queue already, with the same outbox, number, id and lane, is
	//     left unchanged and not counted. If another row has its number, the call returns
	//     the error of NumberTaken.
	//   - Captured is not stored; nor is a Txn that is visible.
	//   - A payload that is too large for the database may be omitted.
	Enqueue(ctx context.Context, queue string, rows []store.Item) (added int, err error)
	// Dequeue removes rows and returns their number. A missing row is not an error. If
	// removed is not nil, it gets the Ref, Kind, Group and Seq of each removed row once, with
	// the index of its ref.
	Dequeue(ctx context.Context, queue string, refs []Ref, removed func(i int, row *store.Item)) (int, error)
	// Clear removes the rows that Scan would return, without Heads. It returns their number,
	// and the number of the last of them in the queue.
	Clear(ctx context.Context, q Scan) (n int, last int64, err error)
}

// NumberTaken returns the error for a row whose number in a queue another row has, for
// example because the leader row was deleted and the epochs started over.
func NumberTaken(row *store.Item) error {
	return &store.RefusedError{Err: fmt.Errorf("row %q of outbox %s: number %d belongs to another row", row.ID, row.Outbox, row.Seq)}
}

// Tx is a transaction.
type Tx interface {
	Reader
	Writer
	// Lock is Get, and locks the existing records until the end of the transaction.
	Lock(ctx context.Context, kind string, keys ...string) ([][]byte, error)
	// Now returns the time of the transaction by the server's clock.
	Now(ctx context.Context) (time.Time, error)
}
