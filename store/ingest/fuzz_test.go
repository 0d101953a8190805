package ingest_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/store/ingest"
	"github.com/sluicebox/sluicebox/store/outbox"
)

// A body is refused with 400 or 413 and a reason, or its rows have texts that a database keeps,
// and that encoding/json reads from it too.
func FuzzBody(f *testing.F) {
	for _, body := range []string{
		message("", ""), message("headers", `{"a": "b", "c": 1, "d": null, "e": {"f": []}}`), message("payload", `"\ud83d\ude00"`), message("payload", `"\ud83d"`),
		message("tenantId", "-1e0"), `[{"id": "a", "payload": {"a": "\u0000"}, "group": ["1", "2"]}]`, `[{"id":"a","payload":[],"attributes":{"x":"y"}},{"id":"b","payload":"\\"}]`,
		"[]", "{}", "null", `"`, "\xff", ` [ { } ] `, `{"id":{"id":"a"}}`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		given := bytes.Clone(body)
		rows, status, err := ingest.DecodePostbox(body)
		checkDecoded(t, body, rows, status, err)
		if err == nil {
			var plain struct {
				ID      string
				Payload string
			}
			if err := json.Unmarshal(body, &plain); err != nil || len(rows) != 1 || plain.ID != rows[0].ID || plain.Payload != string(rows[0].Payload) {
				t.Errorf("%q: rows %+v, but encoding/json reads %+v: %v", body, rows, plain, err)
			}
		}
		for groups := range 3 {
			rows, status, err := ingest.DecodeRows(body, groups)
			checkDecoded(t, body, rows, status, err)
		}
		if !bytes.Equal(given, body) {
			t.Errorf("%q was changed to %q", given, body)
		}
	})
}

func checkDecoded(t *testing.T, body []byte, rows []outbox.Row, status int, err error) {
	t.Helper()
	if err != nil {
		if status != 400 && status != 413 || len(err.Error()) < 5 || !utf8.ValidString(err.Error()) {
			t.Errorf("%q: status %d, %q", body, status, err)
		}
		return
	}
	if len(rows) == 0 || decoded(rows) > len(body) {
		t.Errorf("%q: %d bytes in rows %+v", body, decoded(rows), rows)
	}
	for i := range rows {
		texts := append([]string{rows[i].ID, rows[i].Kind, string(rows[i].Payload)}, rows[i].Group...)
		for _, a := range rows[i].Attributes {
			texts = append(texts, a.Name, a.Value)
		}
		for _, text := range texts {
			if strings.ContainsRune(text, 0) || !utf8.ValidString(text) {
				t.Errorf("%q: row %d has %q", body, i, text)
			}
		}
		if rows[i].ID == "" {
			t.Errorf("%q: row %d has no id", body, i)
		}
	}
}
