// Package webhook delivers to any HTTP endpoint, one row per request or several. Requests
// are signed per Standard Webhooks 1.0.0 and can be CloudEvents.
//
// # The request
//
// With format raw the body is the payload, byte for byte, with the content type of
// content-type. These headers identify and sign it:
//
//	webhook-id         id-prefix and the row's id, the same on every attempt
//	webhook-timestamp  the Unix time of this attempt in seconds
//	webhook-signature  v1,… for each secret, separated by spaces; absent without secrets
//	Idempotency-Key    the same id as webhook-id
//	Sluicebox-Replay   the id of the replay that sends the row again; absent for a live row
//
// Characters that a header cannot carry, and %, are percent-encoded. webhook-id also
// encodes the full stop, because the signed text "id.timestamp.body" would otherwise
// be ambiguous. An id of more than 255 bytes is replaced by "sha256-" and its digest.
// Receivers drop duplicates by webhook-id. A receiver with rows of two outboxes,
// whose ids may collide, needs an id-prefix for each.
//
// With format cloudevents the request is also a CloudEvent 1.0 in binary content
// mode. It then has these headers:
//
//   - ce-specversion, ce-id (as webhook-id) and ce-source
//   - ce-type: the row's type by default, or its kind if it has no type
//   - ce-subject and ce-partitionkey: the message group
//   - ce-time: the row's attribute time, or its commit time; absent for a row without
//     the attribute that was read from the table
//
// With cloudevents-structured and cloudevents-batch these attributes are in the body, a JSON
// event or a list of them, and the payload is its data: data_base64 if it is not UTF-8,
// whatever content-type says. With json-array the body is a list of payloads. A row whose
// payload cannot be part of such a body is rejected. A list has several rows, which have one
// answer: its webhook-id is a digest of their ids, and it has no Idempotency-Key.
//
// Invalid UTF-8 in an id or a group is encoded byte by byte, and a strict receiver
// refuses such an event.
//
// # Values of the row
//
// The path and the query of url, the values of headers, cloudevents-type and
// cloudevents-subject may have the fields {id}, {kind}, {group}, {type} and {attr.NAME}, an
// attribute. A value is escaped for where it stands and cannot leave it: a row whose value
// would lead to another path is rejected, as is a row without a value for a field of the
// address or of the type.
//
// With AllowHosts the host may have fields too, or a field at the beginning of url has the
// whole address, for example {attr.target_url}. A row then goes only to hosts of the list, and
// to addresses that package egress permits. Such a sink has no credentials of the
// configuration, which every host would get.
//
// # Headers
//
// Names of headers come from the configuration, never from a row. Names that belong to
// the connection, to the signature or to the relay are rejected: Host,
// Content-Length, Transfer-Encoding, Connection and the like, Accept-Encoding,
// Content-Type and User-Agent (which have keys of their own), Idempotency-Key, and
// all that start with webhook- or sluicebox-. With a format of CloudEvents, ce-NAME is an
// extension; the names that the relay sets are rejected. Authorization is permitted unless
// token or oauth sets it. All texts are treated as secrets.
//
// metadata-headers adds facts about a row:
//
//	kind     Sluicebox-Kind
//	group    Sluicebox-Group; absent for a row without a group
//	type     Sluicebox-Type; absent for a row without a type
//	time     Sluicebox-Time, as ce-time
//	attempt  Sluicebox-Attempt, the number of this attempt, from 1; a new leader starts at 1 again
//
// They are percent-encoded like the attributes of a CloudEvent. A value of more than
// 2 KiB is left out of all headers, because few servers accept one.
//
// # Classes
//
// A 2xx is a delivery whatever its body, even an HTML page. Standard Webhooks
// requires that, and a generic endpoint has no response format to check. A body that
// is long, slow or incomplete changes nothing. The other statuses are classified by
// [sink.Classify], with two exceptions:
//
//   - 409 is a delivery if treat-409-as-delivered is set, else a failure like any
//     other 4xx.
//   - 410 means that the endpoint wants no more rows. It is Misconfigured, because no
//     row is to blame.
//
// Redirects are not followed.
//
// # Secrets
//
// The address of an endpoint is often its key, so details name its scheme and host
// only. If a receiver echoes the path, the query, the token, a fixed header or a
// signing key, the detail does not show it, in whatever encoding. Payloads are not
// redacted: a receiver that quotes a payload puts it into the row's error, unless
// error-detail is status.
package webhook
