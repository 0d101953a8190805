package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
)

// What an answer means for a batch and for its rows. A batch is only called rejected or moved if
// the broker did not store it.
func TestVerdicts(t *testing.T) {
	s := &Sink{cfg: DefaultConfig()}
	s.redactor = noSecrets
	refused := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	for _, tt := range []struct {
		err     error
		verdict verdict
		class   sink.Class
	}{
		{kerr.MessageTooLarge, rejected, sink.Rejected},
		{kerr.InvalidRecord, rejected, sink.Rejected},
		{kerr.InvalidTimestamp, rejected, sink.Misconfigured},
		{kerr.UnsupportedForMessageFormat, failed, sink.Misconfigured},
		{kerr.PolicyViolation, rejected, sink.Rejected},
		{kerr.NotLeaderForPartition, moved, sink.Unavailable},
		{kerr.FencedLeaderEpoch, moved, sink.Unavailable},
		{errNoLeader, moved, sink.Unavailable},
		{kerr.UnknownTopicOrPartition, moved, sink.Misconfigured},
		{fmt.Errorf("unable to dial: %w", refused), moved, sink.Unavailable},
		{kerr.RequestTimedOut, unanswered, sink.Unavailable},
		{kerr.NotEnoughReplicasAfterAppend, unanswered, sink.Unavailable},
		{kerr.KafkaStorageError, unanswered, sink.Unavailable},
		{io.EOF, unanswered, sink.Unavailable},
		{context.DeadlineExceeded, unanswered, sink.Unavailable},
		{context.Canceled, unanswered, sink.Unavailable},
		{kerr.NotEnoughReplicas, failed, sink.Unavailable},
		{kerr.ThrottlingQuotaExceeded, failed, sink.Unavailable},
		{kerr.OutOfOrderSequenceNumber, failed, sink.Unavailable},
		{kerr.DuplicateSequenceNumber, failed, sink.Unavailable},
		{kerr.UnknownServerError, failed, sink.Unavailable},
		{kerr.TopicAuthorizationFailed, failed, sink.Misconfigured},
		{kerr.ClusterAuthorizationFailed, failed, sink.Misconfigured},
		{kerr.SaslAuthenticationFailed, failed, sink.Misconfigured},
		{&tls.CertificateVerificationError{Err: errors.New("unknown authority")}, failed, sink.Misconfigured},
	} {
		if got := verdictOf(tt.err); got != tt.verdict {
			t.Errorf("%v: the verdict is %d, want %d", tt.err, got, tt.verdict)
		}
		if out := s.outcomeOf("topic a", withText(tt.err, "a text")); out.Class != tt.class || out.Detail == "" {
			t.Errorf("%v: rows are %s (%q), want %s", tt.err, out.Class, out.Detail, tt.class)
		}
	}
}

// The records that a broker refuses end their lanes, and the others are sent again. If it names
// none, each lane is sent again in a batch of its own.
func TestDivide(t *testing.T) {
	part := kmsg.NewProduceResponseTopicPartition()
	part.ErrorCode = kerr.InvalidRecord.Code
	for _, tt := range []struct {
		bad   []int32 // positions
		again string  // rows of the batches to send
		want  string  // classes
	}{
		{[]int32{3}, "[[0 1 2 5]]", "[unknown unknown unknown rejected not_sent unknown]"},
		{[]int32{0, 3}, "[[2 5]]", "[rejected not_sent unknown rejected not_sent unknown]"},
		{[]int32{0, 1, 2, 5}, "[]", "[rejected not_sent rejected not_sent not_sent rejected]"},
		{nil, "[[0 1] [2 3 4] [5]]", "[unknown unknown unknown unknown unknown unknown]"},
	} {
		s := &Sink{cfg: DefaultConfig()}
		s.redactor = noSecrets
		r := &request{sink: s, msgs: []sink.Message{{Lane: 0}, {Lane: 0}, {Lane: 1}, {Lane: 1}, {Lane: 1}, {Lane: 2}}, out: make([]sink.Outcome, 6)}
		part.ErrorRecords = nil
		for _, at := range tt.bad {
			record := kmsg.NewProduceResponseTopicPartitionErrorRecord()
			record.RelativeOffset = at
			part.ErrorRecords = append(part.ErrorRecords, record)
		}
		b := &batch{rows: []int{0, 1, 2, 3, 4, 5}, answer: partitionAnswer(&part)}
		rows := [][]int{}
		for _, again := range r.take(&topic{name: "a"}, b) {
			rows = append(rows, again.rows)
		}
		classes := []string{}
		for _, out := range r.out {
			classes = append(classes, out.Class.String())
		}
		if got := fmt.Sprint(rows); got != tt.again {
			t.Errorf("bad %v: sent again are %s, want %s", tt.bad, got, tt.again)
		}
		if got := fmt.Sprint(classes); got != tt.want {
			t.Errorf("bad %v: rows are %s, want %s", tt.bad, got, tt.want)
		}
	}
}

func noSecrets() *redact.Redactor { return nil }
