package sink

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Classify maps an HTTP status to the class of the outcome and the reason that is
// stored with a FAILED row. For example, 429 is Unavailable and 422 is Rejected.
//
// A sink still has to check that the body of a 2xx comes from its API. A sink that
// accepts 409 as a delivery handles 409 before it calls Classify.
func Classify(status int) (Class, store.Reason) {
	return class(status), reason(status)
}

func class(status int) Class {
	switch status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return Rejected
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return Unavailable
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound,
		http.StatusMethodNotAllowed, http.StatusProxyAuthRequired:
		return Misconfigured
	}

	switch {
	case status >= 200 && status < 300:
		return Delivered
	case status >= 400 && status < 600:
		return Refused
	}
	return Misconfigured // a 1xx as the final response, a 3xx, or no HTTP status at all
}

func reason(status int) store.Reason {
	switch {
	case status >= 200 && status < 300:
		return store.ReasonNone
	case status == http.StatusUnauthorized:
		return store.ReasonUnauthorized
	case status == http.StatusForbidden:
		return store.ReasonForbidden
	case status >= 502 && status <= 504:
		return store.ReasonGateway
	case status >= 400 && status < 500:
		return store.ReasonBadRequest
	}
	return store.ReasonInternal
}

// RetryAfter parses a Retry-After header: seconds or an HTTP date (RFC 9110, section
// 10.2.3). A header that is absent, malformed or in the past yields 0. Seconds are
// capped at 68 years.
func RetryAfter(h http.Header, now time.Time) time.Duration {
	v := strings.TrimSpace(h.Get("Retry-After"))
	if v == "" {
		return 0
	}

	// ErrRange is no failure here, because ParseUint returns the largest value with
	// it.
	if secs, err := strconv.ParseUint(v, 10, 31); err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(secs) * time.Second
	}
	if at, err := http.ParseTime(v); err == nil && at.After(now) {
		return at.Sub(now)
	}
	return 0
}
