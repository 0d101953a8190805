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
	cert, err := readFile("cert-file", s.CertFile)
	if err != nil {
		return nil, err
	}
	key, err := readFile("key-file", s.KeyFile)
	if err != nil {
		return nil, err
	}
	own, err := tls.X509KeyPair(cert, key)
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

	pem, err := readFile("ca-file", file)
	if err != nil {
		return nil, err
	}

	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, &sink.FileError{Key: "ca-file", Err: fmt.Errorf("%s contains no PEM certificate", file)}
	}
	return roots, nil
}

// readFile reads a file that a configuration key names. An error is a *sink.FileError.
func readFile(key, file string) ([]byte, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, &sink.FileError{Key: key, Err: err}
	}
	return content, nil
}
