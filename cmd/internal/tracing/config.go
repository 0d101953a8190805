package tracing

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// Protocols of OTLP.
const (
	protocolHTTP = "http"
	protocolGRPC = "grpc"
)

// Config is the section tracing. The tags are the keys of the configuration file. An empty value
// leaves it to the variables of OpenTelemetry (OTEL_…).
type Config struct {
	Endpoint    string                 `yaml:"endpoint" doc:"The collector that takes spans by OTLP: http://host:4318, or with protocol: grpc http://host:4317; https:// for TLS. Empty: OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT, else this machine."`
	Protocol    string                 `yaml:"protocol" doc:"How spans are sent. Default: OTEL_EXPORTER_OTLP_PROTOCOL, else http." enum:"http,grpc"`
	Headers     map[string]sink.Secret `yaml:"headers" doc:"Headers of each export, for example an authorization. The values are secrets."`
	CAFile      string                 `yaml:"ca-file" doc:"PEM file of the CA certificates to trust for the collector, instead of the system's."`
	SampleRatio Ratio                  `yaml:"sample-ratio" doc:"The part of the rows without a trace context that is traced, from 0 to 1, for example 0.01. Rows with a context follow its flag. 0: what OTEL_TRACES_SAMPLER says, if it is set."`
}

// Ratio is a part of all, from 0 to 1.
type Ratio float64

// ParseRatio parses a ratio. The error continues a sentence that begins with the text.
func ParseRatio(text string) (Ratio, error) {
	r, err := strconv.ParseFloat(text, 64)
	if err != nil || !(r >= 0 && r <= 1) {
		return 0, errors.New("is no number from 0 to 1 such as 0.01")
	}
	return Ratio(r), nil
}

// String returns what ParseRatio accepts.
func (r Ratio) String() string { return strconv.FormatFloat(float64(r), 'g', -1, 64) }

// Validate reports every invalid value by its key.
func (c *Config) Validate() error {
	var bad store.FieldErrors
	if c.Endpoint != "" {
		u, err := url.Parse(c.Endpoint)
		switch {
		case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
			bad.Add("endpoint", "is no address such as http://127.0.0.1:4318")
		case u.User != nil:
			bad.Add("endpoint", "contains a user or password; put credentials in headers")
		case c.Protocol == protocolGRPC && strings.Trim(u.Path, "/") != "":
			bad.Add("endpoint", "has a path, which gRPC has not; remove it")
		}
	}
	for name := range c.Headers {
		if name == "" || strings.ContainsAny(name, " :\r\n") {
			bad.Add("headers", "has the name %q, which is no header", name)
		}
	}
	return bad.Err()
}

// tls returns the settings of TLS, nil for those of the exporter.
func (c *Config) tls() (*tls.Config, error) {
	if c.CAFile == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(c.CAFile)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", c.CAFile, err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate in PEM form", c.CAFile)
	}
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, nil
}

// headers returns the headers of an export.
func (c *Config) headers() map[string]string {
	all := make(map[string]string, len(c.Headers))
	for name, value := range c.Headers {
		all[name] = string(value)
	}
	return all
}

// FromEnvironment returns an empty configuration if the variables of OpenTelemetry turn tracing on,
// else nil. variable returns the value of a variable.
func FromEnvironment(variable func(string) string) *Config {
	if variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" && variable("OTEL_EXPORTER_OTLP_ENDPOINT") == "" {
		return nil
	}
	if variable("OTEL_TRACES_EXPORTER") == "none" {
		return nil
	}
	return &Config{}
}
