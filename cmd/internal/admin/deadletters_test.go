package admin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/admin"
	"github.com/sluicebox/sluicebox/store"
)

type letterRecorder struct{ *recorder }

func (d letterRecorder) Count(_ context.Context, f store.DeadLetterFilter) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.chosen = f
	if d.count == nil {
		return 0, d.err
	}
	return d.count(f)
}

func (d letterRecorder) List(_ context.Context, f store.DeadLetterFilter, limit int, payload bool) ([]store.DeadLetter, error) {
	d.note("list %d %t", limit, payload)
	if !payload {
		d.chosen = f
	} else if len(f.IDs) != limit {
		d.note("for %q", f.IDs)
	}
	rows := slices.Clone(d.letters)
	for i := range rows {
		if !payload || !slices.Contains(f.IDs, rows[i].ID) {
			rows[i].Payload = nil
		}
	}
	return rows, d.err
}

func (d letterRecorder) Requeue(_ context.Context, f store.DeadLetterFilter, limit int) (int, error) {
	d.note("requeue %d", limit)
	d.chosen = f
	return min(limit, 3), d.err
}

func (d letterRecorder) Discard(_ context.Context, f store.DeadLetterFilter, limit int) (int, error) {
	d.note("discard %d", limit)
	d.chosen = f
	return min(limit, 3), d.err
}

// showFilter formats a filter in one line.
func showFilter(f store.DeadLetterFilter) string {
	group := "any"
	if f.Group != nil {
		group = fmt.Sprintf("%t %q", f.Group.Valid, f.Group.Name)
	}
	text := fmt.Sprintf("%s %q %q %s %q", f.Outbox, f.IDs, f.Kind, group, f.Error)
	for _, at := range []time.Time{f.Since, f.Until} {
		if !at.IsZero() {
			text += " " + at.UTC().Format(time.RFC3339Nano)
		}
	}
	return text
}

func TestDeadLettersList(t *testing.T) {
	d := &recorder{letters: []store.DeadLetter{
		{
			Ref: store.Ref{Outbox: "o", ID: "1"}, Kind: "EVENT", Group: store.GroupOf("g"), RetryCount: 3, Error: "400: <no>",
			FailedAt: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC), PayloadSize: 9, Payload: []byte(`{"a": 1}` + "\n"),
		},
		{Ref: store.Ref{Outbox: "o", ID: "2"}, PayloadSize: 2, Payload: []byte{0xff, 0}},
		{Ref: store.Ref{Outbox: "o", ID: "3"}, Payload: []byte{}},
		{Ref: store.Ref{Outbox: "o", ID: "4"}, PayloadSize: 5},
	}}
	base := serveRecorder(t, d, "")
	got := ask(t, "GET", base+"/api/v1/deadletters?payload=true&outbox=o&id=1&id=2&kind=EVENT&no-group&error=50%25&since=2026-01-02T03:04:05Z&until=2026-01-02T04:04:05%2B01:00&limit=7")
	want := `{"deadletters":[` +
		`{"outbox":"o","id":"1","kind":"EVENT","group":"g","retry_count":3,"error":"400: <no>","failed_at":"2026-03-04T05:06:07Z","payload_size":9,"payload":"{\"a\": 1}\n"},` +
		`{"outbox":"o","id":"2","kind":"","group":null,"retry_count":0,"error":"","payload_size":2,"payload_base64":"/wA="},` +
		`{"outbox":"o","id":"3","kind":"","group":null,"retry_count":0,"error":"","payload_size":0,"payload":""},` +
		`{"outbox":"o","id":"4","kind":"","group":null,"retry_count":0,"error":"","payload_size":5}]}` + "\n"
	if got.status != 200 || got.body != want {
		t.Errorf("answers %d %s\nwant %s", got.status, got.body, want)
	}
	if got, want := showFilter(d.chosen), `o ["1" "2"] "EVENT" false "" "50%" 2026-01-02T03:04:05Z 2026-01-02T03:04:05Z`; got != want {
		t.Errorf("asks for %s, want %s", got, want)
	}
	ask(t, "GET", base+"/api/v1/deadletters?outbox=o&group=a")
	ask(t, "GET", base+"/api/v1/deadletters?outbox=o&payload")
	if asked := d.said(); !slices.Equal(asked, []string{"list 7 false", "list 4 true", "list 100 false", "list 25 false", "list 4 true"}) {
		t.Errorf("asks %q", asked)
	}
	d.letters = nil
	if got := ask(t, "GET", base+"/api/v1/deadletters?outbox=o"); got.body != `{"deadletters":[]}`+"\n" {
		t.Errorf("none are %s", got.body)
	}
}

