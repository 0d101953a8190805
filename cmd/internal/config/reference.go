package config

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
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

// maxSecretFileSize limits a referenced file: it holds a token or a password.
const maxSecretFileSize = 64 << 10

// resolver replaces references in text values.
type resolver struct {
	lookup   func(name string) (string, bool)
	readFile func(path string) ([]byte, error)
	replaced func(value string) // called with each replacement, unless nil
}

// resolve replaces ${env:NAME} and ${file:/path} in a text; $${ is an escaped ${. The
// error never contains a replacement. In a template the braces of a replacement are doubled:
// they belong to a secret, not to a field.
func (r *resolver) resolve(text string, template bool) (string, error) {
	var b strings.Builder
	for {
		at := strings.Index(text, "${")
		if at < 0 {
			b.WriteString(text)
			return b.String(), nil
		}
		if at > 0 && text[at-1] == '$' {
			b.WriteString(text[:at-1] + "${")
			text = text[at+2:]
			continue
		}
		b.WriteString(text[:at])
		name, rest, closed := strings.Cut(text[at+2:], "}")
		if !closed {
			return "", errors.New("has a reference without its closing }; write $${ for the characters ${")
		}
		value, err := r.reference(name)
		if err != nil {
			return "", err
		}
		if r.replaced != nil {
			r.replaced(value)
		}
		if template {
			value = strings.NewReplacer("{", "{{", "}", "}}").Replace(value)
		}
		b.WriteString(value)
		text = rest
	}
}

// reference returns the replacement for the inside of ${…}.
func (r *resolver) reference(name string) (string, error) {
	if env, ok := strings.CutPrefix(name, "env:"); ok {
		value, set := r.lookup(env)
		if !set {
			return "", fmt.Errorf("refers to the variable %s, which is not set", env)
		}
		return value, nil
	}

	if path, ok := strings.CutPrefix(name, "file:"); ok {
		data, err := r.readFile(path)
		if err != nil {
			return "", &unreadableFileError{path, fileErrorCause(err)}
		}
		return strings.TrimRight(string(data), "\r\n"), nil
	}

	return "", fmt.Errorf("has ${%s}, which is neither ${env:NAME} nor ${file:/path}; write $${ for the characters ${", name)
}

// unreadableFileError is returned for a referenced file that cannot be read. A retry may
// succeed.
type unreadableFileError struct {
	path string
	err  error
}

func (e *unreadableFileError) Error() string {
	return fmt.Sprintf("refers to the file %s: %v", e.path, e.err)
}

func (e *unreadableFileError) Unwrap() error { return e.err }

// fileErrorCause returns the system's part of a file error, because the caller names the
// path.
func fileErrorCause(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// readSecretFile reads a referenced file.
func readSecretFile(path string) ([]byte, error) {
	return readBounded(path, maxSecretFileSize)
}

// readBounded reads a regular file or pipe of at most limit bytes.
func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // read-only
	return readAll(f, limit)
}

func readAll(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(data)) > limit {
		return nil, fmt.Errorf("larger than %s", Size(limit))
	}
	return data, err
}
