package quickstart

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// post sends a body and returns the status, or 0 without a response.
func post(t *testing.T, url, body string) (status int, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

func batch(list []order) string {
	payloads := make([]string, len(list))
	for i, o := range list {
		payloads[i] = o.payload()
	}
	return "[" + strings.Join(payloads, ",") + "]"
}

func testReceiver(t *testing.T, o *oracle, f *faults) *receiver {
	t.Helper()
	r, err := startReceiver(t.Context(), o, f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func TestReceiverTakes(t *testing.T) {
	o, _ := oracleWith(3)
	r := testReceiver(t, o, newFaults(0))
	status, text := post(t, r.url+eventsPath, batch(rows(1, 2, 3)))
	var answer struct {
		Results []struct{ ID, Status string }
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil || status != http.StatusCreated || len(answer.Results) != 3 {
		t.Fatalf("status %d, %v: %s", status, err, text)
	}
	for _, res := range answer.Results {
		if res.ID == "" || res.Status != "SUCCESS" {
			t.Errorf("a result is %+v", res)
		}
	}
	if s, _ := o.currentState(); s.delivered != 3 || resultError(&s, map[string]int{completed: 3}) != nil {
		t.Errorf("the oracle knows %+v", s)
	}
}

func TestReceiverRefuses(t *testing.T) {
	o, _ := oracleWith(1)
	r := testReceiver(t, o, newFaults(0))
	for _, tt := range []struct {
		path, body string
		status     int
	}{
		{eventsPath, "", 400}, {eventsPath, "{}", 400}, {eventsPath, "[1]", 400},
		{eventsPath, strings.Replace(batch(rows(1)), "customer-1", "customer-2", 1), 400},
		{eventsPath, "[" + strings.Repeat(" ", maxRequest) + "]", 400},
		{"/api/other", batch(rows(1)), 404},
	} {
		if status, text := post(t, r.url+tt.path, tt.body); status != tt.status {
			t.Errorf("%s %.40s: status %d, want %d: %s", tt.path, tt.body, status, tt.status, text)
		}
	}
	if s, _ := o.currentState(); s.delivered != 0 {
		t.Errorf("%d rows were accepted, want 0", s.delivered)
	}
}

// TestReceiverFails: a failed request of any kind records no rows, and no row fails more
// than maxStrikes times.
func TestReceiverFails(t *testing.T) {
	const n = 60
	o, _ := oracleWith(n)
	f := newFaults(1)
	r := testReceiver(t, o, f)
	for i := 1; i <= n; i++ {
		for try := range maxStrikes + 1 {
			before, _ := o.currentState()
			status, text := post(t, r.url+eventsPath, batch(rows(i)))
			after, _ := o.currentState()
			if last := try == maxStrikes; (status == http.StatusCreated) != last || (after.delivered > before.delivered) != last {
				t.Fatalf("row %d, try %d: status %d, %d delivered: %s", i, try, status, after.delivered, text)
			}
			if status != 0 && status != 500 && status != 503 && status != 201 {
				t.Fatalf("status %d, want 0 (no response), 201, 500 or 503", status)
			}
		}
	}
	c := f.counts()
	if c.requests != n*(maxStrikes+1) || c.total() != n*maxStrikes || c.retriedRows != n || c.maxTries != maxStrikes+1 || len(f.strikes) != 0 {
		t.Errorf("counts are %+v, and %d rows are remembered", c, len(f.strikes))
	}
	for kind := unavailable; kind < faultKinds; kind++ {
		if c.failed[kind] == 0 {
			t.Errorf("no failure of kind %d among %d", kind, c.total())
		}
	}
	if s, _ := o.currentState(); resultError(&s, map[string]int{completed: n}) != nil {
		t.Errorf("the oracle knows %+v", s)
	}
}

// TestFaultsSpare: a request fails only if each of its rows may fail once more.
func TestFaultsSpare(t *testing.T) {
	f := newFaults(1)
	for range maxStrikes {
		if f.choose(rows(1)) == noFault {
			t.Fatal("a request of a fresh row did not fail")
		}
	}
	if f.choose(rows(2, 1)) != noFault {
		t.Error("a row failed once too often")
	}
	if f.choose(rows(1, 3)) == noFault {
		t.Error("rows that were taken are remembered")
	}
	if newFaults(0).choose(rows(1)) != noFault {
		t.Error("a request failed at a rate of 0")
	}
}
