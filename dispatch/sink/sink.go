package sink

import (
	"context"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Message is what a sink sends for one row.
type Message struct {
	// ID is the row's id on every attempt: receivers drop duplicates by
	// (Kind, ID).
	ID      string
	Kind    string
	Group   store.Group
	Payload []byte // not to be changed
	// Attempt counts the requests that carried the row under this leader,
	// from 1.
	Attempt int
	// Committed is when the row's transaction committed, by the database's
	// clock; zero where it is not known, as for a row from a table read.
	Committed time.Time
	// Replay names the replay that sends the row again; "" for a live row. All
	// messages of a request have the same.
	Replay string
}

// Mode says how a destination answers a request of several messages.
type Mode uint8

// The modes.
const (
	// Atomic: all messages were taken, or none.
	Atomic Mode = iota + 1
	// Ordered: it stops at the first failure and says where.
	Ordered
	// PerItem: an answer for each message, whatever became of the others.
	PerItem
)

// Limits bounds a request to a destination.
type Limits struct {
	Mode Mode
	// Endpoint names where messages of the kind go. What the answers of one
	// endpoint prove or make suspect says nothing of another.
	Endpoint string
	// MaxItems is the most messages in a request.
	MaxItems int
	// MaxBytes is the most payload bytes in a request of several messages. A
	// single message may exceed it: the sink then refuses it by itself.
	MaxBytes int
}

// Sink delivers messages to one destination. All methods are safe for
// concurrent use.
type Sink interface {
	// Limits returns the bounds of a request with messages of one kind. It does
	// not change while the sink lives.
	Limits(kind string) Limits
	// Deliver sends messages of one kind in one request and says what became of
	// them. It returns when the answer is known or the context ends; a request
	// cut short by the context counts as Unavailable.
	Deliver(ctx context.Context, msgs []Message) Result
}

// Prober is a sink that can be asked whether it would reach its receiver. All sinks
// are that.
type Prober interface {
	// Probe goes the way of a delivery of one kind of rows, with its proxy, TLS and
	// credentials, and delivers nothing. "" is any kind that the sink takes. The
	// class is Delivered where the receiver is reached and has nothing against it;
	// Refused where it is reached and its answer leaves a doubt; Unavailable where
	// it is not reached; Misconfigured where the address or the credentials are
	// wrong. The detail is never empty: it says what is proven, and what is not.
	Probe(ctx context.Context, kind string) Outcome
}

// Pinger is a sink whose receiver takes a request without rows. The answer proves what
// no [Prober] can: that the API is there, works and takes the credentials. A sink
// without such a request is no Pinger, because to send a row is the only proof then.
type Pinger interface {
	// Ping sends a request without rows to the endpoint of a kind, "" for any. It changes
	// nothing at the receiver. Delivered: the receiver would have taken rows. Any other
	// class means what it means for a request with rows, except Rejected and Refused:
	// the receiver may just not like an empty request, so they prove nothing.
	// ok is false where the kind has no such request; nothing was sent then.
	Ping(ctx context.Context, kind string) (res Result, ok bool)
}

// FileError says that a sink cannot be opened for want of a file, or for what is in it.
// The same configuration may work later.
type FileError struct {
	Key string // of the configuration; "" where Err names it
	Err error
}

// Error returns the key and what is wrong.
func (e *FileError) Error() string {
	if e.Key == "" {
		return e.Err.Error()
	}
	return e.Key + ": " + e.Err.Error()
}

// Unwrap returns what is wrong.
func (e *FileError) Unwrap() error { return e.Err }

// Class says what an answer means for the rows.
type Class uint8

// The classes of an answer.
const (
	// Delivered: the receiver has it.
	Delivered Class = iota + 1
	// Rejected: the receiver read the row and will not have it (400, 413, 422).
	Rejected
	// Refused: a failure of the receiver that may be the row's fault (500, 501,
	// other 4xx).
	Refused
	// Unavailable: the receiver cannot be reached or asks to come back later.
	Unavailable
	// Misconfigured: the address or the credentials are wrong, or what answers
	// is not the API.
	Misconfigured
	// NotSent: the message was not part of the request. It says nothing about
	// the row or the receiver. The first message of a request is always sent, or
	// refused by the sink itself.
	NotSent
)

// String names the class for logs and metrics.
func (c Class) String() string {
	switch c {
	case Delivered:
		return "delivered"
	case Rejected:
		return "rejected"
	case Refused:
		return "refused"
	case Unavailable:
		return "unavailable"
	case Misconfigured:
		return "misconfigured"
	case NotSent:
		return "not_sent"
	}
	return "unknown"
}

// Outcome is what became of one message.
type Outcome struct {
	Class  Class
	Reason store.Reason
	// Detail is one line for the row's error column and the log, without
	// secrets. Empty when delivered.
	Detail string
}

// Result is what became of a request.
type Result struct {
	// Outcome holds for every message unless Items says otherwise.
	Outcome
	// Items are per-message outcomes, by position; nil where the answer is one
	// for all.
	Items []Outcome
	// Skipped is how many of the delivered messages the receiver has, but says that it
	// did nothing with: they are COMPLETED, and counted.
	Skipped int
	// RetryAfter is how long the receiver asks to be left alone; zero if it
	// does not say. The dispatcher caps it.
	RetryAfter time.Duration
}

// At returns the outcome of message i.
func (r *Result) At(i int) Outcome {
	if r.Items == nil {
		return r.Outcome
	}
	return r.Items[i]
}
