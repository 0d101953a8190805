package httpsink

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/ascii"
	"github.com/sluicebox/sluicebox/store"
)

// Settings are what all HTTP sinks configure. The zero value of a field stands for its
// default.
type Settings struct {
	// Token is sent as bearer token. Empty sends none.
	Token sink.Secret

	// RequestTimeout bounds an attempt from the dial to the last byte of the
	// response. The default is 30 s.
	RequestTimeout time.Duration

	// MaxConnections is the maximum number of idle connections. Set it to at least
	// the number of senders, else some of them dial for each request. The default is
	// 10.
	MaxConnections int

	// MaxRequestBytes is the maximum size of a body. A row that does not fit is rejected
	// without a request. Each sink has its own default.
	MaxRequestBytes int

	// CAFile is a PEM file of authorities to trust instead of the system's.
	CAFile string

	// CertFile and KeyFile are PEM files of the client's certificate, followed by those of
	// its issuers, and of its key. Empty sends none.
	CertFile, KeyFile string

	// ErrorDetail is how much of a failure the detail shows. The default is
	// sink.ErrorDetailBody.
	ErrorDetail sink.ErrorDetail

	// UserAgent is sent with each request, for example "sluicebox/1.2.3".
	UserAgent string
}

// The functions below are no methods, because the Config of a sink embeds Settings.

// WithDefaults returns the settings with the defaults that the README lists.
func WithDefaults(s Settings) Settings {
	s.RequestTimeout = cmp.Or(s.RequestTimeout, 30*time.Second)
	s.MaxConnections = cmp.Or(s.MaxConnections, 10)
	s.UserAgent = cmp.Or(s.UserAgent, "sluicebox")
	return s
}

// CheckSettings reports every invalid value by its configuration key. tokenKey is the key
// of Token. The errors do not show the token.
func CheckSettings(s *Settings, tokenKey string) error {
	var bad store.FieldErrors
	if !ascii.Visible(string(s.Token)) {
		bad.Add(tokenKey, "contains a space, a line break or a character outside ASCII; check for a trailing newline")
	}
	if s.RequestTimeout < 0 {
		bad.Add("request-timeout", "is %s, must be above 0", s.RequestTimeout)
	}
	if s.MaxConnections < 0 {
		bad.Add("max-connections", "is %d, must be at least 1", s.MaxConnections)
	}
	if s.MaxRequestBytes < 0 {
		bad.Add("max-request-bytes", "is %d, must be at least 1", s.MaxRequestBytes)
	}
	bad.AddErr(s.ErrorDetail.Check())
	if s.KeyFile != "" && s.CertFile == "" {
		bad.Add("cert-file", "is not set; key-file needs it")
	}
	if s.CertFile != "" && s.KeyFile == "" {
		bad.Add("key-file", "is not set; cert-file needs it")
	}
	if !ascii.Printable(s.UserAgent) {
		bad.Add("user-agent", "%q contains a character that is invalid in a header", s.UserAgent)
	}
	return bad.Err()
}

// Header returns the headers of every request with this bearer token, "" for none.
func Header(s *Settings, token string) http.Header {
	h := http.Header{"User-Agent": {s.UserAgent}}
	Authorize(h, token)
	return h
}

// Authorize sets a bearer token. With "" a header of the configuration stays.
func Authorize(h http.Header, token string) {
	if token != "" {
		h.Set("Authorization", "Bearer "+token)
	}
}

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
