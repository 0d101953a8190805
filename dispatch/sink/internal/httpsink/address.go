package httpsink

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

// ParseAddress parses the http or https address under a configuration key. An error
// is a *store.FieldError. It never quotes the whole address, because it may hold a
// password, and names tokenKey as the place for credentials.
func ParseAddress(key, raw, tokenKey string) (*url.URL, error) {
	invalid := func(format string, args ...any) (*url.URL, error) {
		return nil, &store.FieldError{Key: key, Text: fmt.Sprintf(format, args...)}
	}
	u, err := url.Parse(raw)
	if err != nil {
		// The error of url.Parse starts with the address, and its cause may quote
		// more of it.
		inner := errors.Unwrap(err)
		if inner == nil || strings.Contains(raw, "@") {
			return invalid("is not a URL")
		}
		return invalid("is not a URL: %s", inner)
	}

	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return invalid("has scheme %q, must be http or https", u.Scheme)
	case u.Hostname() == "":
		return invalid("has no host")
	case u.User != nil:
		return invalid("contains a user or password; put the token in %s", tokenKey)
	}
	return u, nil
}

// VisibleASCII reports whether s has visible ASCII characters only, as a token in a
// header must.
func VisibleASCII(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return true
}

// CheckBounds reports each negative bound of a request by its configuration key. Zero
// stands for the default.
func CheckBounds(requestTimeout time.Duration, maxConnections, maxRequestBytes int) error {
	var bad store.FieldErrors
	if requestTimeout < 0 {
		bad.Add("request-timeout", "is %s, must be above 0", requestTimeout)
	}
	if maxConnections < 0 {
		bad.Add("max-connections", "is %d, must be at least 1", maxConnections)
	}
	if maxRequestBytes < 0 {
		bad.Add("max-request-bytes", "is %d, must be at least 1", maxRequestBytes)
	}
	return bad.Err()
}
