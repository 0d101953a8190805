package kafka

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

const jsonNull = "null"

// maxExpansion is the most bytes of a small payload that was expanded, above any sensible
// max.message.bytes. The objects of a list that have different fields grow with their square.
const maxExpansion = 16 << 20

// expand returns the JSON of a payload as Kafka Connect writes it without a schema, nil if the
// payload stays a text. The router infers a schema of each payload, and a value has the fields of
// its schema only. Therefore:
//
//   - Fields that are null are left out without keepNulls, and so are empty lists.
//   - The objects of a list share a schema: each has the fields of all, null where it has none.
//   - A list whose elements differ in type, or are all null, has no schema: the payload stays a
//     text. So does what is not JSON, or has an empty name.
//   - A number with a fraction or an exponent is a double, as Java writes it.
//
// Text behind the first value is dropped. ok is false if the value is larger than maxExpansion, and
// than four times the payload.
//
// The router stops with an error at objects of a list whose fields differ in type, integers above 64
// bits and lists at the top. They are written as they are.
func expand(payload []byte, keepNulls bool) (value []byte, ok bool) {
	if payload[0] != '{' && payload[0] != '[' {
		return nil, true
	}
	var first json.RawMessage // checks the syntax, which Token does not do in full
	if err := json.NewDecoder(bytes.NewReader(payload)).Decode(&first); err != nil {
		return nil, true
	}
	d := json.NewDecoder(bytes.NewReader(first))
	d.UseNumber()
	v, err := parse(d)
	if err != nil {
		return nil, true
	}
	s, err := infer(v, keepNulls)
	if err != nil || s == nil {
		return nil, true
	}
	w := writer{limit: max(maxExpansion, 4*len(payload))}
	w.node(v, s)
	return w.text, !w.full()
}

// node is a value of JSON: nil, bool, string, number, list or *object.
type node struct{ value any }

type (
	list   []node
	number struct {
		text string
		kind kind
	}
	object struct {
		names  []string // in the order of their first appearance
		values map[string]node
	}
)

// parse reads the next value.
func parse(d *json.Decoder) (node, error) {
	t, err := d.Token()
	if err != nil {
		return node{}, err
	}
	switch t := t.(type) {
	case json.Number:
		return node{numberOf(string(t))}, nil
	case json.Delim:
		if t == '[' {
			return parseList(d)
		}
		return parseObject(d)
	}
	return node{t}, nil
}

func parseList(d *json.Decoder) (node, error) {
	all := list{}
	for d.More() {
		v, err := parse(d)
		if err != nil {
			return node{}, err
		}
		all = append(all, v)
	}
	_, err := d.Token()
	return node{all}, err
}

func parseObject(d *json.Decoder) (node, error) {
	o := &object{values: map[string]node{}}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return node{}, err
		}
		name := t.(string)
		if _, again := o.values[name]; !again {
			o.names = append(o.names, name)
		}
		if o.values[name], err = parse(d); err != nil {
			return node{}, err
		}
	}
	_, err := d.Token()
	return node{o}, err
}

// kind is a type of a schema.
type kind uint8

const (
	kindNull kind = iota + 1
	kindBool
	kindString
	kindInt32
	kindInt64
	kindDouble
	kindList
	kindObject
)

// kind returns the type of the node.
func (v node) kind() kind {
	switch x := v.value.(type) {
	case bool:
		return kindBool
	case string:
		return kindString
	case number:
		return x.kind
	case list:
		return kindList
	case *object:
		return kindObject
	}
	return kindNull
}

// numberOf returns a number with the text that Java gives it.
func numberOf(text string) number {
	if !strings.ContainsAny(text, ".eE") {
		n, err := strconv.ParseInt(text, 10, 64)
		switch {
		case err != nil:
			return number{text, kindDouble} // the router's schema for an integer above 64 bits
		case int64(int32(n)) == n:
			return number{strconv.FormatInt(n, 10), kindInt32}
		}
		return number{text, kindInt64}
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return number{text, kindDouble} // above what a double holds
	}
	return number{javaDouble(f), kindDouble}
}

// javaDouble formats a double as Double.toString does: with a fraction, and with an exponent below
// 0.001 and from 10,000,000 on.
func javaDouble(f float64) string {
	abs := max(f, -f)
	if abs != 0 && (abs < 1e-3 || abs >= 1e7) {
		digits, exponent, _ := strings.Cut(strconv.FormatFloat(f, 'E', -1, 64), "E")
		if !strings.Contains(digits, ".") {
			digits += ".0"
		}
		n, _ := strconv.Atoi(exponent) // without + and leading zeros
		return digits + "E" + strconv.Itoa(n)
	}
	text := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}

// schema is the type of a value.
type schema struct {
	kind    kind
	element *schema // of a list
	fields  []field // of an object, in the order of their first appearance

	places map[string]int // of the fields by name; nil before the first merge
}

