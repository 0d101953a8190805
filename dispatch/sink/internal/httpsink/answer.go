package httpsink

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

const (
	// maxDrainBytes is how much of an answer is read whose status says it all, so that
	// its connection can be used again, and maxKeptBytes how much of it is kept for
	// the detail.
	maxDrainBytes = 64 << 10
	maxKeptBytes  = 8 << 10
)

// ErrTooLong says that the body of a 2xx exceeds MaxSuccess.
var ErrTooLong = errors.New("it is too long")

// Answer is what came back.
type Answer struct {
	Status      int
	ContentType string
	// Location is where a redirect points, without its query.
	Location string
	// RetryAfter is what a failure asks for; 0 if it does not.
	RetryAfter time.Duration
	// Body is the body of a 2xx up to MaxSuccess, else its beginning.
	Body []byte
	// Err says why the body is not whole.
	Err error
}

// newAnswer takes in what comes in front of the body.
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

// readFull takes in the answer of a success whose body counts.
func readFull(resp *http.Response, most int) *Answer {
	a := newAnswer(resp)
	a.Body, a.Err = io.ReadAll(io.LimitReader(resp.Body, int64(most)+1))
	if len(a.Body) > most {
		a.Body, a.Err = a.Body[:min(most, maxKeptBytes)], ErrTooLong
	}
	return a
}

// readBounded takes in any other answer, up to a bound, and leaves the rest in the
// connection, which is then dropped.
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

// redirect returns where the answer sends its client. A query is left out, since
// login pages get all sorts of secrets in theirs.
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

// Excerpt returns ": " and the beginning of the body, "" if it is blank or not to be
// shown. Detail shortens it.
func (a *Answer) Excerpt(r *Redactor) string {
	if len(bytes.TrimSpace(a.Body)) == 0 || r.HidesBody() {
		return ""
	}
	return ": " + string(a.Body[:min(len(a.Body), maxKeptBytes)])
}

// Failure returns the detail of an answer that fails by its status: what the
// receiver said, or where it redirects to.
func (a *Answer) Failure(request string, r *Redactor) string {
	if a.Location != "" {
		return a.Detail(request, ", which redirects to "+a.Location, r)
	}
	return a.Detail(request, a.Excerpt(r), r)
}

// Detail returns a detail that names the status and the request, such as
// "POST /path", goes on with the text, and shows none of the secrets.
func (a *Answer) Detail(request, text string, r *Redactor) string {
	return r.OneLine(fmt.Sprintf("%d %s from %s%s", a.Status, http.StatusText(a.Status), request, text))
}
