package nats

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/tlsfiles"
	"github.com/sluicebox/sluicebox/store"
)

// Error codes of JetStream (server, errors.json).
const (
	codeStreamNotMatch   jetstream.ErrorCode = 10060 // another stream has the subject
	codeMessageTooLarge  jetstream.ErrorCode = 10054 // max_msg_size of the stream
	codeHeaderTooLarge   jetstream.ErrorCode = 10097
	codeAccountFull      jetstream.ErrorCode = 10002 // its storage or memory; the code is 400
	codeStoreFailed      jetstream.ErrorCode = 10077 // full, or the disk fails
	codeStreamSealed     jetstream.ErrorCode = 10109
	codeMessageInProcess jetstream.ErrorCode = 10158 // another attempt is being stored
	codeStreamOffline    jetstream.ErrorCode = 10118
	codeBatchDisabled    jetstream.ErrorCode = 10174 // allow_atomic is not set
	codeBatchIncomplete  jetstream.ErrorCode = 10176
	codeBatchHeader      jetstream.ErrorCode = 10177
	codeBatchTooLarge    jetstream.ErrorCode = 10199
	codeBatchDuplicate   jetstream.ErrorCode = 10201 // the stream has one of its messages
)

// storeFailedTooLarge is how the text of codeStoreFailed begins if the message is the reason.
const storeFailedTooLarge = "message to"

// classify returns the outcome of a message that got no acknowledgement.
func (s *Sink) classify(ctx context.Context, conn *session, subject string, err error) sink.Outcome {
	var refused *jetstream.APIError
	var version *versionError
	switch {
	case errors.As(err, &refused):
		class, reason, hint := classOf(refused)
		return s.outcome(class, reason, "%s (%d)%s", refused.Description, refused.ErrorCode, hint)
	case errors.As(err, &version):
		return s.outcome(sink.Misconfigured, store.ReasonBadRequest, "%s", err)
	case errors.Is(err, nats.ErrNoResponders):
		return s.noStream(ctx, conn, subject)
	case errors.Is(err, errDenied):
		return s.outcome(sink.Misconfigured, store.ReasonForbidden, "user may not publish to %s; allow it", subject)
	case errors.Is(err, errInbox):
		return s.outcome(sink.Misconfigured, store.ReasonForbidden, "%s", err)
	case errors.Is(err, jetstream.ErrInvalidJSAck):
		return s.outcome(sink.Misconfigured, store.ReasonBadRequest, "subject %s is answered by a subscriber that is no stream; set stream, and check the subject", subject)
	case errors.Is(err, nats.ErrMaxPayload):
		return s.rejected("message exceeds max_payload of the server (%d)", conn.nc.MaxPayload())
	case errors.Is(err, nats.ErrBadSubject), errors.Is(err, jetstream.ErrInvalidSubject):
		return s.rejected("subject %q is invalid", subject)
	case errors.Is(err, context.DeadlineExceeded):
		return s.outcome(sink.Unavailable, store.ReasonGateway, "no answer within the time-out; the message may still be stored")
	case errors.Is(err, context.Canceled):
		return s.outcome(sink.Unavailable, store.ReasonGateway, "request cancelled")
	case conn.nc.IsClosed() && conn.nc.LastError() != nil:
		return s.noConnection(conn.nc.LastError())
	case errors.Is(err, nats.ErrReconnectBufExceeded):
		err = errors.New("not connected")
		if last := conn.nc.LastError(); last != nil {
			err = fmt.Errorf("not connected: %w", last)
		}
	}
	return s.outcome(sink.Unavailable, store.ReasonGateway, "%s", err)
}

// isTooLarge reports whether a message can never be stored because of its size.
func isTooLarge(err error) bool {
	var refused *jetstream.APIError
	if !errors.As(err, &refused) {
		return errors.Is(err, nats.ErrMaxPayload)
	}
	switch refused.ErrorCode {
	case codeMessageTooLarge, codeHeaderTooLarge:
		return true
	case codeStoreFailed:
		return strings.HasPrefix(refused.Description, storeFailedTooLarge)
	}
	return false
}

