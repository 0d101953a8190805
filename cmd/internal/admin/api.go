package admin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/dispatch"
	"github.com/sluicebox/sluicebox/store"
)

const (
	// actionTimeout limits an action. It is long because a skip waits for the request in
	// flight with the row.
	actionTimeout = 2 * time.Minute
	maxBody       = 1 << 20 // enough for 1000 ids
)

func badRequest(format string, args ...any) error {
	return &sluicebox.RequestError{Problem: fmt.Sprintf(format, args...)}
}

// api wraps an endpoint of the API: it checks where the request comes from, sets
// deadlines, and writes the result or the error as JSON.
func (h *handler) api(endpoint func(w http.ResponseWriter, r *http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		by, ok := h.access.Load().caller(r)
		if !ok {
			w.Header().Set("WWW-Authenticate", authChallenge)
			writeJSON(w, http.StatusUnauthorized, wireError{tokenRequiredText})
			return
		}
		if problem := forbidden(by, r); problem != "" {
			writeJSON(w, http.StatusForbidden, wireError{problem})
			return
		}
		var body []byte
		if r.Method == http.MethodPost {
			body = peekBody(r)
		}
		// An action may take longer than a scrape.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(actionTimeout + writeTimeout))
		ctx, cancel := context.WithTimeout(r.Context(), actionTimeout)
		defer cancel()
		answer, err := endpoint(w, r.WithContext(ctx))
		if r.Method == http.MethodPost {
			h.record(r, by, body, err)
		}
		if err != nil {
			writeJSON(w, errorStatus(err), wireError{errorText(err)})
			return
		}
		if r.Method == http.MethodGet {
			writeTagged(w, r, answer)
			return
		}
		writeJSON(w, http.StatusOK, answer)
	})
}

// writeTagged writes an answer with an ETag, or 304 if the caller has this answer already. So the
// page polls an unchanged list at no cost.
func writeTagged(w http.ResponseWriter, r *http.Request, answer any) {
	body, err := marshal(answer)
	if err != nil {
		writeJSON(w, http.StatusInternalServerError, wireError{err.Error()})
		return
	}
	sum := sha256.Sum256(body)
	tag := `"` + hex.EncodeToString(sum[:16]) + `"`
	w.Header().Set("ETag", tag)
	if r.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) // the client may have disconnected
}

// marshal returns a value in JSON, with a line break as json.Encoder writes it.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return b.Bytes(), err
}

// get serves a GET endpoint. answer reads the parameters, and calls finish before it acts.
func (h *handler) get(mux *http.ServeMux, path string, answer func(ctx context.Context, q *query) (any, error)) {
	mux.Handle("GET "+path, h.api(func(_ http.ResponseWriter, r *http.Request) (any, error) {
		return answer(r.Context(), newQuery(r.URL))
	}))
}

// post serves a POST endpoint, whose request is a JSON object. answer also gets its fields
// undecoded.
func post[T any](h *handler, mux *http.ServeMux, path string, answer func(ctx context.Context, req *T, written rawFields) (any, error)) {
	mux.Handle("POST "+path, h.api(func(w http.ResponseWriter, r *http.Request) (any, error) {
		var req T
		written, err := decodeRequest(w, r, &req)
		if err != nil {
			return nil, err
		}
		return answer(r.Context(), &req, written)
	}))
}

// isLoopbackHost reports whether a Host header is a loopback address. It accepts an empty
// header, because browsers always send one.
func isLoopbackHost(header string) bool {
	host, _, err := net.SplitHostPort(header)
	if err != nil {
		host = strings.Trim(header, "[]")
	}
	return host == "" || store.Loopback(host)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, _ := marshal(v) // of the API's own types
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may have disconnected
}

// errorStatus returns the HTTP status of an error.
func errorStatus(err error) int {
	var request *sluicebox.RequestError
	var large *http.MaxBytesError
	var reload *ReloadError
	switch {
	case errors.As(err, &large):
		return http.StatusRequestEntityTooLarge
	case errors.As(err, &request):
		return http.StatusBadRequest
	case errors.As(err, &reload):
		return http.StatusUnprocessableEntity
	case errors.Is(err, dispatch.ErrNoLane), errors.Is(err, store.ErrNoSavepoint), errors.Is(err, store.ErrNoJob), errors.Is(err, errNoRoute):
		return http.StatusNotFound
	case errors.Is(err, dispatch.ErrLaneState), errors.Is(err, errUnexpectedCount), errors.Is(err, store.ErrSavepointExists), errors.Is(err, ErrReplayEnded):
		return http.StatusConflict
	case errors.Is(err, context.DeadlineExceeded):
		return http.StatusGatewayTimeout
	case errors.Is(err, sluicebox.ErrNotLeading), errors.Is(err, dispatch.ErrStopped), errors.Is(err, store.ErrNotLeader), errors.Is(err, context.Canceled):
		return http.StatusServiceUnavailable
	}

	return http.StatusInternalServerError
}

