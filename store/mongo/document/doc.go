// Package document reads outbox documents: what their BSON values are as the id,
// kind, group and payload of an item. The store and the source of MongoDB both ask
// here, so that a document is the same item wherever it was read.
//
// # Names
//
// A column of a layout is a field of the document, or, with dots in its name, a path
// through subdocuments. There is no way into an array.
//
// # Ids, kinds and groups
//
// They travel as text:
//
//   - A string is its characters.
//   - An ObjectID is its 24 hexadecimal digits, in lower case.
//   - A UUID (binary, subtype 4) is its 36 characters, in lower case. Binary values of
//     subtype 0, 3 or 5 are 0x and their hexadecimal digits, in lower case.
//   - An int, a long and a double without a fraction are their decimal digits: the
//     server too takes 1 and 1.0 for one value.
//
// Kinds and groups may be anything else: that is its plain JSON, see below, without
// quotes. A missing field, null and undefined are no group, and the empty kind. An
// id must be one of those above; a document with another cannot be relayed.
//
// The text does not tell the types apart, and need not: [IDs] returns every value
// that has a text, and a statement asks for any of them. Two documents of one
// collection whose ids differ in their type only are refused when they are claimed.
//
// # Payloads
//
// A string is sent byte for byte, and so is a binary value. Everything else is sent
// as plain JSON, made for receivers that know nothing of BSON:
//
//   - Documents and arrays are objects and lists, with their keys in their order.
//   - Ints, longs and doubles are numbers; NaN and the infinities, which JSON lacks,
//     are null. A Decimal128 is a string: no digit is lost.
//   - Dates are strings as RFC 3339 has them, in UTC and with milliseconds; those
//     outside of the years 0 to 9999 are numbers of milliseconds since 1970.
//   - An ObjectID is a string of 24 digits, a UUID one of 36 characters, and other
//     binary values are strings in base64.
//   - A timestamp is {"t":seconds,"i":increment}, a regular expression /pattern/options,
//     code and symbols are their text, MinKey and MaxKey these words, undefined is null.
//
// A null payload is empty. A document without the field is not sent: it is refused
// by name when it is claimed.
package document
