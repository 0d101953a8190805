// Package tlserror names the way out of a failed TLS handshake. It goes by the text of the error,
// because most drivers do not wrap the errors of crypto/tls.
package tlserror

import (
	"fmt"
	"strings"
)

// Keys are the settings of a connection, as its user writes them.
type Keys struct {
	// CA names the file of the authority, Certificate those of the client's certificate.
	CA, Certificate string

	// Name, unless it is "", sets the expected name of the server.
	Name string
}

// Advice returns the way out, "" if the text is not about a handshake.
func Advice(text string, keys Keys) string {
	has := func(parts ...string) bool {
		for _, part := range parts {
			if strings.Contains(text, part) {
				return true
			}
		}
		return false
	}
	switch {
	case has("x509: certificate has expired"):
		return "renew the certificate of the server, or set the clock of this machine"
	case has("x509: cannot validate certificate for", "x509: certificate is valid for", "x509: certificate is not valid for"):
		advice := "connect by a host name that the certificate of the server has"
		if keys.Name != "" {
			advice += ", or set " + keys.Name
		}
		return advice
	case has("x509:"):
		return "add " + keys.CA + " of the CA that issued the certificate of the server"
	case has("tls: protocol version", "tls: server selected unsupported protocol version"):
		return "enable TLS 1.2 or 1.3 on the server"
	case has("remote error: tls: handshake failure", "remote error: tls: certificate required", "remote error: tls: bad certificate", "remote error: tls: unknown certificate"):
		return "if the server needs a client certificate, set " + keys.Certificate
	}
	return ""
}

// Wrap returns the error with its way out, and other errors unchanged.
func Wrap(err error, keys Keys) error {
	advice := Advice(err.Error(), keys)
	if advice == "" || strings.Contains(err.Error(), advice) {
		return err
	}
	return fmt.Errorf("%w; %s", err, advice)
}

// Explain returns the text with its way out.
func Explain(text string, keys Keys) string {
	if cause, rest, found := strings.Cut(text, " (possibly because of "); found { // it names no other way out
		if _, after, closed := strings.Cut(rest, ")"); closed {
			text = cause + after
		}
	}
	advice := Advice(text, keys)
	if advice == "" || strings.Contains(text, advice) {
		return text
	}
	return text + "; " + advice
}
