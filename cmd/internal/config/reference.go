package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// maxSecretFileSize limits a referenced file: it holds a token or a password.
const maxSecretFileSize = 64 << 10

// resolver replaces references in text values.
type resolver struct {
	lookup   func(name string) (string, bool)
	readFile func(path string) ([]byte, error)
}

// resolve replaces ${env:NAME} and ${file:/path} in a text; $${ is an escaped ${. The
// error never contains a replacement.
func (r *resolver) resolve(text string) (string, error) {
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
