// Package camunda publishes rows as messages of Camunda 8, which start process instances or
// correlate with waiting ones. It uses one of the two APIs of a gateway:
//
//   - REST: POST /v2/messages/publication, for URLs with http or https
//   - gRPC: PublishMessage of gateway_protocol.Gateway, for URLs with grpc or grpcs
//
// # The message
//
// A row is one message. Its name, its correlation key and its tenant are templates. Its variables
// are the payload, a JSON object, with those of the configuration added. With PayloadMessage the
// payload has name, correlationKey and variables itself.
//
// The messageId is the row's id, the same on every attempt. A gateway refuses a second message of
// the same name, correlation key and messageId while it has the first, which is its time to live.
// That refusal (409, ALREADY_EXISTS) is a delivery. A row of a replay has another messageId, because
// a refused message would not be replayed.
//
// # Order
//
// The API has no call for several messages, so a request has one row, and the rows of other lanes
// have requests at the same time. Messages of one correlation key go to one partition of Camunda,
// which keeps their order.
//
// # Classes
//
// Statuses of REST are classified by [sink.Classify], those of gRPC as [classOf] lists them. Both
// have three exceptions:
//
//   - An existing message is a delivery.
//   - A message larger than the gateway accepts is rejected, although the gateway reports it like
//     backpressure.
//   - A tenant of the configuration that the gateway refuses is [sink.Misconfigured].
package camunda