// errorText returns the text of an error for the client.
func errorText(err error) string {
	switch errorStatus(err) {
	case http.StatusGatewayTimeout:
		return fmt.Sprintf("timeout after %s; the action may still complete; check before you retry", actionTimeout)
	case http.StatusRequestEntityTooLarge:
		return fmt.Sprintf("request body larger than %d bytes; send fewer rows per request", maxBody)
	}
	if errors.Is(err, sluicebox.ErrNotLeading) {
		return err.Error() + " (/readyz?verbose shows the reason)"
	}
	if errors.Is(err, context.Canceled) {
		return "relay is shutting down; the action may be incomplete; check before you retry"
	}
	return err.Error()
}

// rawFields are the fields of a JSON object, undecoded.
type rawFields map[string]json.RawMessage

// rejectNull rejects null values, because a filter set to null by mistake would choose
// every row.
func (f rawFields) rejectNull() error {
	for name, value := range f {
		if string(value) == "null" {
			return badRequest("%s is null; omit it or give it a value (no_group: true chooses rows without a group)", name)
		}
	}
	return nil
}

// decodeRequest decodes the JSON object of a request into v. It rejects unknown fields
// and a second value.
func decodeRequest(w http.ResponseWriter, r *http.Request, v any) (rawFields, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return nil, fmt.Errorf("read request body: %w", err)
	}

	dec := json.NewDecoder(strings.NewReader(string(body)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return nil, jsonError(err)
	}

	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, badRequest("data after the JSON object; send one object")
	}
	var written rawFields
	if err := json.Unmarshal(body, &written); err != nil {
		return nil, jsonError(err)
	}

	for name := range written {
		if name != strings.ToLower(name) { // encoding/json ignores case
			return nil, badRequest("unknown field %q; did you mean %q?", name, strings.ToLower(name))
		}
	}
	return written, nil
}

func jsonError(err error) error {
	var kind *json.UnmarshalTypeError
	switch {
	case errors.Is(err, io.EOF):
		return badRequest("request body is empty; send a JSON object")
	case errors.As(err, &kind) && kind.Field != "":
		return badRequest("%s cannot be a %s", kind.Field, kind.Value)
	case errors.As(err, &kind):
		return badRequest("request body is a JSON %s; send an object", kind.Value)
	}
	return badRequest("read request body: %s", strings.TrimPrefix(err.Error(), "json: "))
}

// query reads the parameters of a request's URL and keeps the first error.
type query struct {
	remaining url.Values
	known     []string
	err       error
}

func newQuery(u *url.URL) *query {
	values, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return &query{err: badRequest("parse query parameters: %s", err)}
	}
	return &query{remaining: values}
}

func (q *query) addError(format string, args ...any) {
	if q.err == nil {
		q.err = badRequest(format, args...)
	}
}

// values returns all values of a parameter.
func (q *query) values(name string) []string {
	values := q.remaining[name]
	delete(q.remaining, name)
	q.known = append(q.known, name)
	return values
}

// value returns the value of a parameter and whether it is given.
func (q *query) value(name string) (value string, given bool) {
	values := q.values(name)
	if len(values) > 1 {
		q.addError("%s is given more than once", name)
	}
	if len(values) == 0 {
		return "", false
	}
	return values[0], true
}

func (q *query) text(name string) string {
	value, _ := q.value(name)
	return value
}

// enum returns one of the listed texts, or "" if the parameter is not given.
func (q *query) enum(name string, list []string) string {
	value, given := q.value(name)
	if given && !slices.Contains(list, value) {
		q.addError("%s is %q, must be one of %s", name, value, strings.Join(list, ", "))
	}
	return value
}

// flag is true for name, name=true and name=1.
func (q *query) flag(name string) bool {
	value, given := q.value(name)
	if !given || value == "" {
		return given
	}
	on, err := strconv.ParseBool(value)
	if err != nil {
		q.addError("%s is %q, must be true or false", name, value)
	}
	return on
}

// group returns nil for all groups.
func (q *query) group() *store.Group {
	name, given := q.value("group")
	none := q.flag("no-group")
	switch {
	case given && none:
		q.addError("group and no-group are both given; use one of them")
	case given:
		return &store.Group{Name: name, Valid: true}
	case none:
		return &store.Group{}
	}
	return nil
}

// limit returns a number between 1 and most.
func (q *query) limit(usual, most int) int {
	value, given := q.value("limit")
	if !given {
		return usual
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 || n > most {
		q.addError("limit is %q, must be between 1 and %d", value, most)
	}
	return n
}

// time returns the zero time if the parameter is not given.
func (q *query) time(name string) time.Time {
	value, given := q.value(name)
	if !given {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, value)
	if err != nil {
		q.addError("%s is %q, must be a time such as 2026-01-31T15:04:05Z", name, value)
	}
	return t
}

// finish returns the first error. A parameter that was not read is unknown, and an error.
func (q *query) finish() error {
	for _, name := range slices.Sorted(maps.Keys(q.remaining)) {
		q.addError("unknown parameter %q; the parameters are %s", name, strings.Join(q.known, ", "))
	}
	return q.err
}
