package flowcatalyst

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

const (
	// maxSuccess is the longest answer of a success: 1000 results of 1 kB.
	maxSuccess = 1 << 20
	// maxFailure is how much of another answer is read, so that its connection
	// can be used again, and maxKept how much of it is kept for the detail.
	maxFailure = 64 << 10
	maxKept    = 8 << 10
)

// The words of a result that say that the platform has the item.
const (
	wordSuccess = "SUCCESS"
	wordSkipped = "SKIPPED"
)

var (
	errTooLong  = errors.New("it is too long")
	errNoObject = errors.New("it is not a JSON object")
)

// answer is what came back.
type answer struct {
	status      int
	contentType string
	location    string // where a redirect points, without its query
	body        []byte
	err         error // the body is not whole
}

// read takes the body in, up to a bound, and leaves the rest in the connection,
// which is then dropped.
func read(resp *http.Response) answer {
	a := answer{
		status:      resp.StatusCode,
		contentType: resp.Header.Get("Content-Type"),
		location:    redirect(resp),
	}
	if a.status < 200 {
		return a // a switched protocol has no end
	}
	if a.success() {
		a.body, a.err = io.ReadAll(io.LimitReader(resp.Body, maxSuccess+1))
		if len(a.body) > maxSuccess {
			a.body, a.err = a.body[:maxKept], errTooLong
		}
		return a
	}
	a.body, a.err = io.ReadAll(io.LimitReader(resp.Body, maxKept))
	if a.err == nil {
		_, a.err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxFailure-maxKept))
	}
	return a
}

// redirect returns where the answer sends its client. A query is left out, since
// login pages get all sorts of secrets in theirs.
func redirect(resp *http.Response) string {
	u, err := resp.Location()
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host + u.Path
}

func (a *answer) success() bool { return a.status >= 200 && a.status < 300 }

// judge says what an answer to n messages means.
func (a *answer) judge(r *route, n int, token string) sink.Result {
	class, reason := sink.Classify(a.status)
	fail := func(class sink.Class, reason store.Reason, text string) sink.Result {
		detail := fmt.Sprintf("%d %s from POST %s", a.status, http.StatusText(a.status), r.path)
		return sink.Result{Outcome: sink.Outcome{
			Class: class, Reason: reason, Detail: clean(detail+text, token),
		}}
	}
	if class != sink.Delivered {
		text := a.excerpt()
		if a.location != "" {
			text = ", which redirects to " + a.location
		}
		return fail(class, reason, text)
	}
	if a.err != nil && !errors.Is(a.err, errTooLong) {
		// It may have been taken. Only a whole answer says so.
		return fail(sink.Unavailable, store.ReasonGateway, ": the answer broke off: "+plain(a.err))
	}
	res, err := a.results(r, n, token)
	if err != nil {
		text := fmt.Sprintf(": not the API's answer (%v), content type %q%s", err, a.contentType, a.excerpt())
		return fail(sink.Misconfigured, store.ReasonInternal, text)
	}
	return res
}

// excerpt returns the beginning of the body; clean shortens it.
func (a *answer) excerpt() string {
	if len(bytes.TrimSpace(a.body)) == 0 {
		return ""
	}
	return ": " + string(a.body[:min(len(a.body), maxKept)])
}

// results reads the answer of a success. An error says why it is not the API's.
func (a *answer) results(r *route, n int, token string) (sink.Result, error) {
	if a.err != nil {
		return sink.Result{}, a.err
	}
	body := bytes.TrimSpace(a.body)
	if !r.needsResults {
		if len(body) == 0 && !strings.HasPrefix(strings.ToLower(a.contentType), "text/html") {
			return delivered(), nil
		}
		if len(body) > 0 && body[0] == '[' && json.Valid(body) {
			return delivered(), nil
		}
	}
	list, err := parseResults(body)
	if errors.Is(err, errNoObject) && !r.needsResults {
		return sink.Result{}, fmt.Errorf("%w, nor an array, nor empty", err)
	}
	if err != nil {
		return sink.Result{}, err
	}
	if list == nil {
		if r.needsResults {
			return sink.Result{}, errors.New("no results in it")
		}
		return delivered(), nil
	}
	if len(list) != n {
		return sink.Result{}, fmt.Errorf("%d results for %d items", len(list), n)
	}
	return outcomes(list, r, token)
}

// result is one entry of an answer. Its id is the platform's, not the row's.
type result struct {
	Status string          `json:"status"`
	Error  json.RawMessage `json:"error"`
}

// parseResults returns the list of an answer, nil if the object has none.
func parseResults(body []byte) ([]result, error) {
	if len(body) == 0 {
		return nil, errors.New("it is empty")
	}
	if body[0] != '{' {
		return nil, errNoObject
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(body, &object); err != nil {
		return nil, errNoObject
	}
	raw, ok := object["results"]
	if !ok {
		return nil, nil
	}
	var list []result
	if err := json.Unmarshal(raw, &list); err != nil || list == nil {
		return nil, errors.New("its results are no list of objects with a status")
	}
	return list, nil
}

// outcomes turns results into outcomes: one for all where all were taken.
func outcomes(list []result, r *route, token string) (sink.Result, error) {
	items := make([]sink.Outcome, len(list))
	taken := 0
	for i := range list {
		switch word := list[i].Status; word {
		case "":
			return sink.Result{}, fmt.Errorf("result %d of %d has no status", i+1, len(list))
		case wordSuccess, wordSkipped:
			items[i] = sink.Outcome{Class: sink.Delivered}
			taken++
		default:
			detail := fmt.Sprintf("POST %s answered %s for the item: %s", r.path, word, list[i].reason())
			items[i] = sink.Outcome{
				Class: sink.Refused, Reason: store.ReasonInternal, Detail: clean(detail, token),
			}
		}
	}
	if taken == len(list) {
		return delivered(), nil
	}
	return sink.Result{Items: items}, nil
}

// reason is the error of a result, which may be a text or any other value.
func (r *result) reason() string {
	if len(r.Error) == 0 || string(r.Error) == "null" {
		return "no reason given"
	}
	var text string
	if json.Unmarshal(r.Error, &text) == nil {
		return text
	}
	return string(r.Error)
}

func delivered() sink.Result {
	return sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}
}
