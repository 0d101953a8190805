package flowcatalyst

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/httpsink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
)

func routeOf(tb testing.TB, wire Wire) *route {
	tb.Helper()
	cfg := Config{Wire: wire}
	r, err := cfg.route(KindEvent)
	if err != nil {
		tb.Fatal(err)
	}
	return &r
}

// TestClassifySuccess: the class of a 2xx to two messages, by its body.
func TestClassifySuccess(t *testing.T) {
	const both = `{"results":[{"id":"p1","status":"SUCCESS"},{"id":"p2","status":"SKIPPED","error":null}]}`
	const d, m = sink.Delivered, sink.Misconfigured
	for name, c := range map[string]struct {
		contentType, body string
		array, items      sink.Class
		why               string // part of the detail with WireItems
	}{
		"results":         {"application/json", both, d, d, ""},
		"blanks around":   {"application/json", "\n " + both + "\n", d, d, ""},
		"any type":        {"", both, d, d, ""},
		"empty":           {"", "", d, m, "empty body"},
		"empty page":      {"Text/HTML", "", m, m, "empty body"},
		"object":          {"application/json", `{"ok":true}`, d, m, "no results"},
		"array":           {"application/json", `[]`, d, m, "not a JSON object"},
		"ids":             {"application/json", `["a","b"]`, d, m, "not a JSON object"},
		"accepted":        {"application/json", `{"status":"ACCEPTED","errors":[],"error":null}`, d, m, "no results"},
		"status 202":      {"application/json", `{"status":202}`, d, m, "no results"},
		"items taken":     {"application/json", `[{"id":"1","status":"SUCCESS"},{"id":"2","status":"created"}]`, d, m, "not a JSON object"},
		"an error":        {"application/json", `{"error":"db is down"}`, sink.Refused, m, "no results"},
		"errors":          {"application/json", `{"errors":[{"at":1}]}`, sink.Refused, m, "no results"},
		"error and 503":   {"application/json", `{"error":"db is down","status":503}`, sink.Unavailable, m, "no results"},
		"status 401":      {"application/json", `{"status":"401"}`, m, m, "no results"},
		"status 400":      {"application/json", `{"status":400,"message":"bad"}`, sink.Rejected, m, "no results"},
		"failed":          {"application/json", `{"status":"FAILED"}`, sink.Refused, m, "no results"},
		"no success":      {"application/json", `{"success":false}`, sink.Refused, m, "no results"},
		"one failed":      {"application/json", `[{"status":"FAILED","error":"x"}]`, sink.Refused, m, "not a JSON object"},
		"number":          {"application/json", `1`, m, m, "not a JSON object"},
		"null":            {"application/json", `null`, m, m, "not a JSON object"},
		"text":            {"text/plain", `OK`, m, m, "not a JSON object"},
		"page":            {"text/html", "<html>hi", m, m, `content type "text/html": <html>hi`},
		"broken array":    {"application/json", `[1`, m, m, "not a JSON object"},
		"broken object":   {"application/json", both[:60], m, m, "not a JSON object"},
		"two objects":     {"application/json", both + both, m, m, "not a JSON object"},
		"one too few":     {"application/json", `{"results":[{"status":"SUCCESS"}]}`, m, m, "1 results for 2 items"},
		"none":            {"application/json", `{"results":[]}`, m, m, "0 results for 2 items"},
		"one too many":    {"application/json", `{"results":[{"status":"SUCCESS"},{"status":"SUCCESS"},{"status":"SUCCESS"}]}`, m, m, "3 results for 2 items"},
		"no status":       {"application/json", `{"results":[{"status":"SUCCESS"},{"id":"x"}]}`, m, m, "result 2 of 2 has no status"},
		"null entry":      {"application/json", `{"results":[null,{"status":"SUCCESS"}]}`, m, m, "result 1 of 2 has no status"},
		"status a number": {"application/json", `{"results":[{"status":1},{"status":1}]}`, m, m, "not a list of objects with a status"},
		"not a list":      {"application/json", `{"results":{}}`, m, m, "not a list of objects with a status"},
		"null list":       {"application/json", `{"results":null}`, m, m, "not a list of objects with a status"},
	} {
		a := httpsink.Answer{Status: 201, ContentType: c.contentType, Body: []byte(c.body)}
		for wire, want := range map[Wire]sink.Class{WireArray: c.array, WireItems: c.items} {
			res := classifyAnswer(&a, routeOf(t, wire), 2, nil)
			if res.Class != want || res.Items != nil {
				t.Errorf("%s over %s: %s with %d outcomes (%s), want %s", name, wire, res.Class, len(res.Items), res.Detail, want)
			}
			if wire == WireItems && !strings.Contains(res.Detail, c.why) {
				t.Errorf("%s: got detail %q, want %q in it", name, res.Detail, c.why)
			}
		}
	}
}

