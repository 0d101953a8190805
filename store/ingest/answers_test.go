package ingest_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store/ingest"
	"github.com/sluicebox/sluicebox/store/outbox"
)

// message is the body of the postbox route with one member changed, added or, for "", removed.
func message(member, value string) string {
	members := [][2]string{
		{"id", `"evt-1"`}, {"tenantId", "1001"}, {"partitionId", `"orders"`}, {"type", `"EVENT"`}, {"payload", `"{\"n\": 1}"`},
	}
	known := false
	var parts []string
	for _, m := range members {
		if m[0] == member {
			known, m[1] = true, value
		}
		if m[1] != "" {
			parts = append(parts, fmt.Sprintf("%q: %s", m[0], m[1]))
		}
	}
	if !known && member != "" {
		parts = append(parts, fmt.Sprintf("%q: %s", member, value))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

func TestPostbox(t *testing.T) {
	f := serve(t, nil)
	body := message("headers", `{"event_type": "order.created", "n": 1.50, "none": null, "deep": {"a": [1]}}`)
	a := f.post(ingest.PostboxPath, "shop-token", body)
	if a.status != http.StatusCreated || a.text != `{"id":"evt-1","created_at":"2001-09-09T01:46:40.000005Z","payload_size":8}`+"\n" {
		t.Errorf("answer %d %s", a.status, a.text)
	}
	row := f.table.rows["evt-1"]
	if row.Kind != "EVENT" || fmt.Sprint(row.Group) != "[1001 orders]" || string(row.Payload) != `{"n": 1}` ||
		fmt.Sprint(row.Attributes) != `[{event_type order.created} {n 1.50} {deep {"a": [1]}}]` {
		t.Errorf("row %+v", row)
	}
	if a := f.post(ingest.PostboxPath, "shop-token", body); a.status != http.StatusOK || a.PayloadSize != 8 {
		t.Errorf("a repeat: answer %d %s", a.status, a.text)
	}
	if a := f.post(ingest.PostboxPath, "shop-token", message("payload", `"other"`)); a.status != http.StatusConflict {
		t.Errorf("other content: answer %d %s", a.status, a.text)
	}
}

func TestRowsAreAnsweredByPosition(t *testing.T) {
	f := serve(t, nil)
	const path = ingest.RowsPath + "orders"
	first := f.post(path, "orders-token", `[{"id": "a", "payload": {"n":  1}, "group": "g", "kind": "order"}, {"id": "b", "payload": "text"}]`)
	if first.status != http.StatusCreated || len(first.Rows) != 2 || first.Rows[1].ID != "b" || first.Rows[1].PayloadSize != 4 {
		t.Fatalf("answer %d %s", first.status, first.text)
	}
	if row := f.table.rows["a"]; string(row.Payload) != `{"n":  1}` || row.Kind != "order" || fmt.Sprint(row.Group) != "[g]" {
		t.Errorf("row %+v", row)
	}
	mixed := f.post(path, "orders-token", `[{"id": "a", "payload": {"n":  1}}, {"id": "b", "payload": "other"}, {"id": "c", "payload": "1"}, {"id": "refused", "payload": ""}]`)
	var got []int
	for _, r := range mixed.Rows {
		got = append(got, r.Status)
	}
	if mixed.status != http.StatusMultiStatus || fmt.Sprint(got) != "[200 409 201 422]" {
		t.Errorf("answer %d %s", mixed.status, mixed.text)
	}
}

// Each refusal names the field and its place, and no row is written.
func TestRefusals(t *testing.T) {
	f := serve(t, func(c *ingest.Config, _ *fakeTable) { c.MaxPayload = 1000 })
	deep := strings.Repeat("[", 20000) + strings.Repeat("]", 20000)
	for name, tt := range map[string]struct {
		path, token, body string
		header            []string
		status            int
		want              string
	}{
		"no token":               {token: "", status: 401, want: "no client has this token"},
		"a wrong token":          {token: "shop-toke", status: 401, want: "no client has this token"},
		"the hash of no token":   {header: []string{"Authorization", "Basic shop-token"}, status: 401},
		"a client of no postbox": {token: "orders-token", status: 403, want: "may write no postbox"},
		"another client's":       {path: ingest.RowsPath + "closed", status: 403, want: "client shop: may not write outbox closed"},
		"no outbox":              {path: ingest.RowsPath + "nowhere", status: 404, want: `outbox "nowhere": unknown`},
		"no path":                {path: "/api/v1/ingest", status: 404},
		"another tenant":         {body: message("tenantId", "1003"), status: 403, want: "client shop may not write this tenant"},
		"another tenant's group": {path: ingest.RowsPath + "private", body: `[{"id": "a", "payload": "", "group": ["1003", "p"]}]`, status: 403},
		"no group of a tenant":   {path: ingest.RowsPath + "private", body: `[{"id": "a", "payload": ""}]`, status: 403},
		"no content type":        {header: []string{"Content-Type", ""}, status: 415, want: "send application/json"},
		"a form":                 {header: []string{"Content-Type", "application/x-www-form-urlencoded"}, status: 415},
		"another charset":        {header: []string{"Content-Type", "application/json; charset=latin1"}, status: 415},
		"brotli":                 {header: []string{"Content-Encoding", "br"}, status: 415, want: "send gzip"},
		"no gzip":                {header: []string{"Content-Encoding", "gzip"}, status: 400, want: "body: gzip: invalid header"},
		"no JSON":                {body: `{"id": "a",}`, status: 400, want: "body: not JSON at byte 12"},
		"an empty body":          {body: " ", status: 400, want: "body: not JSON at byte"},
		"two values":             {body: message("", "") + "{}", status: 400, want: "body: not JSON"},
		"deep JSON":              {body: deep[:4000] + `"`, status: 413, want: ""},
		"no UTF-8":               {body: message("payload", "\"a\xff\""), status: 400, want: "body: not UTF-8 at byte 89"},
		"NUL":                    {body: message("payload", `"a\u0000"`), status: 400, want: "payload: has U+0000 at its byte 1, which no database keeps in a text (byte 87)"},
		"NUL in an id":           {body: message("id", `"a\u0000"`), status: 400, want: "id: has U+0000"},
		"NUL in a header":        {body: message("headers", `{"a": "\u0000"}`), status: 400, want: "headers.a: has U+0000"},
		"NUL in a header's name": {body: message("headers", `{"\u0000": "a"}`), status: 400, want: "headers: has a name"},
		"half a pair":            {body: message("payload", `"\ud83d!"`), status: 400, want: "payload: has half a surrogate pair"},
		"the other half":         {body: message("payload", `"\uDE00"`), status: 400, want: "payload: has half a surrogate pair"},
		"an unknown field":       {body: message("payloadd", `1`), status: 400, want: `body: unknown field "payloadd"; did you mean payload? (byte 113)`},
		"a field's case":         {body: strings.Replace(message("", ""), "tenantId", "tenantID", 1), status: 400, want: `unknown field "tenantID"; did you mean tenantId?`},
		"a far field":            {body: message("created", `1`), status: 400, want: `unknown field "created"; the fields are id, tenantId, partitionId, type, payload, headers`},
		"a missing field":        {body: message("type", ""), status: 400, want: "type: is required"},
		"a field twice":          {body: `{"id": "a", "id": "b"}`, status: 400, want: "id: is given twice (byte 18)"},
		"null":                   {body: message("payload", `null`), status: 400, want: "payload: must be a string"},
		"an object":              {body: message("payload", `{}`), status: 400, want: "payload: must be a string"},
		"an empty id":            {body: message("id", `""`), status: 400, want: "id: must not be empty"},
		"a fraction":             {body: message("tenantId", `1001.5`), status: 400, want: "tenantId: must be a whole number"},
		"a large number":         {body: message("tenantId", `9223372036854775808`), status: 400, want: "tenantId: must be a whole number"},
		"a number in quotes":     {body: message("tenantId", `"1001"`), status: 400, want: "tenantId: must be a whole number"},
		"another type":           {body: message("type", `"AUDIT"`), status: 400, want: "type: must be EVENT or DISPATCH_JOB"},
		"headers in a list":      {body: message("headers", `[]`), status: 400, want: "headers: must be an object"},
		"a header twice":         {body: message("headers", `{"a": "1", "a": "2"}`), status: 400, want: "headers.a: is given twice"},
		"many headers":           {body: message("headers", manyMembers(257)), status: 413, want: ""},
		"a list":                 {body: "[]", status: 400, want: "body: must be an object (byte 0)"},
		"a payload too large":    {body: message("payload", `"`+strings.Repeat("a", 1001)+`"`), status: 413, want: "row 0: payload of 1001 bytes; the limit is 1000"},
		"no list":                {path: ingest.RowsPath + "private", body: "{}", status: 400, want: "body: must be a list of rows"},
		"an empty list":          {path: ingest.RowsPath + "private", body: " []", status: 400, want: "body: must have at least one row (byte 1)"},
		"one bad row":            {path: ingest.RowsPath + "private", body: `[{"id": "a", "payload": ""}, {"id": "b", "payload": 5}]`, status: 400, want: "[1].payload: must be a string, an object or a list (byte 52)"},
		"an id twice":            {path: ingest.RowsPath + "private", body: `[{"id": "a", "payload": ""}, {"id": "a", "payload": ""}]`, status: 400, want: "[1].id: is that of row [0]"},
		"a group of one part":    {path: ingest.RowsPath + "private", body: `[{"id": "a", "payload": "", "group": "1001"}]`, status: 400, want: "[0].group: has 1 parts; the groups of this outbox have 2"},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.path == "" {
				tt.path = ingest.PostboxPath
			}
			if tt.body == "" {
				tt.body = message("", "")
			}
			if tt.token == "" && name != "no token" {
				tt.token = "shop-token"
			}
			if tt.status == http.StatusRequestEntityTooLarge && tt.want == "" {
				tt.body += strings.Repeat(" ", 70000) // beyond the body too
			}
			a := f.post(tt.path, tt.token, tt.body, tt.header...)
			if a.status != tt.status || !strings.Contains(a.Error, tt.want) {
				t.Errorf("answer %d %s, want %d with %s", a.status, a.text, tt.status, tt.want)
			}
		})
	}
	if len(f.table.rows) != 0 {
		t.Errorf("rows were written: %v", f.table.rows)
	}
	if _, known := f.observed.statuses[400]; !known {
		t.Errorf("observed %v", f.observed.statuses)
	}
}

