package kafka

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// Values as Debezium 3.6 and JsonConverter of Kafka Connect 4.3 write them for the same payload,
// with fields that are null left out and kept. "" stands for the payload as a JSON string.
func TestExpandWritesTheValuesOfTheRouter(t *testing.T) {
	for _, c := range []struct{ payload, ignored, kept string }{
		{`{"t": "é", "id": 1, "lines": [{"a": 1.50, "b": null}]}`, `{"t":"é","id":1,"lines":[{"a":1.5}]}`, `{"t":"é","id":1,"lines":[{"a":1.5,"b":null}]}`},
		{`{"z":1,"a":"\u00e9\/","n":{"x":null}}`, `{"z":1,"a":"é/","n":{}}`, `{"z":1,"a":"é/","n":{"x":null}}`},
		{`{"a":1,"b":2,"a":3}`, `{"a":3,"b":2}`, `{"a":3,"b":2}`},
		{`{"a":1} x`, `{"a":1}`, `{"a":1}`},
		{`{ }`, `{}`, `{}`},

		// No JSON object or list at the first character.
		{`  {"a":1}`, ``, ``}, {`"text"`, ``, ``}, {`1`, ``, ``}, {`{"a":`, ``, ``}, {`{"a":1,}`, ``, ``}, {`{"a":01}`, ``, ``}, {`{'a':1}`, ``, ``},
		{`{"":1}`, ``, ``}, {`[]`, ``, ``}, {`[null]`, ``, `[null]`},

		// Lists have elements of one type.
		{`{"m":[1,"x"]}`, ``, ``}, {`{"m":[1,2.5]}`, ``, ``}, {`{"m":[1,3000000000]}`, ``, ``}, {`{"m":[true,null,"x"]}`, ``, ``},
		{`{"a":[[]]}`, ``, ``}, {`{"l":[[],[1]]}`, ``, ``}, {`{"l":[[1],[]]}`, `{"l":[[1],[]]}`, `{"l":[[1],[]]}`},
		{`{"l":[null,1]}`, `{"l":[null,1]}`, `{"l":[null,1]}`}, {`{"l":[null]}`, ``, `{"l":[null]}`},
		{`{"e":[],"o":{}}`, `{"o":{}}`, `{"o":{}}`}, {`{"a":[{"b":[]}]}`, `{"a":[{}]}`, `{"a":[{}]}`},

		// The objects of a list have the fields of all of them.
		{`{"l":[{},{"a":1}]}`, `{"l":[{"a":null},{"a":1}]}`, `{"l":[{"a":null},{"a":1}]}`},
		{`{"l":[{"a":1},null]}`, `{"l":[{"a":1},null]}`, `{"l":[{"a":1},null]}`},
		{`{"l":[{"a":[]},{"a":[1]}]}`, `{"l":[{"a":[]},{"a":[1]}]}`, `{"l":[{"a":[]},{"a":[1]}]}`},
		{`{"l":[{"x":null},{"x":{"p":1}}]}`, `{"l":[{"x":null},{"x":{"p":1}}]}`, `{"l":[{"x":null},{"x":{"p":1}}]}`},

		{`{"c":-1,"d":2147483648,"h":9223372036854775807}`, `{"c":-1,"d":2147483648,"h":9223372036854775807}`, `{"c":-1,"d":2147483648,"h":9223372036854775807}`},
		{`{"f":1.0,"g":0.1,"h":1e7,"i":9999999.0,"j":12345678.9,"k":0.001,"l":0.0001,"n":123456789012345678.0,"o":-0.0,"q":1e-400,"t":1e21,"u":1e23}`,
			`{"f":1.0,"g":0.1,"h":1.0E7,"i":9999999.0,"j":1.23456789E7,"k":0.001,"l":1.0E-4,"n":1.2345678901234568E17,"o":-0.0,"q":0.0,"t":1.0E21,"u":1.0E23}`,
			`{"f":1.0,"g":0.1,"h":1.0E7,"i":9999999.0,"j":1.23456789E7,"k":0.001,"l":1.0E-4,"n":1.2345678901234568E17,"o":-0.0,"q":0.0,"t":1.0E21,"u":1.0E23}`},
		{`{"s":"\u0001\b\f\n\r\t\u001f\u007f\u2028/<>&'\ud83d\ude00"}`,
			`{"s":"\u0001\b\f\n\r\t\u001F` + "\x7f\u2028" + `/<>&'\uD83D\uDE00"}`, `{"s":"\u0001\b\f\n\r\t\u001F` + "\x7f\u2028" + `/<>&'\uD83D\uDE00"}`},

		// The router ends with an error at these, or loses a field.
		{`[{"a":1},{"b":2}]`, `[{"a":1,"b":null},{"a":null,"b":2}]`, `[{"a":1,"b":null},{"a":null,"b":2}]`},
		{`{"b":12345678901234567890123}`, `{"b":12345678901234567890123}`, `{"b":12345678901234567890123}`},
		{`{"l":[{"a":1},{"a":"x"}]}`, `{"l":[{"a":1},{"a":"x"}]}`, `{"l":[{"a":1},{"a":"x"}]}`},
		{`{"l":[{"a":{"x":1}},{"a":[2]},{"a":3}]}`, `{"l":[{"a":{"x":1}},{"a":[2]},{"a":3}]}`, `{"l":[{"a":{"x":1}},{"a":[2]},{"a":3}]}`},
		{`{"l":[{"a":{"x":1}},{"a":{"y":2}}]}`, `{"l":[{"a":{"x":1,"y":null}},{"a":{"x":null,"y":2}}]}`, `{"l":[{"a":{"x":1,"y":null}},{"a":{"x":null,"y":2}}]}`},
	} {
		for keep, want := range map[bool]string{false: c.ignored, true: c.kept} {
			if got, ok := expand([]byte(c.payload), keep); string(got) != want || !ok {
				t.Errorf("%s, nulls kept %t:\n%s, want\n%s", c.payload, keep, got, want)
			}
		}
	}
}

