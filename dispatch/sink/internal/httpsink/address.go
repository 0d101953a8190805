package httpsink

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// ParseAddress parses the http or https address under a configuration key. Errors
// start with the key. They never quote the whole address, because it may hold a
// password, and they name tokenKey as the place for credentials.
func ParseAddress(key, raw, tokenKey string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil {
		// The error of url.Parse starts with the address, and its cause may quote
		// more of it.
		inner := errors.Unwrap(err)
		if inner == nil || strings.Contains(raw, "@") {
			return nil, errors.New(key + " is not a URL")
		}
		return nil, fmt.Errorf("%s is not a URL: %w", key, inner)
	}

	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("%s has scheme %q, must be http or https", key, u.Scheme)
	case u.Hostname() == "":
		return nil, errors.New(key + " has no host")
	case u.User != nil:
		return nil, fmt.Errorf("%s contains a user or password; put the token in %s", key, tokenKey)
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
	var errs []error
	if requestTimeout < 0 {
		errs = append(errs, fmt.Errorf("request-timeout is %s, must be above 0", requestTimeout))
	}
	if maxConnections < 0 {
		errs = append(errs, fmt.Errorf("max-connections is %d, must be at least 1", maxConnections))
	}
	if maxRequestBytes < 0 {
		errs = append(errs, fmt.Errorf("max-request-bytes is %d, must be at least 1", maxRequestBytes))
	}
	return errors.Join(errs...)
}
