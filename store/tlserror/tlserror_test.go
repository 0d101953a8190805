package tlserror_test

import (
	"testing"

	"github.com/sluicebox/sluicebox/store/tlserror"
)

// The texts are those of crypto/tls and crypto/x509.
func TestExplain(t *testing.T) {
	keys := tlserror.Keys{CA: "ca=FILE", Certificate: "cert=FILE", Name: "name=NAME"}
	for text, want := range map[string]string{
		"dial: connection refused": "dial: connection refused",
		"x509: certificate signed by unknown authority (possibly because of \"x509: ECDSA verification failure\" while trying to verify \"a\")": "x509: certificate signed by unknown authority; add ca=FILE of the CA that issued the certificate of the server",
		"x509: certificate is valid for a, not b":                "x509: certificate is valid for a, not b; connect by a host name that the certificate of the server has, or set name=NAME",
		"x509: certificate has expired or is not yet valid: now": "x509: certificate has expired or is not yet valid: now; renew the certificate of the server, or set the clock of this machine",
		"remote error: tls: protocol version not supported":      "remote error: tls: protocol version not supported; enable TLS 1.2 or 1.3 on the server",
		"remote error: tls: certificate required":                "remote error: tls: certificate required; if the server needs a client certificate, set cert=FILE",
		"x509: negative serial number":                           "x509: negative serial number; add ca=FILE of the CA that issued the certificate of the server",
	} {
		got := tlserror.Explain(text, keys)
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if again := tlserror.Explain(got, keys); again != got {
			t.Errorf("explained again: %q", again)
		}
	}
}
