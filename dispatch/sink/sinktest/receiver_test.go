package sinktest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// post sends a body and returns the status and the body of the response, 0 for none.
func post(t *testing.T, url, key, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}

	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func ids(list []sinktest.Received) []string {
	var s []string
	for _, r := range list {
		s = append(s, r.ID)
	}
	return s
}

func TestReceiverWires(t *testing.T) {
	r := sinktest.NewReceiver(t)
	for _, c := range []struct {
		path, body string
		status     int
		answer     string
	}{
		{"/api/events/batch", `[{"id":"a"},{"id":"b"}]`, 201, ""},
		{"/x/api/dispatch/jobs/batch", `[{"id":"a"}]`, 201, ""},
		{"/api/dispatch-jobs/batch", `{"items":[{"id":"c"}]}`, 201, `{"results":[{"id":"platform-0","status":"SUCCESS"}]}`},
		{"/api/audit-logs/batch", `{"items":[{"id":"d","n": 1.0}]}`, 200, `{"results":[{"id":"platform-0","status":"SUCCESS"}]}`},
		{"/api/events/batch", `{"things":[]}`, 400, "not a batch: neither an array nor an object with items\n"},
		{"/api/nothing", `[]`, 404, "not a batch: <nil>\n"},
	} {
		status, answer := post(t, r.URL()+c.path, "", c.body)
		if status != c.status || answer != c.answer {
			t.Errorf("POST %s %s: %d %q, want %d %q", c.path, c.body, status, answer, c.status, c.answer)
		}
	}

	log := r.Accepted()
	if got := ids(log); !slices.Equal(got, []string{"a", "b", "a", "c", "d"}) {
		t.Fatalf("got log %v", got)
	}

	last := log[4]
	if last.Kind != "AUDIT_LOG" || string(last.Payload) != `{"id":"d","n": 1.0}` || last.Status != 200 ||
		last.Request != 4 || last.Index != 0 || time.Since(last.At) > time.Minute {
		t.Errorf("got last item %+v", last)
	}

	if log[1].Index != 1 || log[1].Request != 1 || log[2].Kind != "DISPATCH_JOB" {
		t.Errorf("got log %+v", log)
	}

	// The same id under two kinds is two items.
	if c := r.Counts(); c != (sinktest.Counts{Requests: 6, Items: 5, Distinct: 5}) {
		t.Errorf("got counts %+v", c)
	}
}

// TestReceiverWebhook: one request is one item, whatever its body and path.
func TestReceiverWebhook(t *testing.T) {
	r := sinktest.NewReceiver(t)
	r.Script(func(req *sinktest.Request) sinktest.Answer {
		if req.Method != http.MethodPut || req.Path != "/hook" {
			t.Errorf("got request %s %s", req.Method, req.Path)
		}
		return sinktest.Answer{Status: 204}
	})

	for _, kind := range []string{"Sluicebox-Kind", "Ce-Type"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, r.URL()+"/hook", strings.NewReader("[1,"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Webhook-Id", "a%2Eb")
		if kind == "Ce-Type" {
			req.Header.Set("Sluicebox-Replay", "job")
		}
		req.Header.Set(kind, "an%20"+kind)
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != 204 {
			t.Errorf("got status %d", resp.StatusCode)
		}
	}

	log := r.Accepted()
	if len(log) != 2 || log[0].ID != "a.b" || log[0].Kind != "an Sluicebox-Kind" || log[1].Kind != "an Ce-Type" ||
		string(log[0].Payload) != "[1," || log[0].Replay != "" || log[1].Replay != "job" {
		t.Errorf("got log %+v", log)
	}
}

// TestReceiverScript: the response determines the accepted items.
func TestReceiverScript(t *testing.T) {
	r := sinktest.NewReceiver(t)
	answers := []sinktest.Answer{
		{Status: 503, Header: http.Header{"Retry-After": {"1"}}},
		{ItemStatuses: []string{"ERROR", "SKIPPED"}},
		{Disconnect: true},
		{Disconnect: true, Status: 201},
		{Status: 200, Body: []byte("<html>")},
		{Status: 200, Body: []byte("<html>"), Astray: true, WriteRest: func(_ context.Context, body io.Writer) {
			_, _ = io.WriteString(body, "</html>")
		}},
		{},
	}

	r.Script(func(req *sinktest.Request) sinktest.Answer {
		if got := req.IDs(); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("request %d has the items %v", req.N, got)
		}
		return answers[req.N-1]
	})

	var statuses []int
	for range answers {
		status, body := post(t, r.URL()+"/api/events/batch", "k", `{"items":[{"id":"a"},{"id":"b"}]}`)
		statuses = append(statuses, status)
		if answers[len(statuses)-1].Astray && body != "<html></html>" {
			t.Errorf("got page %q", body)
		}
		if status == 201 && !json.Valid([]byte(body)) {
			t.Errorf("got response %q", body)
		}
	}

	if want := []int{503, 201, 0, 0, 200, 200, 201}; !slices.Equal(statuses, want) {
		t.Errorf("the statuses are %v, want %v", statuses, want)
	}

	var taken []bool
	for _, x := range r.Log() {
		taken = append(taken, x.Accepted)
		if x.Key != "k" {
			t.Errorf("got key %q", x.Key)
		}
	}

	want := []bool{false, false, false, true, false, false, true, true, true, true, false, false, true, true}
	if !slices.Equal(taken, want) {
		t.Errorf("taken are %v, want %v", taken, want)
	}
	if c := r.Counts(); c != (sinktest.Counts{Requests: 7, Items: 14, Distinct: 2, Duplicates: 5}) {
		t.Errorf("got counts %+v", c)
	}
}

func TestReceiverWait(t *testing.T) {
	r := sinktest.NewReceiver(t)
	release := make(chan struct{})
	r.Script(func(req *sinktest.Request) sinktest.Answer { return sinktest.Answer{Release: release} })
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := r.Wait(short, 1); err == nil || !strings.Contains(err.Error(), "0 of 1 items arrived") {
		t.Errorf("wait without items: got %v", err)
	}

	var wg sync.WaitGroup
	for _, id := range []string{"a", "b", "a"} { // the last one repeats an id
		wg.Go(func() { post(t, r.URL()+"/api/events/batch", "", `[{"id":"`+id+`"}]`) })
	}

	waited := make(chan error, 1)
	long, cancelLong := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancelLong()
	go func() { waited <- r.Wait(long, 2) }()
	close(release)
	if err := <-waited; err != nil {
		t.Error(err)
	}

	wg.Wait()
	if err := r.Wait(short, 2); err != nil {
		t.Errorf("arrived items not returned under an ended context: %v", err)
	}
}

// TestReceiverEndsHeld: the end of a test does not wait for held responses.
func TestReceiverEndsHeld(t *testing.T) {
	arrived := make(chan struct{})
	var status int
	var wg sync.WaitGroup
	t.Run("held", func(t *testing.T) {
		r := sinktest.NewReceiver(t)
		r.Script(func(*sinktest.Request) sinktest.Answer {
			close(arrived)
			return sinktest.Answer{Delay: time.Hour}
		})
		url := r.URL() + "/api/events/batch"
		wg.Go(func() {
			resp, err := http.Post(url, "application/json", bytes.NewReader([]byte(`[{"id":"a"}]`)))
			if err == nil {
				status = resp.StatusCode
				_ = resp.Body.Close()
			}
		})
		<-arrived
	})

	wg.Wait()
	if status != 0 && status != 201 {
		t.Errorf("held request: got status %d", status)
	}

	http.DefaultClient.CloseIdleConnections()
}
