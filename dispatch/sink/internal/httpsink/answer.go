package httpsink

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
)

const (
	// maxDrainBytes bounds the body that is read although the status already decides
	// the outcome. Draining it lets the connection be reused. The first maxKeptBytes
	// of it are kept for the detail.
	maxDrainBytes = 64 << 10
	maxKeptBytes  = 8 << 10
)

// ErrTooLong reports that the body of a 2xx exceeds MaxSuccess.
var ErrTooLong = errors.New("body too long")

// Answer is the response to a [Request].
type Answer struct {
	Status      int
	ContentType string

	// Location is the target of a redirect, without its query.
	Location string

	// RetryAfter is the pause that a failure asks for, 0 for none.
	RetryAfter time.Duration

	// Body is the body of a 2xx up to MaxSuccess. For any other response it is the
	// beginning of the body.
	Body []byte

	// Err is the reason why Body is incomplete.
	Err error
}

// newAnswer reads the status line and the headers.
func newAnswer(resp *http.Response) *Answer {
	a := &Answer{
		Status:      resp.StatusCode,
		ContentType: resp.Header.Get("Content-Type"),
		Location:    redirect(resp),
	}
	if !a.Success() {
		a.RetryAfter = sink.RetryAfter(resp.Header, time.Now())
	}
	return a
}

// readFull reads a success whose body counts.
func readFull(resp *http.Response, limit int) *Answer {
	a := newAnswer(resp)
	a.Body, a.Err = io.ReadAll(io.LimitReader(resp.Body, int64(limit)+1))
	if len(a.Body) > limit {
		a.Body, a.Err = a.Body[:min(limit, maxKeptBytes)], ErrTooLong
	}
	return a
}

// readBounded reads any other response up to a bound. The connection is dropped if
// more of the body is left.
func readBounded(resp *http.Response) *Answer {
	a := newAnswer(resp)
	if a.Status < 200 {
		return a // a switched protocol has no end
	}
	a.Body, a.Err = io.ReadAll(io.LimitReader(resp.Body, maxKeptBytes))
	if a.Err == nil {
		_, a.Err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxDrainBytes-maxKeptBytes))
	}
	return a
}

// redirect returns the target of a redirect without its query, because login pages
// put all sorts of secrets there.
func redirect(resp *http.Response) string {
	u, err := resp.Location()
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host + u.Path
}

func isSuccess(status int) bool { return status >= 200 && status < 300 }

// Success reports whether the status is a 2xx.
func (a *Answer) Success() bool { return isSuccess(a.Status) }

// Excerpt returns ": " and the beginning of the body. It returns "" if the body is
// blank or must not be shown. Detail shortens it.
func (a *Answer) Excerpt(r *redact.Redactor) string {
	if len(bytes.TrimSpace(a.Body)) == 0 || r.HidesBody() {
		return ""
	}
	return ": " + string(a.Body[:min(len(a.Body), maxKeptBytes)])
}

// Failure returns the detail of a response whose status is a failure: the target of a
// redirect, or the beginning of the body.
func (a *Answer) Failure(request string, r *redact.Redactor) string {
	if a.Location != "" {
		return a.Detail(request, ", redirect to "+a.Location, r)
	}
	return a.Detail(request, a.Excerpt(r), r)
}

// Detail returns a line of the status, the request (for example "POST /path") and the
// text, without secrets.
func (a *Answer) Detail(request, text string, r *redact.Redactor) string {
	return r.OneLine(fmt.Sprintf("%d %s from %s%s", a.Status, http.StatusText(a.Status), request, text))
}
