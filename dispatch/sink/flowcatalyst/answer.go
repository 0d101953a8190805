package flowcatalyst

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/httpsink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
	"github.com/sluicebox/sluicebox/store"
)

// maxSuccess is the maximum length of the body of a success: 1000 results of 1 kB.
const maxSuccess = 1 << 20

// Words of a result that mean that the platform has the item.
const (
	wordSuccess = "SUCCESS"
	wordSkipped = "SKIPPED"
)

var errNotObject = errors.New("not a JSON object")

// classifyAnswer classifies the response to n messages.
func classifyAnswer(a *httpsink.Answer, r *route, n int, red *redact.Redactor) sink.Result {
	class, reason := sink.Classify(a.Status)
	fail := func(class sink.Class, reason store.Reason, detail string) sink.Result {
		return sink.Result{
			Outcome:    sink.Outcome{Class: class, Reason: reason, Detail: detail},
			RetryAfter: a.RetryAfter,
		}
	}

	if class != sink.Delivered {
		return fail(class, reason, a.Failure(r.name(), red))
	}
	if a.Err != nil && !errors.Is(a.Err, httpsink.ErrTooLong) {
		// The platform may have accepted the rows. Only a complete response proves
		// it.
		text := ": incomplete response: " + httpsink.ErrorText(a.Err)
		return fail(sink.Unavailable, store.ReasonGateway, a.Detail(r.name(), text, red))
	}

	res, err := parseAnswer(a, r, n, red)
	if err != nil {
		text := fmt.Sprintf(": response not from the API (%v), content type %q%s", err, a.ContentType, a.Excerpt(red))
		return fail(sink.Misconfigured, store.ReasonInternal, a.Detail(r.name(), text, red))
	}
	return res
}

// parseAnswer parses the body of a success. It fails if the body does not come from
// the API.
func parseAnswer(a *httpsink.Answer, r *route, n int, red *redact.Redactor) (sink.Result, error) {
	if a.Err != nil {
		return sink.Result{}, a.Err
	}

	body := bytes.TrimSpace(a.Body)
	if !r.needsResults && (len(body) == 0 || body[0] == '[') {
		return arrayResult(a, body, r, n, red)
	}

	list, err := parseResults(body)
	if errors.Is(err, errNotObject) && !r.needsResults {
		return sink.Result{}, fmt.Errorf("%w, nor an array, nor empty", err)
	}
	if err != nil {
		return sink.Result{}, err
	}
	if list == nil {
		if r.needsResults {
			return sink.Result{}, errors.New("no results")
		}
		return arrayResult(a, body, r, n, red)
	}

	if len(list) != n {
		return sink.Result{}, fmt.Errorf("%d results for %d items", len(list), n)
	}
	return outcomesOf(list, r, red)
}

// result is one entry of a response. Its id is the platform's, not the row's.
type result struct {
	Status string          `json:"status"`
	Error  json.RawMessage `json:"error"`
}

// parseResults returns the list of results, nil if the object has none.
func parseResults(body []byte) ([]result, error) {
	if len(body) == 0 {
		return nil, errors.New("empty body")
	}
	if body[0] != '{' {
		return nil, errNotObject
	}

	var object map[string]json.RawMessage
	if err := json.Unmarshal(body, &object); err != nil {
		return nil, errNotObject
	}

	raw, ok := object["results"]
	if !ok {
		return nil, nil
	}

	var list []result
	if err := json.Unmarshal(raw, &list); err != nil || list == nil {
		return nil, errors.New("results is not a list of objects with a status")
	}
	return list, nil
}

// outcomesOf converts results to outcomes. If the platform accepted all items, there
// is one outcome for all.
func outcomesOf(list []result, r *route, red *redact.Redactor) (sink.Result, error) {
	items := make([]sink.Outcome, len(list))
	accepted, skipped := 0, 0
	for i := range list {
		switch word := list[i].Status; word {
		case "":
			return sink.Result{}, fmt.Errorf("result %d of %d has no status", i+1, len(list))
		case wordSuccess, wordSkipped:
			items[i] = sink.Outcome{Class: sink.Delivered}
			accepted++
			if word == wordSkipped {
				skipped++
			}
		default:
			items[i] = refusedOutcome(r, word, errorText(list[i].Error), red)
		}
	}

	res := sink.Result{Items: items}
	if accepted == len(list) {
		res = delivered()
	}
	res.Skipped = skipped
	return res, nil
}

// refusedOutcome returns the outcome of an item whose status is not a success.
func refusedOutcome(r *route, word, reason string, red *redact.Redactor) sink.Outcome {
	detail := fmt.Sprintf("%s answered %s for the item: %s", r.name(), word, reason)
	if red.HidesBody() {
		detail = r.name() + " answered with a failure for the item"
	}
	return sink.Outcome{Class: sink.Refused, Reason: store.ReasonInternal, Detail: red.OneLine(detail)}
}

// errorText returns an error, which may be a string or any other value, as text.
func errorText(raw json.RawMessage) string {
	if len(raw) == 0 || string(raw) == "null" {
		return "no reason given"
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	return string(raw)
}

func delivered() sink.Result {
	return sink.Result{Outcome: sink.Outcome{Class: sink.Delivered}}
}