type field struct {
	name   string
	schema *schema
}

var (
	errMixed = errors.New("elements of several types")
	errName  = errors.New("empty name")
)

// infer returns the schema of a value, nil if it has none.
func infer(v node, keepNulls bool) (*schema, error) {
	switch x := v.value.(type) {
	case nil:
		if !keepNulls {
			return nil, nil
		}
	case list:
		return x.infer(keepNulls)
	case *object:
		s := &schema{kind: kindObject}
		for _, name := range x.names {
			f, err := infer(x.values[name], keepNulls)
			switch {
			case err != nil:
				return nil, err
			case f == nil:
			case name == "":
				return nil, errName
			default:
				s.fields = append(s.fields, field{name, f})
			}
		}
		return s, nil
	}
	return &schema{kind: v.kind()}, nil
}

// infer returns the schema of a list: that of its objects together, or of its first element.
func (l list) infer(keepNulls bool) (*schema, error) {
	if len(l) == 0 {
		return nil, nil
	}
	var sample node
	var element *schema
	for _, v := range l {
		switch {
		case v.value == nil:
			continue
		case sample.value == nil:
			sample = v
		case v.kind() != sample.kind():
			return nil, errMixed
		}
		if v.kind() == kindObject {
			s, err := infer(v, keepNulls)
			if err != nil {
				return nil, err
			}
			element = merge(element, s)
		}
	}
	if element == nil {
		var err error
		if element, err = infer(sample, keepNulls); err != nil {
			return nil, err
		}
		if element == nil {
			return nil, errMixed
		}
	}
	return &schema{kind: kindList, element: element}, nil
}

// merge returns a schema with the fields of two, which it changes. Where the types differ, the
// first one counts.
func merge(a, b *schema) *schema {
	switch {
	case a == nil || a.kind == kindNull:
		return b
	case b == nil || a.kind != b.kind:
		return a
	case a.kind == kindList:
		a.element = merge(a.element, b.element)
	case a.kind == kindObject:
		if a.places == nil {
			a.places = map[string]int{}
			for i := range a.fields {
				a.places[a.fields[i].name] = i
			}
		}
		for _, f := range b.fields {
			if at, known := a.places[f.name]; known {
				a.fields[at].schema = merge(a.fields[at].schema, f.schema)
				continue
			}
			a.places[f.name] = len(a.fields)
			a.fields = append(a.fields, f)
		}
	}
	return a
}

// writer writes JSON until it is full.
type writer struct {
	text  []byte
	limit int
}

func (w *writer) full() bool { return len(w.text) > w.limit }

// node writes a value with the fields of its schema. A value of another type, or without a schema,
// has all its own.
func (w *writer) node(v node, s *schema) {
	switch x := v.value.(type) {
	case bool:
		w.text = strconv.AppendBool(w.text, x)
	case string:
		w.text = appendString(w.text, x)
	case number:
		w.text = append(w.text, x.text...)
	case list:
		w.list(x, s)
	case *object:
		w.object(x, s)
	default:
		w.text = append(w.text, jsonNull...)
	}
}

func (w *writer) list(l list, s *schema) {
	var element *schema
	if s != nil && s.kind == kindList {
		element = s.element
	}
	w.text = append(w.text, '[')
	for i, v := range l {
		if i > 0 {
			w.text = append(w.text, ',')
		}
		if w.node(v, element); w.full() {
			return
		}
	}
	w.text = append(w.text, ']')
}

func (w *writer) object(o *object, s *schema) {
	if s == nil || s.kind != kindObject {
		s = &schema{kind: kindObject}
		for _, name := range o.names {
			s.fields = append(s.fields, field{name: name})
		}
	}
	w.text = append(w.text, '{')
	for i, f := range s.fields {
		if i > 0 {
			w.text = append(w.text, ',')
		}
		w.text = append(appendString(w.text, f.name), ':')
		if w.node(o.values[f.name], f.schema); w.full() {
			return
		}
	}
	w.text = append(w.text, '}')
}

const upperHex = "0123456789ABCDEF"

// appendString appends a JSON string as Jackson writes it: characters above U+FFFF as two escapes,
// and every other one that needs no escape as it is.
func appendString(dst []byte, s string) []byte {
	escape := func(u rune) {
		dst = append(dst, '\\', 'u', upperHex[u>>12&15], upperHex[u>>8&15], upperHex[u>>4&15], upperHex[u&15])
	}
	dst = append(dst, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r >= ' ' && r <= 0xFFFF:
			dst = utf8.AppendRune(dst, r)
		case r > 0xFFFF:
			high, low := utf16.EncodeRune(r)
			escape(high)
			escape(low)
		default:
			if at := strings.IndexByte("\b\t\n\f\r", byte(r)); at >= 0 {
				dst = append(dst, '\\', "btnfr"[at])
			} else {
				escape(r)
			}
		}
	}
	return append(dst, '"')
}
