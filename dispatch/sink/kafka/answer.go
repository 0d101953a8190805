package kafka

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/tlsfiles"
	"github.com/sluicebox/sluicebox/store"
)

// verdict says how an attempt to store a batch ended.
type verdict uint8

const (
	// stored: every replica in sync has the batch.
	stored verdict = iota + 1

	// moved: another broker leads the partition. It may have the batch, because a leader that
	// loses its partition while replicas fetch the batch answers so too. Sending the same bytes
	// stores it once.
	moved

	// unanswered: the batch may be stored. Sending the same bytes again stores it once.
	unanswered

	// rejected: the batch is not stored, because the broker does not accept a record of it.
	rejected

	// failed: the batch is not acknowledged, and another attempt at once would not help.
	failed
)

// answer is the answer to an attempt.
type answer struct {
	verdict verdict
	err     error

	offset int64         // of the first record, if the batch is stored
	bad    map[int]error // why the broker rejected records, by position in the batch
}

var (
	errNoLeader = errors.New("the partition has no leader")
	errSkipped  = errors.New("the broker did not answer for the partition")
)

// verdictOf returns how an attempt ended with an error of the broker.
func verdictOf(err error) verdict {
	switch {
	case err == nil:
		return stored
	case is(err, errNoLeader, kerr.NotLeaderForPartition, kerr.LeaderNotAvailable, kerr.ReplicaNotAvailable, kerr.FencedLeaderEpoch,
		kerr.UnknownLeaderEpoch, kerr.UnknownTopicOrPartition, kerr.UnknownTopicID, kerr.InconsistentTopicID):
		return moved
	case is(err, kerr.RequestTimedOut, kerr.NotEnoughReplicasAfterAppend, kerr.NetworkException, kerr.KafkaStorageError):
		return unanswered
	case is(err, kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTimestamp, kerr.PolicyViolation, kerr.CorruptMessage):
		return rejected
	case errors.As(err, new(*kerr.Error)):
		return failed
	}
	return requestVerdict(err)
}

// requestVerdict returns how an attempt without an answer ended.
func requestVerdict(err error) verdict {
	dial := (*net.OpError)(nil)
	switch {
	case isMisconfigured(err):
		return failed
	case errors.As(err, &dial) && dial.Op == "dial":
		return moved
	}
	return unanswered
}

// is reports whether err is one of these.
func is(err error, these ...error) bool {
	for _, e := range these {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// isDenied reports whether the credentials lack a permission.
func isDenied(err error) bool {
	return is(err, kerr.TopicAuthorizationFailed, kerr.ClusterAuthorizationFailed, kerr.TransactionalIDAuthorizationFailed)
}

// isUnauthenticated reports whether the credentials are wrong.
func isUnauthenticated(err error) bool {
	return is(err, kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism, kerr.IllegalSaslState) || isTokenError(err)
}

// isMisconfigured reports whether the operator must act, not only wait.
func isMisconfigured(err error) bool {
	return isDenied(err) || isUnauthenticated(err) || isUntrusted(err) ||
		is(err, kerr.UnknownTopicOrPartition, kerr.UnknownTopicID, kerr.InvalidTopicException, kerr.UnsupportedVersion,
			kerr.UnsupportedForMessageFormat) // of the topic
}

// outcomeOf returns the outcome of rows that were not stored.
func (s *Sink) outcomeOf(doing string, err error) sink.Outcome {
	out := sink.Outcome{Class: sink.Unavailable, Reason: store.ReasonGateway}
	switch {
	case is(err, kerr.InvalidTimestamp) && !s.cfg.Debezium.EventTimestamp: // it is the clock of this host
		out.Class, out.Reason = sink.Misconfigured, store.ReasonBadRequest
	case verdictOf(err) == rejected:
		out.Class, out.Reason = sink.Rejected, store.ReasonBadRequest
	case isDenied(err):
		out.Class, out.Reason = sink.Misconfigured, store.ReasonForbidden
	case isUnauthenticated(err):
		out.Class, out.Reason = sink.Misconfigured, store.ReasonUnauthorized
	case isMisconfigured(err):
		out.Class, out.Reason = sink.Misconfigured, store.ReasonBadRequest
	}
	text := tlsfiles.Explain(s.text(err))
	if remedy := remedyOf(err); remedy != "" {
		text = strings.TrimSuffix(text, ".") + "; " + remedy
	}
	out.Detail = s.redactor().OneLine(doing + ": " + text)
	return out
}

// remedyOf returns what the operator may do, to stand behind the text of an error.
func remedyOf(err error) string {
	switch {
	case is(err, kerr.UnknownTopicOrPartition, kerr.UnknownTopicID):
		return "create the topic, or correct topic"
	case is(err, kerr.UnsupportedSaslMechanism):
		return "correct sasl.mechanism"
	case is(err, kerr.IllegalSaslState):
		return "this address wants no SASL: remove sasl, or name the address that wants it"
	}
	return ""
}

// text returns the text of an error. A code of the protocol has its name before it.
func (s *Sink) text(err error) string {
	code := (*kerr.Error)(nil)
	switch {
	case errors.As(err, &code) && (s.cfg.ErrorDetail == sink.ErrorDetailStatus || err == error(code)):
		if code.Description == "" || s.cfg.ErrorDetail == sink.ErrorDetailStatus {
			return code.Message
		}
		return fmt.Sprintf("%s: %s", code.Message, code.Description)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("no answer within request-timeout (%s)", s.cfg.RequestTimeout)
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, kgo.ErrClientClosed):
		return "the sink is closed"
	}
	return err.Error()
}