func manyMembers(n int) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = fmt.Sprintf(`"h%d": ""`, i)
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// Values that look odd are kept as they are.
func TestValuesAreKept(t *testing.T) {
	for value, want := range map[string]string{
		`"\ud83d\ude00"`: "😀", `"\uFFFD"`: "\uFFFD", `"\\ud83d"`: `\ud83d`, `"\\\\\u00e9"`: `\\é`, `"a\/b\n"`: "a/b\n", `""`: "", `"\ud83d\ude00\ufffd"`: "😀\uFFFD",
	} {
		rows, _, err := ingest.DecodePostbox([]byte(message("payload", value)))
		if err != nil || string(rows[0].Payload) != want {
			t.Errorf("payload %s is %q, %v, want %q", value, rows, err, want)
		}
	}
	if _, status, err := ingest.DecodePostbox([]byte(message("headers", manyMembers(257)))); status != 400 || !strings.Contains(err.Error(), "more than 256 members") {
		t.Errorf("257 headers: %d %v", status, err)
	}
	if _, status, _ := ingest.DecodeRows([]byte("["+strings.Repeat(`{"id":"a","payload":""},`, 1000)+"1]"), 1); status != 400 {
		t.Errorf("an id twice: %d", status)
	}
	deep := strings.Repeat("[", 20000) + strings.Repeat("]", 20000)
	if _, status, _ := ingest.DecodeRows([]byte(deep), 1); status != 400 {
		t.Errorf("deep JSON: %d, want 400", status)
	}
	rows, _, err := ingest.DecodePostbox([]byte(message("headers", "null")))
	if err != nil || rows[0].Attributes != nil {
		t.Errorf("headers null: %v %v", rows, err)
	}
}

func decoded(rows []outbox.Row) (bytes int) {
	for i := range rows {
		bytes += len(rows[i].ID) + len(rows[i].Payload) + rows[i].Attributes.Bytes()
	}
	return bytes
}
