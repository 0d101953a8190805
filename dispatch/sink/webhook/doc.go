// Package webhook delivers to any HTTP endpoint, one row a request, signed as
// Standard Webhooks 1.0.0 lays down and on demand as a CloudEvent.
//
// # What is sent
//
// The body is the payload, byte for byte, under content-type. These headers name
// and sign it:
//
//	webhook-id         id-prefix and the row's id, the same on every attempt
//	webhook-timestamp  the second of this attempt
//	webhook-signature  v1,… for each of the secrets, by blanks apart; without secrets none
//	Idempotency-Key    what webhook-id is
//	Sluicebox-Replay   the id of the replay that sends the row again; for a live row none
//
// Characters that a header cannot carry, and %, are percent-encoded, in
// webhook-id the full stop too: what is signed is "id.timestamp.body", which a
// full stop in the id would make ambiguous. An id of more than 255 bytes is
// replaced by "sha256-" and its digest. Receivers drop duplicates by webhook-id;
// one that takes rows of two outboxes, whose ids may meet, tells them apart with
// the help of id-prefix.
//
// With format cloudevents the request is a CloudEvent 1.0 in binary content mode
// too: ce-specversion, ce-id (as webhook-id), ce-source, ce-type (the row's kind
// by default), ce-subject and ce-partitionkey (the message group), and ce-time
// (the commit of the row, where the relay saw it; a row that was read from the
// table has none). Bytes of an id or a group that are no UTF-8 are encoded as
// they are; a strict receiver refuses such an event.
//
// # Headers
//
// Fixed headers come from the configuration alone, never from a row. Names that
// belong to the connection, to the signature or to the relay are refused:
// Host, Content-Length, Transfer-Encoding, Connection and their like,
// Accept-Encoding, Content-Type and User-Agent (which have keys), Idempotency-Key,
// and all that begin with webhook-, ce- or sluicebox-. Authorization is free
// unless token makes it. All values are treated as secrets.
//
// Of what the relay knows of a row, only what metadata-headers lists is sent:
//
//	kind     Sluicebox-Kind
//	group    Sluicebox-Group; none for a row without a group
//	attempt  Sluicebox-Attempt, the requests with this row so far, from 1; a new leader starts again
//
// They are percent-encoded like the attributes of a CloudEvent. A group of more
// than 2 KiB is left out of all headers, since few servers would take it.
//
// # What an answer means
//
// A 2xx is a delivery whatever its body, a page too: Standard Webhooks says so,
// and an endpoint has no answer of its own by which it could be told from another.
// A body that breaks off, or is long or slow, changes nothing. 409 is
// a failure like any other 4xx; with treat-409-as-delivered it means "I have it
// already". 410 says that the endpoint wants
// no more: the sink is misconfigured, no row is to blame. Redirects are not
// followed. All else is as [sink.Classify] has it.
//
// # Secrets
//
// An endpoint's address is often its key. Details name scheme and host only, and
// what a receiver echoes of path, query, token, fixed headers and signing keys is taken
// out, in whatever form. Payloads are not: a receiver that quotes one puts it into the
// row's error, unless error-detail is status.
package webhook
