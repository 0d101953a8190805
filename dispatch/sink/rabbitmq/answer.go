package rabbitmq

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/tlsfiles"
	"github.com/sluicebox/sluicebox/store"
)

// sizeLimit returns the limit that a message exceeded, 0 if that is not the reason
// (rabbit_channel.erl, check_msg_size).
func sizeLimit(e *amqp.Error) (limit int) {
	if e == nil || e.Code != amqp.PreconditionFailed {
		return 0
	}
	if _, text, ok := strings.Cut(e.Reason, "larger than configured max size "); ok {
		_, _ = fmt.Sscan(text, &limit) // 0 if the text has changed
	}
	return limit
}

// concernsAll reports whether a channel was closed because of the exchange, and not of a message.
// A user may be denied single routing keys (topic authorisation).
func concernsAll(e *amqp.Error) bool {
	return e.Code == amqp.NotFound || e.Code == amqp.AccessRefused && !strings.Contains(e.Reason, "access to topic")
}

// classify returns the outcome of a message that got no confirmation.
func (s *Sink) classify(err error) sink.Outcome {
	var answer *amqp.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return s.unavailable("no answer within the time-out; the message may still be stored")
	case errors.Is(err, context.Canceled):
		return s.unavailable("request cancelled")
	case !errors.As(err, &answer):
		return s.unavailable("%s", err)
	}
	switch answer.Code {
	case amqp.AccessRefused:
		return s.outcome(sink.Misconfigured, store.ReasonForbidden, "%s; allow write for the user", answer.Reason)
	case amqp.NotFound:
		return s.outcome(sink.Misconfigured, store.ReasonBadRequest, "%s; create the exchange, or correct exchange", answer.Reason)
	case amqp.PreconditionFailed, amqp.ContentTooLarge:
		return s.rejected("%s", answer.Reason)
	case amqp.NotImplemented, amqp.NotAllowed, amqp.CommandInvalid:
		return s.outcome(sink.Misconfigured, store.ReasonBadRequest, "%s (%d)", answer.Reason, answer.Code)
	}
	return s.unavailable("%s (%d)", answer.Reason, answer.Code)
}

// lost returns the outcome of the messages of a lost connection.
func (s *Sink) lost(reason *amqp.Error) sink.Outcome {
	text := "closed"
	if reason != nil {
		text = reason.Reason
	}
	return s.unavailable("connection lost: %s; the message may be stored", text)
}

// unroutable returns the outcome of a message that no queue gets.
func (s *Sink) unroutable(key, reason string) sink.Outcome {
	return s.outcome(sink.Misconfigured, store.ReasonBadRequest,
		"no queue gets the routing key %q of exchange %q (%s); bind one, or set mandatory: false", key, s.exchange, reason)
}

// noConnection returns the outcome of a request without a connection.
func (s *Sink) noConnection(err error) sink.Outcome {
	var authority *tls.CertificateVerificationError
	var answer *amqp.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return s.unavailable("no connection within the time-out")
	case errors.Is(err, context.Canceled):
		return s.unavailable("request cancelled")
	case errors.Is(err, amqp.ErrCredentials):
		return s.outcome(sink.Misconfigured, store.ReasonUnauthorized, "login refused; check the user and the password of url")
	case errors.Is(err, amqp.ErrSASL):
		return s.outcome(sink.Misconfigured, store.ReasonUnauthorized, "broker has no PLAIN login; for EXTERNAL set cert-file and remove the user of url, and enable rabbitmq_auth_mechanism_ssl")
	case errors.As(err, &authority):
		return s.outcome(sink.Misconfigured, store.ReasonBadRequest, "TLS: %s", tlsfiles.Explain(err.Error()))
	case errors.As(err, &answer) && answer.Server && !strings.Contains(answer.Reason, "limit"): // limits of connections pass
		switch answer.Code {
		case amqp.AccessRefused:
			return s.outcome(sink.Misconfigured, store.ReasonUnauthorized, "%s", answer.Reason)
		case amqp.NotAllowed, amqp.InvalidPath, amqp.NotFound:
			return s.outcome(sink.Misconfigured, store.ReasonForbidden, "%s; correct the virtual host in url, or allow it for the user", answer.Reason)
		}
	}
	return s.unavailable("no connection: %s", tlsfiles.Explain(err.Error()))
}

// rejected returns the outcome of a message that can never be sent.
func (s *Sink) rejected(format string, args ...any) sink.Outcome {
	return sink.RejectFirst(1, redact.OneLine("not sent: "+fmt.Sprintf(format, args...))).Outcome
}

func (s *Sink) unavailable(format string, args ...any) sink.Outcome {
	return s.outcome(sink.Unavailable, store.ReasonGateway, format, args...)
}

// outcome returns an outcome whose detail names the broker and holds no secret.
func (s *Sink) outcome(class sink.Class, reason store.Reason, format string, args ...any) sink.Outcome {
	text := "RabbitMQ " + s.where + ": " + fmt.Sprintf(format, args...)
	return sink.Outcome{Class: class, Reason: reason, Detail: s.redactor().OneLine(text)}
}
