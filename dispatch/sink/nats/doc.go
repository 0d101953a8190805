// Package nats delivers rows to streams of NATS JetStream.
//
// Each row is one message. It is delivered once the stream's leader has acknowledged it. The id
// of the row, behind the name of its outbox, is its Nats-Msg-Id, so a stream drops a repetition within
// its duplicate window. A replay sends a row under another Nats-Msg-Id, because a dropped message
// would not be replayed.
//
// # Order
//
// A stream stores messages in the order in which it gets them, and may refuse one and store the
// next. A request has runs of many lanes (mode [sink.Prefix]), and of each lane one message is
// without an answer:
//
//   - BatchNone: the first messages of all lanes are sent before the first answer is awaited, and
//     the answer to a message sends the next one of its lane.
//   - BatchAtomic: a run of several messages is one atomic batch (ADR-50), which the server stores
//     as a whole or not at all. That needs NATS 2.12.1 and allow_atomic in the stream.
//
// A batch that repeats a message of the duplicate window is refused as a whole, for example if the
// answer to the first attempt was lost. Then its messages are sent one after the other, and the
// stream drops the repeated ones.
//
// # Connection
//
// The first Deliver or Probe connects. A lost connection is made again in the background. No
// message waits for that: it is [sink.Unavailable] at once, and its lane retries it.
package nats
