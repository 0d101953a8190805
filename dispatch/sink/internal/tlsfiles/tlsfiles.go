// Package tlsfiles makes the TLS settings of a sink from the PEM files of its configuration.
package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store/tlserror"
)

// Config returns TLS settings that trust the authorities in the file ca, or the system's if it
// is "", and show the certificate in the file cert with the key in the file key, unless cert is
// "". An error is a *sink.FileError.
func Config(ca, cert, key string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if c.RootCAs, err = loadCAs(ca); err != nil {
		return nil, err
	}
	if cert == "" {
		return c, nil
	}
	certPEM, err := readFile("cert-file", cert)
	if err != nil {
		return nil, err
	}
	keyPEM, err := readFile("key-file", key)
	if err != nil {
		return nil, err
	}
	own, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, &sink.FileError{Key: "cert-file", Err: fmt.Errorf("%s and key-file %s: %w", cert, key, err)}
	}
	c.Certificates = []tls.Certificate{own}
	return c, nil
}

// Explain adds the way out to the text of a failed handshake.
func Explain(text string) string {
	return tlserror.Explain(text, tlserror.Keys{CA: "ca-file", Certificate: "cert-file and key-file"})
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
