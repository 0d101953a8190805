// Package document maps outbox documents to items: it defines how BSON values become the
// id, kind, group and payload. The MongoDB store and source both use it, so a document
// yields the same item wherever it was read.
//
// # Names
//
// A column of a layout is a field of the document, or a dotted path through subdocuments. A
// path cannot lead into an array.
//
// # Ids, kinds, groups and attributes
//
// They travel as text:
//
//   - A string is its characters.
//   - An ObjectID is its 24 hexadecimal digits, in lower case.
//   - A UUID (binary, subtype 4) is its 36 characters, in lower case. Binary values of
//     subtype 0, 3 or 5 are 0x and their hexadecimal digits, in lower case.
//   - An int, a long and a double without a fraction are their decimal digits, because
//     the server also treats 1 and 1.0 as equal.
//
// Kinds, attributes and the parts of a group may have any other type and become its plain JSON
// (see below) without quotes. A missing field, null and undefined mean no attribute, no group,
// and the empty kind of a lane. An id must have one of the types above; a document with another
// id cannot be relayed.
//
// An attribute that is spread has the members of a subdocument, or of the JSON object in a
// string, in their plain JSON. The attribute time also takes a timestamp, by its seconds.
//
// The text does not identify the type. [IDs] returns every value with that text, and a
// statement asks for all of them. A claim refuses two documents of one collection whose ids
// differ only in type.
//
// # Payloads
//
// Strings and binary values are sent byte for byte, except a UUID, which is sent as its 36
// characters. Everything else is sent as plain JSON, for receivers that know nothing of
// BSON:
//
//   - Documents and arrays become objects and lists; keys keep their order.
//   - Ints, longs and doubles become numbers. NaN and the infinities, which JSON lacks,
//     become null. A Decimal128 becomes a string, so that no digit is lost.
//   - Dates become RFC 3339 strings in UTC with milliseconds. Dates outside the years 0
//     to 9999 become the number of milliseconds since 1970.
//   - An ObjectID becomes a string of 24 digits, a UUID a string of 36 characters, and
//     other binary values become base64 strings.
//   - A timestamp becomes {"t":seconds,"i":increment}, a regular expression
//     /pattern/options. Code and symbols become their text, MinKey and MaxKey these
//     words, and undefined null.
//
// A null payload is empty. A document without the payload field is not sent: the claim
// refuses it and names it.
package document