// A payload of 1 MiB whose 50,000 objects have a field each would become 30 GB.
func TestExpansionIsBounded(t *testing.T) {
	var payload []byte
	for i := range 50_000 {
		payload = fmt.Appendf(append(payload, ','), `{"field%d":%d}`, i, i)
	}
	payload = append(append([]byte("["), payload[1:]...), ']')
	d := Debezium{ValueConverter: ConverterJSON, ExpandPayload: true}
	var rec record
	reason := d.setValue(&rec, payload)
	if want := "expands to more than"; !strings.Contains(reason, want) || cap(rec.value) > 4*maxExpansion {
		t.Errorf("%q with %d bytes, want %q and at most %d", reason, cap(rec.value), want, 4*maxExpansion)
	}
}

// What expand writes is JSON, and expanding it again changes nothing, unless a field of it became
// null by its list.
func FuzzExpand(f *testing.F) {
	for _, payload := range []string{`{"a":[{"b":1e9},{"c":"\ud83d\ude00\u0000"}]}`, `[[1],["x"],{}]`, `{"a":-0,"a":[null]} x`} {
		f.Add([]byte(payload), true)
	}
	f.Fuzz(func(t *testing.T, payload []byte, keep bool) {
		d := Debezium{ValueConverter: ConverterJSON, ExpandPayload: true, NullFields: keep}
		var rec record
		m := sink.Message{ID: "1", Payload: payload}
		if reason := d.encode(&rec, &m, "1"); reason != "" {
			return
		}
		if !json.Valid(rec.value) {
			t.Fatalf("%q became %q", payload, rec.value)
		}
		if len(payload) == 0 {
			return
		}
		once, _ := expand(payload, true)
		if once == nil {
			return
		}
		if twice, _ := expand(once, true); twice != nil && string(twice) != string(once) {
			t.Fatalf("%q became %q, then %q", payload, once, twice)
		}
	})
}
