package config

import (
	"fmt"
	"io"
	"net/url"
	"strings"

	storepg "github.com/sluicebox/sluicebox/store/postgres"
)

// secretPlaceholder replaces a secret in output.
const secretPlaceholder = "xxxxx"

// URL is an address that may contain a password. Formatting, marshalling and logging
// never show the password.
type URL string

// Reveal returns the address with its password. Callers must keep it out of logs and
// errors.
func (u URL) Reveal() string { return string(u) }

// String returns the address without its secrets.
func (u URL) String() string { return Redact(string(u)) }

// Format writes the address without its secrets for every verb.
func (u URL) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, u.String()) }

// MarshalText returns the address without its secrets. JSON, YAML and slog use it.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// Redact replaces the password and secret parameters of a URL with a placeholder. If the
// text is no URL, or its password may be in another part because of an unescaped #, ? or
// /, Redact returns only the scheme.
func Redact(raw string) string {
	if raw == "" {
		return ""
	}
	plain, hosts := storepg.SplitHosts(raw)
	u, err := url.Parse(plain)
	if err == nil && u.Scheme == "sqlite" && u.Host == "" && u.User == nil && u.Fragment == "" {
		redactQuery(u) // a path holds no password
		return u.String()
	}

	if err != nil || u.Scheme == "" || u.Host == "" && u.User == nil && u.Opaque != "" {
		return secretPlaceholder
	}
	if mayExposePassword(u) {
		return u.Scheme + "://" + secretPlaceholder
	}

	if _, has := u.User.Password(); has {
		u.User = url.UserPassword(u.User.Username(), secretPlaceholder)
	}
	redactQuery(u)
	if hosts != "" {
		u.Host = hosts
	}

	return u.String()
}

// mayExposePassword reports whether the password may be in another part of u.
func mayExposePassword(u *url.URL) bool {
	return u.Fragment != "" || strings.Contains(u.Path, "@") || strings.Contains(u.RawQuery, "@") ||
		strings.HasSuffix(u.String(), "#")
}

// redactQuery keeps the order of the parameters.
func redactQuery(u *url.URL) {
	if u.RawQuery == "" {
		return
	}
	parts := strings.Split(u.RawQuery, "&")
	for i, part := range parts {
		name, _, _ := strings.Cut(part, "=")
		plain, err := url.QueryUnescape(name)
		if err != nil || secretParameter(plain) {
			parts[i] = name + "=" + secretPlaceholder
		}
	}
	u.RawQuery = strings.Join(parts, "&")
}

func secretParameter(name string) bool {
	name = strings.ToLower(name)
	// MongoDB's authMechanismProperties may hold a session token.
	for _, word := range []string{"pass", "secret", "token", "key", "mechanismproperties"} {
		if strings.Contains(name, word) {
			return true
		}
	}
	return false
}
