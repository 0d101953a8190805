package sink

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Message is the data of one row that a sink delivers.
type Message struct {
	// Outbox is the name of the outbox that has the row, or of the leg that delivers it, for
	// example orders/hooks. With it an id is unique.
	Outbox string

	// ID is the id of the row. It is the same on every attempt, so receivers can drop
	// duplicates by (Kind, ID).
	ID      string
	Kind    string // the row's own; see store.Item.OwnKind
	Group   store.Group
	Payload []byte // read-only

	// Attributes are the values of the row's other columns that the outbox names.
	Attributes store.Attributes

	// Attempt is the number of this attempt, from 1. A new leader starts at 1 again.
	Attempt int

	// Committed is the commit time of the row's transaction, by the database's clock.
	// It is zero where the time is unknown, for example for a row that was read from
	// the table.
	Committed time.Time

	// Captured is when the relay read the row, and Claimed when it last began to claim it, by the
	// relay's clock. Claimed is zero for a row that is sent before it is claimed.
	Captured, Claimed time.Time

	// Replay is the id of the replay that sends the row again, "" for a live row. All
	// messages of a request have the same Replay.
	Replay string

	// Chain is the value of ChainHeader, "" for a row without a chain.
	Chain string

	// Lane is the number of the message's lane in the request, from 0. Messages of one
	// lane follow each other, in order.
	Lane int
}

// Mode is how a destination responds to a request of several messages.
type Mode uint8

// Modes of a destination.
const (
	// Atomic: the receiver accepts all messages or none.
	Atomic Mode = iota + 1

	// Ordered: the receiver stops at the first failure and reports its position.
	Ordered

	// PerItem: the receiver reports a result for each message, and may accept a message
	// behind one that failed. A request has one message of each lane, because two would
	// lose their order.
	PerItem

	// Prefix: the receiver stores some of the leading messages of each lane, for example
	// the first 7 of 10, and reports a result for each message. It stores no message
	// unless it has stored those before it in the lane, even if the sink has reported them
	// all as failed because an answer was lost. Lanes do not affect each other.
	//
	// The first message of a lane that was not stored decides the lane's next step. If the
	// messages behind it have its class, one of them may be the cause, for example of a
	// batch that was refused as a whole. If that message alone is the cause, the sink
	// returns NotSent for those behind it.
	Prefix
)

// Limits bounds a request to a destination.
type Limits struct {
	Mode Mode

	// Endpoint names the endpoint for messages of this kind. Each endpoint has a
	// circuit breaker of its own, so a failure of one endpoint does not affect
	// another.
	Endpoint string

	// EndpointOf, if not nil, names the endpoint of each message instead, for example its
	// host. A request then has messages of one endpoint only, a failing endpoint does not
	// delay the others, and one that does not answer holds only part of the senders. The
	// name is shown to operators, so it holds no secret. It is "" for a message that cannot
	// be sent.
	EndpointOf func(m *Message) string

	// OwnEndpoints: what EndpointOf names are parts of one destination, such as the topics of a
	// cluster. An open circuit breaker of one of them is reported as one of the sink, because it
	// is for the operator to mend. The hosts of customers are not.
	OwnEndpoints bool

	// MaxItems is the maximum number of messages in a request.
	MaxItems int

	// MaxBytes is the maximum number of payload bytes in a request of several
	// messages. A single message may exceed it. The sink then decides whether to
	// reject the message.
	MaxBytes int

	// MaxLanes is the maximum number of lanes in a request, 0 for no limit. A destination
	// that stores a batch atomically, but only for one subject, has 1.
	MaxLanes int

	// MaxRun is the maximum number of messages of a lane in a request of several lanes, 0 for no
	// limit. A sink that sends each message after the answer to the one before has a small one,
	// because the lanes of a request wait for the longest of them. If more lanes are ready than the
	// request has room for, it takes one message of each.
	MaxRun int
}

// Sink delivers messages to one destination. Its methods are safe for concurrent use.
type Sink interface {
	// Limits returns the bounds of a request with messages from lanes of one kind. They
	// never change.
	Limits(kind string) Limits

	// Deliver sends messages from lanes of one kind in one request and returns their
	// outcomes. Their own kinds differ where the kind is an attribute. It returns when the outcome is known or the context ends. A request that the
	// context ended is Unavailable.
	Deliver(ctx context.Context, msgs []Message) Result
}

// Func is a [Sink] of one function, for a program with a destination of its own. A request
// has up to 100 messages, together up to 1 MiB, and one outcome for all of them.
type Func func(ctx context.Context, msgs []Message) Result

// Limits implements Sink.
func (Func) Limits(string) Limits { return Limits{Mode: Atomic, MaxItems: 100, MaxBytes: 1 << 20} }

// Deliver implements Sink.
func (f Func) Deliver(ctx context.Context, msgs []Message) Result { return f(ctx, msgs) }

// Prober checks whether a sink can reach its receiver. Every built-in sink implements
// it.
type Prober interface {
	// Probe takes the path of a delivery (proxy, TLS, credentials) without delivering
	// a row. The kind "" stands for any kind that the sink accepts. The classes mean:
	//
	//   - Delivered: the receiver is reachable and did not object.
	//   - Refused: the receiver is reachable, but its response leaves a doubt.
	//   - Unavailable: the receiver cannot be reached.
	//   - Misconfigured: the address or the credentials are wrong.
	//
	// The detail is never empty. It names both the facts that the probe proves and
	// those that it does not.
	Probe(ctx context.Context, kind string) Outcome
}