// TestClassifyItemResults: the status words of an item.
func TestClassifyItemResults(t *testing.T) {
	for body, want := range map[string]sink.Outcome{
		`{"status":"ERROR","error":"no\nway"}`:       {Class: sink.Refused, Detail: "POST /api/events/batch answered ERROR for the item: no way"},
		`{"status":"ERROR"}`:                         {Class: sink.Refused, Detail: "POST /api/events/batch answered ERROR for the item: no reason given"},
		`{"status":"BAD_REQUEST","error":{"c":[1]}}`: {Class: sink.Refused, Detail: `POST /api/events/batch answered BAD_REQUEST for the item: {"c":[1]}`},
		`{"status":"success"}`:                       {Class: sink.Refused, Detail: "POST /api/events/batch answered success for the item: no reason given"},
		`{"status":"SUCCESS","error":"ignored"}`:     {Class: sink.Delivered},
		`{"status":"SKIPPED"}`:                       {Class: sink.Delivered},
	} {
		a := httpsink.Answer{Status: 200, Body: []byte(`{"results":[` + body + `,{"status":"ERROR"}]}`)}
		res := classifyAnswer(&a, routeOf(t, WireItems), 2, nil)
		got := res.At(0)
		got.Reason = 0
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %+v, want %+v", body, got, want)
		}
	}
}

// TestClassifyArrayItems: an entry of an array belongs to the item at its position.
func TestClassifyArrayItems(t *testing.T) {
	a := httpsink.Answer{Status: 200, Body: []byte(`[{"status":"SUCCESS"}, {"status":"FAILED","error":"no customer"}]`)}
	res := classifyAnswer(&a, routeOf(t, WireArray), 2, nil)
	if first, second := res.At(0), res.At(1); first.Class != sink.Delivered || second.Class != sink.Refused ||
		second.Detail != "POST /api/events/batch answered FAILED for the item: no customer" {
		t.Errorf("%+v, %+v", first, second)
	}
}

// TestSkipped: items with the status SKIPPED are counted.
func TestSkipped(t *testing.T) {
	for body, skipped := range map[string]int{
		`{"results":[{"status":"SUCCESS"},{"status":"SUCCESS"}]}`: 0,
		`{"results":[{"status":"SKIPPED"},{"status":"SUCCESS"}]}`: 1,
		`{"results":[{"status":"SKIPPED"},{"status":"SKIPPED"}]}`: 2,
		`{"results":[{"status":"SKIPPED"},{"status":"ERROR"}]}`:   1,
	} {
		a := httpsink.Answer{Status: 200, Body: []byte(body)}
		if res := classifyAnswer(&a, routeOf(t, WireItems), 2, nil); res.Skipped != skipped || res.At(0).Class != sink.Delivered {
			t.Errorf("%s: got %+v", body, res)
		}
	}
}

// TestErrorDetailStatus: the detail shows nothing of the body, which may quote
// payloads.
func TestErrorDetailStatus(t *testing.T) {
	for status, bodies := range map[int][]string{
		400: {`{"error":"no Miller"}`},
		200: {"<p>Miller", `{"results":[{"status":"Miller","error":"Miller"}]}`, `{"error":"Miller"}`, `{"status":"Miller"}`, `[{"status":"Miller","error":"Miller"}]`, `["Miller`},
	} {
		for _, body := range bodies {
			for _, wire := range []Wire{WireArray, WireItems} {
				a := httpsink.Answer{Status: status, Body: []byte(body)}
				res := classifyAnswer(&a, routeOf(t, wire), 1, redact.New(true))
				if out := res.At(0); out.Class == sink.Delivered || out.Detail == "" || strings.Contains(out.Detail, "Miller") {
					t.Errorf("%s over %s: %+v", body, wire, out)
				}
			}
		}
	}
}

