package httpsink

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// newTLS returns the TLS settings. An error about a file is a *sink.FileError.
func newTLS(s *Settings) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if c.RootCAs, err = loadCAs(s.CAFile); err != nil {
		return nil, err
	}
	if s.CertFile == "" {
		return c, nil
	}
	for _, f := range []struct{ key, file string }{{"cert-file", s.CertFile}, {"key-file", s.KeyFile}} {
		if _, err := os.ReadFile(f.file); err != nil {
			return nil, &sink.FileError{Key: f.key, Err: err}
		}
	}
	own, err := tls.LoadX509KeyPair(s.CertFile, s.KeyFile)
	if err != nil {
		return nil, &sink.FileError{Key: "cert-file", Err: fmt.Errorf("%s and key-file %s: %w", s.CertFile, s.KeyFile, err)}
	}
	c.Certificates = []tls.Certificate{own}
	return c, nil
}

// loadCAs reads the trusted authorities. It returns nil, which stands for the
// system's, if file is "".
func loadCAs(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}

	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, &sink.FileError{Key: "ca-file", Err: err}
	}

	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, &sink.FileError{Key: "ca-file", Err: fmt.Errorf("%s contains no PEM certificate", file)}
	}
	return roots, nil
}
