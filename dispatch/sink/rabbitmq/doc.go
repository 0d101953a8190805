// Package rabbitmq delivers rows to an exchange of RabbitMQ over AMQP 0-9-1.
//
// Each row is one message. It is delivered once the broker has confirmed it, which for a persistent
// message in a durable queue is after it is on disk, and in a quorum queue after a majority has it.
// The message-id is the id of the row, the same on every attempt: RabbitMQ drops no repetitions.
//
// # Order
//
// A broker may refuse one message and store the next, so a request has at most one message of each
// lane ([sink.PerItem]), and the next follows the confirmation. Messages of several lanes are
// confirmed together. A request has a channel of its own, from a pool.
//
// # Failures
//
// The broker closes a channel because of one message. The others of the request have no answer
// then. They are sent again at once, alone if the reason names none, so only the guilty one fails.
// One of them may be stored twice.
//
// A lost connection fails its requests, and the next one connects. A request that times out gives up
// its channel; if nothing at all has arrived meanwhile, it gives up the connection.
package rabbitmq
