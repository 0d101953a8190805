// Package event makes what a receiver gets for a row: its id, its headers, and the CloudEvent
// 1.0 that describes it. [Settings] are the keys of sinks of brokers, and an [Encoder] makes
// their messages. [Events] has the parts that a sink over HTTP shares with them.
//
// # Formats
//
//   - raw: the body is the payload, byte for byte, and the message has the headers of the
//     configuration only.
//   - cloudevents: the same, and the attributes of the event are headers (binary content mode).
//   - cloudevents-structured: the body is the event as JSON, with the payload as its data, or
//     data_base64 if it is not UTF-8, whatever content-type says. A payload that is not JSON
//     although content-type says so can never be sent.
//
// The attributes of an event:
//
//   - specversion, id (as [ID]) and source
//   - type: the row's type by default, or its kind if it has no type
//   - subject and partitionkey: the message group
//   - time: the row's attribute time, or its commit time; absent for a row without the
//     attribute that was read from the table
//
// A message of a replay also has the header Sluicebox-Replay with the id of the replay.
package event
