package sink

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// Classify says what an HTTP status means. For a 2xx the sink has yet to check
// that the body is its API's; a sink that takes 409 for "I have it already"
// says so before it asks here.
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
	return Misconfigured // 1xx as a final answer, 3xx, or no HTTP status at all
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

// RetryAfter reads a Retry-After header: seconds or an HTTP date (RFC 9110,
// section 10.2.3). What is absent, malformed or past is 0; seconds beyond 68
// years are 68 years.
func RetryAfter(h http.Header, now time.Time) time.Duration {
	v := strings.TrimSpace(h.Get("Retry-After"))
	if v == "" {
		return 0
	}
	// Out of range it returns the largest value, which is what is meant.
	if secs, err := strconv.ParseUint(v, 10, 31); err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(secs) * time.Second
	}
	if at, err := http.ParseTime(v); err == nil && at.After(now) {
		return at.Sub(now)
	}
	return 0
}