func TestClassifyIncompleteAnswer(t *testing.T) {
	r := routeOf(t, WireItems)
	broken := httpsink.Answer{Status: 201, Body: []byte(`{"results":[{"status":"SUCCESS"}]}`), Err: errors.New("reset")}
	if res := classifyAnswer(&broken, r, 1, nil); res.Class != sink.Unavailable {
		t.Errorf("incomplete response: got %s", res.Class)
	}

	long := httpsink.Answer{Status: 201, Body: []byte(`{"results":[`), Err: httpsink.ErrTooLong}
	if res := classifyAnswer(&long, r, 1, nil); res.Class != sink.Misconfigured || !strings.Contains(res.Detail, "too long") {
		t.Errorf("long response: got %s: %s", res.Class, res.Detail)
	}

	failed := httpsink.Answer{Status: 422, Body: []byte("bad fie"), Err: errors.New("reset")}
	if res := classifyAnswer(&failed, r, 1, nil); res.Class != sink.Rejected || !strings.HasSuffix(res.Detail, "bad fie") {
		t.Errorf("failure with an incomplete body: got %s: %s", res.Class, res.Detail)
	}
}

// FuzzJudge: no response crashes the relay, shows the token, or counts as a delivery
// without a status for each item.
func FuzzJudge(f *testing.F) {
	for _, body := range []string{
		"", "null", "[]", `{"results":[]}`, "<html>",
		`{"results":[{"id":"a","status":"SUCCESS"},{"id":"b","status":"SKIPPED"}]}`,
		`{"results":[{"status":"SUCCESS"},{"status":"ERROR","error":{"code":7}}]}`,
		`{"results":[{"status":"SUCCESS"},{"status":"ERROR","error":"canary-token"}]}`,
		`{"results":null,"results":[{"status":"SUCCESS"},{"status":"SUCCESS"}]}`,
		`{"RESULTS":[{"STATUS":"SUCCESS"},{"Status":"SUCCESS"}]}`,
		"{\"results\":[{\"status\":\"\\u0000\"},{\"status\":\"\xff\"}]}",
	} {
		f.Add(201, "application/json", []byte(body), 2)
	}

	f.Add(503, "text/plain", []byte("canary-token\r\n\x00"), 1)
	f.Fuzz(func(t *testing.T, status int, contentType string, body []byte, n int) {
		const token = "canary-token"
		n = max(1, min(n, 2000))
		a := httpsink.Answer{Status: status, ContentType: contentType, Body: body}
		for _, wire := range []Wire{WireArray, WireItems} {
			res := classifyAnswer(&a, routeOf(t, wire), n, redact.New(false, token))
			if res.Items != nil && len(res.Items) != n {
				t.Fatalf("%d outcomes for %d messages", len(res.Items), n)
			}
			taken := 0
			for i := range n {
				out := res.At(i)
				if out.Class == sink.Delivered {
					taken++
				}
				if out.Class < sink.Delivered || out.Class > sink.Misconfigured {
					t.Fatalf("message %d is %s", i, out.Class)
				}
				if (out.Detail == "") != (out.Class == sink.Delivered) {
					t.Fatalf("%s with the detail %q", out.Class, out.Detail)
				}
				if strings.Contains(out.Detail, token) || utf8.RuneCountInString(out.Detail) > 301 {
					t.Fatalf("got detail %q", out.Detail)
				}
			}
			if wire == WireItems && plainKeys(body, n) && taken != words(body, n, &a) {
				t.Fatalf("%d of %d are delivered by %d %q", taken, n, status, body)
			}
		}
	})
}

// words counts the accepted items by another method than the parser's.
func words(body []byte, n int, a *httpsink.Answer) int {
	var object map[string]any
	if !a.Success() || json.Unmarshal(body, &object) != nil {
		return 0
	}

	list, _ := object["results"].([]any)
	if len(list) != n {
		return 0
	}

	taken := 0
	for _, entry := range list {
		fields, _ := entry.(map[string]any)
		switch fields["status"] {
		case "SUCCESS", "SKIPPED":
			taken++
		}
		if text, _ := fields["status"].(string); text == "" {
			return 0
		}
	}

	return taken
}

// plainKeys reports whether no object has a key "status" twice, or a key that only
// reads like it.
func plainKeys(body []byte, n int) bool {
	lower := strings.ToLower(string(body))
	return strings.Count(lower, "status") <= n && strings.Count(string(body), "status") == strings.Count(lower, "status") &&
		!strings.ContainsFunc(lower, func(r rune) bool { return r == '\\' || r > 0x7f })
}