// classOf returns the class of an error that a stream answered, and what to do.
func classOf(e *jetstream.APIError) (class sink.Class, reason store.Reason, hint string) {
	if isTooLarge(e) || e.ErrorCode == codeBatchTooLarge {
		return sink.Rejected, store.ReasonBadRequest, ""
	}
	switch e.ErrorCode {
	case codeMessageInProcess, codeStreamOffline, codeBatchIncomplete, codeAccountFull:
		return sink.Unavailable, store.ReasonGateway, ""
	case codeStreamNotMatch:
		return sink.Misconfigured, store.ReasonBadRequest, "; correct stream, or the subjects of the streams"
	case codeBatchDisabled:
		return sink.Misconfigured, store.ReasonBadRequest, "; set allow_atomic in the stream, or batch: none"
	case codeStreamSealed, codeBatchHeader, jetstream.JSErrCodeJetStreamNotEnabled, jetstream.JSErrCodeJetStreamNotEnabledForAccount:
		return sink.Misconfigured, store.ReasonBadRequest, ""
	}
	if e.Code == http.StatusInternalServerError {
		return sink.Refused, store.ReasonInternal, ""
	}
	class, reason = sink.Classify(e.Code)
	if class == sink.Rejected || class == sink.Delivered {
		class = sink.Refused // an error that may not be about the message
	}
	return class, reason, ""
}

// noStream returns the outcome of a message that nobody took: a stream without a leader is
// unavailable, and a subject without a stream is a mistake.
func (s *Sink) noStream(ctx context.Context, conn *session, subject string) sink.Outcome {
	var name string
	err := conn.ask(ctx, "$JS.API.STREAM.NAMES", func(ctx context.Context) (err error) {
		name, err = conn.js.StreamNameBySubject(ctx, subject)
		return err
	})
	switch {
	case err == nil:
		return s.outcome(sink.Unavailable, store.ReasonGateway, "stream %s does not answer", name)
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return s.outcome(sink.Misconfigured, store.ReasonBadRequest, "no stream has the subject %s; create one, or correct subject", subject)
	case errors.Is(err, nats.ErrNoResponders) && !s.answered.Load():
		return s.outcome(sink.Misconfigured, store.ReasonBadRequest, "server has no JetStream for this account; enable it")
	case errors.Is(err, nats.ErrNoResponders): // it had, for example before the disk was full
		return s.outcome(sink.Unavailable, store.ReasonGateway, "JetStream is gone; see the log of the server")
	}
	return s.outcome(sink.Unavailable, store.ReasonGateway, "no stream answers for the subject %s", subject)
}

// noConnection returns the outcome of a request without a connection.
func (s *Sink) noConnection(err error) sink.Outcome {
	var authority *tls.CertificateVerificationError
	switch {
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked),
		errors.Is(err, nats.ErrAccountAuthExpired), strings.Contains(strings.ToLower(err.Error()), "authorization violation"):
		return s.outcome(sink.Misconfigured, store.ReasonUnauthorized, "authorization violation; check the credentials")
	case errors.Is(err, nats.ErrSecureConnRequired), errors.Is(err, nats.ErrSecureConnWanted), errors.As(err, &authority):
		return s.outcome(sink.Misconfigured, store.ReasonBadRequest, "TLS: %s", tlsfiles.Explain(err.Error()))
	case errors.Is(err, context.DeadlineExceeded):
		return s.outcome(sink.Unavailable, store.ReasonGateway, "no connection within the time-out")
	case errors.Is(err, context.Canceled):
		return s.outcome(sink.Unavailable, store.ReasonGateway, "request cancelled")
	}
	return s.outcome(sink.Unavailable, store.ReasonGateway, "no connection: %s", tlsfiles.Explain(err.Error()))
}

// outcome returns an outcome whose detail names the servers and holds no secret.
func (s *Sink) outcome(class sink.Class, reason store.Reason, format string, args ...any) sink.Outcome {
	text := "NATS " + s.where + ": " + fmt.Sprintf(format, args...)
	return sink.Outcome{Class: class, Reason: reason, Detail: s.redactor().OneLine(text)}
}