// TestDeadLetterPayloads checks that a request reads at most 4 MiB of payloads, for any
// number and size of rows.
func TestDeadLetterPayloads(t *testing.T) {
	d := &recorder{}
	for i, size := range []int{100 << 20, 3 << 20, 2 << 20, 1 << 20, 1} {
		d.letters = append(d.letters, store.DeadLetter{Ref: store.Ref{Outbox: "o", ID: fmt.Sprint(i)}, PayloadSize: size, Payload: []byte("x")})
	}
	got := ask(t, "GET", serveRecorder(t, d, "")+"/api/v1/deadletters?payload=true")
	var list admin.DeadLetterList
	if err := json.Unmarshal([]byte(got.body), &list); err != nil {
		t.Fatal(err)
	}
	with := ""
	for _, l := range list.DeadLetters {
		if l.Text != nil {
			with += l.ID
		}
	}
	if with != "13" || len(list.DeadLetters) != 5 || list.DeadLetters[0].PayloadSize != 100<<20 {
		t.Errorf("rows %q have payloads: %.300s", with, got.body)
	}
}

func TestDeadLettersCount(t *testing.T) {
	d := &recorder{count: func(store.DeadLetterFilter) (int, error) { return 42, nil }}
	base := serveRecorder(t, d, "")
	got := ask(t, "GET", base+"/api/v1/deadletters/count?outbox=o&group=a")
	if got.status != 200 || got.body != `{"count":42}`+"\n" || showFilter(d.chosen) != `o [] "" true "a" ""` {
		t.Errorf("answers %d %s to %s", got.status, got.body, showFilter(d.chosen))
	}
}

func TestDeadLetterActions(t *testing.T) {
	d := &recorder{count: func(store.DeadLetterFilter) (int, error) { return 5, nil }}
	base := serveRecorder(t, d, "") + "/api/v1/deadletters/"
	for _, tt := range []struct{ action, body, asked, filter, answer string }{
		{"requeue", `{"outbox":"o"}`, "requeue 1000", `o [] "" any ""`, `{"count":3}`},
		{
			"discard", `{"outbox":"o","ids":["1"],"kind":"k","group":"","error":"e","since":"2026-01-02T03:04:05Z","until":"2026-01-03T03:04:05Z","limit":2,"expect":5}`,
			"discard 2", `o ["1"] "k" true "" "e" 2026-01-02T03:04:05Z 2026-01-03T03:04:05Z`, `{"count":2}`,
		},
		{"requeue", `{"outbox":"o","no_group":true,"dry_run":false}`, "requeue 1000", `o [] "" false "" ""`, `{"count":3}`},
	} {
		got := post(t, base+tt.action, tt.body)
		if got.status != 200 || got.body != tt.answer+"\n" {
			t.Errorf("%s answers %d %s", tt.body, got.status, got.body)
		}
		if asked := d.said(); !slices.Equal(asked, []string{tt.asked}) || showFilter(d.chosen) != tt.filter {
			t.Errorf("%s asks %q for %s", tt.body, asked, showFilter(d.chosen))
		}
	}
	expectError(t, "expect", post(t, base+"discard", `{"outbox":"o","expect":4}`), 409, "nothing was changed: the filter now chooses 5 rows, not 4")
	if asked := d.said(); len(asked) > 0 {
		t.Errorf("it asked %q", asked)
	}
}

// TestDryRun checks that a count returns a time after the failure of all counted rows, if
// the table records times.
func TestDryRun(t *testing.T) {
	d := &recorder{}
	base := serveRecorder(t, d, "") + "/api/v1/deadletters/"
	var counted []store.DeadLetterFilter
	counts := func(plain, bounded int, err error) func(store.DeadLetterFilter) (int, error) {
		return func(f store.DeadLetterFilter) (int, error) {
			counted = append(counted, f)
			if f.Until.IsZero() {
				return plain, nil
			}
			return bounded, err
		}
	}
	began := time.Now()
	d.count = counts(5, 5, nil)
	got := post(t, base+"requeue", `{"outbox":"o","dry_run":true}`)
	if until := counted[1].Until; got.body != fmt.Sprintf(`{"count":5,"until":"%s"}`, until.Format(time.RFC3339Nano))+"\n" ||
		until.Before(began) || until.After(time.Now()) {
		t.Errorf("answers %s, counted until %s", got.body, until)
	}
	for what, count := range map[string]func(store.DeadLetterFilter) (int, error){
		"rows without a time": counts(5, 4, nil),
		"a table without it":  counts(5, 0, fmt.Errorf("no column")),
	} {
		d.count = count
		if got := post(t, base+"discard", `{"outbox":"o","dry_run":true}`); got.body != `{"count":5}`+"\n" {
			t.Errorf("%s: answers %s", what, got.body)
		}
	}
	d.count = counts(5, 2, nil)
	if got := post(t, base+"discard", `{"outbox":"o","dry_run":true,"until":"2026-01-02T03:04:05Z"}`); got.body != `{"count":2,"until":"2026-01-02T03:04:05Z"}`+"\n" {
		t.Errorf("with a bound it answers %s", got.body)
	}
	if asked := d.said(); len(asked) > 0 {
		t.Errorf("it asked %q", asked)
	}
}
