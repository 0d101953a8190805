package ingest

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/sluicebox/sluicebox/store/outbox"
)

// Seconds for Retry-After.
const (
	retryUnavailable = 2
	retryLagging     = 10
)

// fault is the answer to a request that writes nothing.
type fault struct {
	status     int
	text       string
	retryAfter int    // seconds; 0 for none
	accept     string // the encodings that are accepted, if another one was sent
}

func (f *fault) Error() string { return f.text }

// result is what became of a row. A list of them answers a list of rows.
type result struct {
	Status      int    `json:"status,omitempty"`
	ID          string `json:"id"`
	CreatedAt   string `json:"created_at,omitempty"`
	PayloadSize *int   `json:"payload_size,omitempty"`
	Error       string `json:"error,omitempty"`
}

// resultOf returns the result of a row.
func resultOf(row *outbox.Row, w *outbox.Written) result {
	r := result{ID: row.ID, Status: http.StatusCreated}
	switch {
	case w.Err != nil:
		r.Status, r.Error = http.StatusUnprocessableEntity, w.Err.Error()
		return r
	case w.Conflict:
		r.Status, r.Error = http.StatusConflict, "id: the table has it with other content; use an id of its own for each row"
		return r
	case w.Repeated:
		r.Status = http.StatusOK
	}
	r.PayloadSize = new(len(row.Payload))
	if !w.Created.IsZero() {
		r.CreatedAt = w.Created.UTC().Format(time.RFC3339Nano)
	}
	return r
}

// answer is the answer to a request.
type answer struct {
	status int
	body   any
	fault  *fault // nil if rows were given to the database
}

// failed returns the answer to a request that an error ended.
func failed(err error) answer {
	f := (*fault)(nil)
	if !errors.As(err, &f) {
		f = &fault{status: http.StatusInternalServerError, text: err.Error()}
	}
	return answer{status: f.status, body: map[string]string{"error": f.text}, fault: f}
}

// oneResult answers a request with one row.
func oneResult(r result) answer {
	status := r.Status
	r.Status = 0
	if r.Error != "" {
		return answer{status: status, body: map[string]string{"error": r.Error}}
	}
	return answer{status: status, body: r}
}

// manyResults answers a list by position. The status is that of all rows if they have the same,
// else 207.
func manyResults(all []result) answer {
	status := all[0].Status
	for i := range all {
		if all[i].Status != status {
			status = http.StatusMultiStatus
		}
	}
	return answer{status: status, body: map[string][]result{"rows": all}}
}

// write sends the answer. close ends the connection after it.
func (a *answer) write(w http.ResponseWriter, end bool) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if f := a.fault; f != nil {
		if f.retryAfter > 0 {
			h.Set("Retry-After", strconv.Itoa(f.retryAfter))
		}
		if f.accept != "" {
			h.Set("Accept-Encoding", f.accept)
		}
		if f.status == http.StatusUnauthorized {
			h.Set("WWW-Authenticate", `Bearer realm="sluicebox"`)
		}
		end = end || f.status == http.StatusRequestTimeout
	}
	if end {
		h.Set("Connection", "close")
	}
	var body bytes.Buffer
	e := json.NewEncoder(&body)
	e.SetEscapeHTML(false)
	if err := e.Encode(a.body); err != nil {
		panic("ingest: encode answer as JSON: " + err.Error())
	}
	h.Set("Content-Length", strconv.Itoa(body.Len()))
	w.WriteHeader(a.status)
	_, _ = w.Write(body.Bytes()) // the client may be gone
}
