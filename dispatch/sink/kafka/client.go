package kafka

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	saslaws "github.com/twmb/franz-go/pkg/sasl/aws"
	sasloauth "github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/oauth"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/tlsfiles"
	"github.com/sluicebox/sluicebox/store"
)

// Mechanism is how the relay authenticates.
type Mechanism string

// Mechanisms.
const (
	MechanismPlain       Mechanism = "plain"
	MechanismSCRAM256    Mechanism = "scram-sha-256"
	MechanismSCRAM512    Mechanism = "scram-sha-512"
	MechanismOAuthBearer Mechanism = "oauthbearer"
	MechanismAWS         Mechanism = "aws-msk-iam"
)

// SASL are the credentials.
type SASL struct {
	Mechanism Mechanism   `yaml:"mechanism" doc:"How the relay authenticates. Empty: it does not. oauthbearer uses token or oauth of the sink. aws-msk-iam takes an access key as user and password." enum:"plain,scram-sha-256,scram-sha-512,oauthbearer,aws-msk-iam" spellings:"PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER,AWS_MSK_IAM"`
	User      string      `yaml:"user" doc:"The user, or the id of an access key of AWS."`
	Password  sink.Secret `yaml:"password" doc:"The password, or the secret of an access key of AWS. Prefer a reference: ${file:/run/secrets/kafka} or ${env:NAME}."`
	Session   sink.Secret `yaml:"session-token" doc:"The session token of temporary credentials of AWS."`
}

// usesPassword reports whether the mechanism needs user and password.
func (m Mechanism) usesPassword() bool { return m != "" && m != MechanismOAuthBearer }

// checkSASL reports credentials that are missing or without effect.
func (c *Config) checkSASL(bad *store.FieldErrors) {
	s := &c.SASL
	switch s.Mechanism {
	case "", MechanismPlain, MechanismSCRAM256, MechanismSCRAM512, MechanismOAuthBearer, MechanismAWS:
	default:
		bad.Add("sasl.mechanism", "is %q, must be %s, %s, %s, %s or %s", string(s.Mechanism),
			MechanismPlain, MechanismSCRAM256, MechanismSCRAM512, MechanismOAuthBearer, MechanismAWS)
		return
	}
	for _, f := range []struct {
		key   string
		given bool
	}{{"sasl.user", s.User != ""}, {"sasl.password", s.Password != ""}} {
		switch needed := s.Mechanism.usesPassword(); {
		case needed && !f.given:
			bad.Add(f.key, "is not set; sasl.mechanism: %s needs it", s.Mechanism)
		case !needed && f.given && s.Mechanism == "":
			bad.Add(f.key, "has no effect without sasl.mechanism; set it, for example to %s", MechanismSCRAM512)
		case !needed && f.given:
			bad.Add(f.key, "has no effect with sasl.mechanism: %s; remove it", s.Mechanism)
		}
	}
	if s.Session != "" && s.Mechanism != MechanismAWS {
		bad.Add("sasl.session-token", "is only for sasl.mechanism: %s", MechanismAWS)
	}
	c.checkBearer(bad)
}

// checkBearer checks the sources of a bearer token.
func (c *Config) checkBearer(bad *store.FieldErrors) {
	bearer := c.SASL.Mechanism == MechanismOAuthBearer
	switch {
	case bearer && c.Token == "" && !c.OAuth.Enabled():
		bad.Add("oauth", "is not set; sasl.mechanism: %s needs oauth with a token-url, or a token", MechanismOAuthBearer)
	case !bearer && c.Token != "":
		bad.Add("token", "is only for sasl.mechanism: %s", MechanismOAuthBearer)
	case !bearer && c.OAuth.Enabled():
		bad.Add("oauth", "is only for sasl.mechanism: %s", MechanismOAuthBearer)
	}
	bad.AddErr(c.OAuth.Check(c.Token, "token"))
	if c.OAuth.Enabled() && c.OAuth.TokenURL == "" {
		bad.Add("oauth.token-url", "is not set; set it to the address of the token endpoint")
	}
}

// Bounds of a client. A request to the cluster that fails is repeated on other brokers, because
// some of them may be down.
const (
	dialTimeout  = 5 * time.Second
	retryBackoff = 20 * time.Millisecond
)

// ClientOptions returns the options of a client that connects as a sink with this configuration does,
// which must be valid. See Clean for its errors.
func ClientOptions(c Config) ([]kgo.Opt, error) {
	s, err := New(c)
	if err != nil {
		return nil, err
	}
	return s.options(), nil
}

// Clean returns an error of a client of this configuration, which must be valid, without secrets in its
// text: a server may quote the login that it refuses. It returns nil for nil.
func Clean(c Config, err error) error {
	s, invalid := New(c)
	if invalid != nil {
		return invalid
	}
	return s.redactor().Error(err)
}

// setOptions sets the options of the clients.
func (s *Sink) setOptions(c *Config) error {
	opts := []kgo.Opt{
		kgo.SeedBrokers(c.Brokers...),
		kgo.ClientID(c.Client),
		kgo.RequiredAcks(kgo.AllISRAcks()), // the client sets it in every request
		kgo.DialTimeout(min(dialTimeout, c.RequestTimeout)),
		kgo.RequestRetries(len(c.Brokers) + 1),
		kgo.RetryBackoffFn(func(int) time.Duration { return retryBackoff }),
		kgo.MetadataMaxAge(topicAge),
		kgo.DisableClientMetrics(), // the relay has its own
	}
	if c.TLS || c.CAFile != "" || c.CertFile != "" {
		files, err := tlsfiles.Config(c.CAFile, c.CertFile, c.KeyFile)
		if err != nil {
			return err
		}
		opts = append(opts, kgo.DialTLSConfig(files))
	}
	if m := s.mechanism(c); m != nil {
		opts = append(opts, kgo.SASL(m))
	}
	s.options = func() []kgo.Opt { return opts }
	return nil
}

// mechanism returns the credentials, nil for none.
func (s *Sink) mechanism(c *Config) sasl.Mechanism {
	switch user, password := c.SASL.User, string(c.SASL.Password); c.SASL.Mechanism {
	case MechanismPlain:
		return plain.Auth{User: user, Pass: password}.AsMechanism()
	case MechanismSCRAM256:
		return scram.Auth{User: user, Pass: password}.AsSha256Mechanism()
	case MechanismSCRAM512:
		return scram.Auth{User: user, Pass: password}.AsSha512Mechanism()
	case MechanismAWS:
		return saslaws.Auth{AccessKey: user, SecretKey: password, SessionToken: string(c.SASL.Session)}.AsManagedStreamingIAMMechanism()
	case MechanismOAuthBearer:
		token := string(c.Token)
		return sasloauth.Oauth(func(ctx context.Context) (sasloauth.Auth, error) {
			if s.tokens == nil {
				return sasloauth.Auth{Token: token}, nil
			}
			fetched, err := s.tokens.Token(ctx)
			return sasloauth.Auth{Token: fetched}, err
		})
	}
	return nil
}

// isTokenError reports whether there is no bearer token because of the configuration.
func isTokenError(err error) bool {
	failed := (*oauth.Error)(nil)
	return errors.As(err, &failed) && failed.Class == sink.Misconfigured
}

// isUntrusted reports whether TLS failed because of certificates, or because one side does not
// use it.
func isUntrusted(err error) bool {
	return errors.As(err, new(*tls.CertificateVerificationError)) || errors.As(err, new(x509.UnknownAuthorityError)) ||
		errors.As(err, new(tls.RecordHeaderError)) || errors.As(err, new(tls.AlertError))
}