// Pinger is a sink whose receiver accepts a request without rows. Unlike a [Prober],
// a ping proves that the API exists, works and accepts the credentials. A sink whose
// API has no such request does not implement Pinger, because there only a delivered
// row proves that.
type Pinger interface {
	// Ping sends a request without rows to the endpoint of a kind, "" for any. It
	// changes nothing at the receiver. Delivered means that the receiver would have
	// accepted rows. Rejected and Refused prove nothing, because the receiver may
	// only object to the empty request. Every other class has its usual meaning.
	//
	// ok is false, and nothing was sent, if the kind has no such request.
	Ping(ctx context.Context, kind string) (res Result, ok bool)
}

// Reporter is a sink that has more to report than the outcomes of rows, because the relay's own
// log and metrics are its destination.
type Reporter interface {
	// ReportTo is called once, before the first Deliver. count adds rows to the metric of the
	// sink by kind and type. Both may be called at any time, and return at once.
	ReportTo(log *slog.Logger, count func(kind, typ string, rows int))
}

// FileError reports that a sink cannot be opened because a file is missing or
// invalid. The same configuration may work later, once the file is fixed.
type FileError struct {
	Key string // configuration key; "" if Err names it
	Err error
}

// Error returns the key and the cause.
func (e *FileError) Error() string {
	if e.Key == "" {
		return e.Err.Error()
	}
	return e.Key + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *FileError) Unwrap() error { return e.Err }

// Class is the meaning of a response for the rows of the request.
type Class uint8

// Classes of a response.
const (
	// Delivered: the receiver has the row.
	Delivered Class = iota + 1

	// Rejected: the receiver read the row and does not accept it (400, 413, 422).
	Rejected

	// Refused: the receiver failed, possibly because of the row (500, 501, other
	// 4xx).
	Refused

	// Unavailable: the receiver cannot be reached or asks for a later attempt.
	Unavailable

	// Misconfigured: the address or the credentials are wrong, or the response does
	// not come from the API.
	Misconfigured

	// NotSent: the message was not part of the request. NotSent proves nothing about
	// the row or the receiver. The first message of a request never has it: the sink
	// either sends it or rejects it.
	NotSent
)

// String returns the name of the class for logs and metrics.
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

// Receipt is a value that the destination answered about a delivered message, for example the
// offset of a record.
type Receipt = store.Receipt

// Outcome is the outcome of one message.
type Outcome struct {
	Class  Class
	Reason store.Reason

	// Detail is one line for the row's error column and the log. It holds no secrets,
	// and is empty if the message was delivered.
	Detail string

	// Suspect says of an Unavailable message that it may be the cause itself: the destination
	// failed on it alone, and works otherwise. It counts against the row with proof, and never
	// without, so that an outage makes no dead letters.
	Suspect bool

	// Final says of a Rejected message that no later attempt can succeed: it is larger than the
	// destination takes. If it failed alone, the row is FAILED at once.
	Final bool

	// Receipt is the answer of the destination to a Delivered message. The relay writes it
	// into the columns of the row that the outbox names for it; see store.Layout.Record. Most
	// destinations have none. The names of a sink's receipts never change.
	Receipt []Receipt
}

// Result is the outcome of a request.
type Result struct {
	// Outcome applies to every message, unless Items is set.
	Outcome

	// Items has the outcome of each message, by position. It is nil if one outcome
	// applies to all messages.
	Items []Outcome

	// Skipped counts the delivered messages that the receiver reported as skipped: it
	// has them, but did nothing with them. They become COMPLETED and are counted in a
	// metric.
	Skipped int

	// Notice is a fact about the destination that the log should have, "" for none. For
	// example, a topic got more partitions, which moves the keys of its records. It holds no
	// secret.
	Notice string

	// Unsent: no request was made, because the first message can never be sent. The result
	// proves nothing about the receiver.
	Unsent bool

	// RetryAfter is the pause that the receiver asks for, 0 for none. The dispatcher
	// caps it.
	RetryAfter time.Duration
}

// At returns the outcome of message i.
func (r *Result) At(i int) Outcome {
	if r.Items == nil {
		return r.Outcome
	}
	return r.Items[i]
}

// ResultOf returns the result of a request with an outcome for each message. Failures of all
// messages that are alike are one of the request, and no verdict on any of them.
func ResultOf(items []Outcome, alike func(first, other *Outcome) bool) Result {
	first := &items[0]
	one := len(items) == 1 || (first.Class == Unavailable || first.Class == Misconfigured) &&
		!slices.ContainsFunc(items, func(other Outcome) bool { return !alike(first, &other) })
	if one {
		return Result{Outcome: *first}
	}
	return Result{Items: items}
}

// SameClass is for [ResultOf]: a message that was not sent is like any other.
func SameClass(first, other *Outcome) bool {
	return other.Class == first.Class || other.Class == NotSent
}

// RejectFirst returns the result for n messages whose first can never be sent.
func RejectFirst(n int, reason string) Result {
	out := Outcome{Class: Rejected, Reason: store.ReasonBadRequest, Detail: reason}
	if n == 1 {
		return Result{Outcome: out, Unsent: true}
	}
	return Result{Items: []Outcome{out}, Unsent: true}.Pad(1, n)
}

// Pad extends a result for the first n messages to all of them: the others are NotSent.
//
// A failure of the whole request stays as it is. Items would be verdicts on single
// rows, and there are none: the dispatcher has to bisect or wait, and then sends
// fewer rows.
func (r Result) Pad(n, all int) Result {
	if n == all || r.Items == nil && r.Class != Delivered {
		return r
	}

	items := make([]Outcome, all)
	for i := range items {
		items[i] = Outcome{Class: NotSent}
		if i < n {
			items[i] = r.At(i)
		}
	}
	r.Outcome, r.Items = Outcome{}, items
	return r
}
