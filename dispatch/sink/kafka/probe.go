package kafka

import (
	"context"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
	"github.com/sluicebox/sluicebox/store"
)

// Probe implements sink.Prober. It reads the topic and its settings, and sends no record. A
// topic with fields of the row is not known, so only the cluster is probed.
func (s *Sink) Probe(ctx context.Context, _ string) sink.Outcome {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.RequestTimeout)
	defer cancel()
	p, err := s.take()
	if err != nil {
		return s.outcomeOf("connect", err)
	}
	defer s.release(ctx, p)
	facts, err := p.cluster(ctx)
	if err != nil {
		return s.outcomeOf("connect to "+strings.Join(s.cfg.Brokers, ", "), err)
	}
	if !s.topicOf.Fixed() {
		return sink.Outcome{Class: sink.Delivered, Detail: redact.OneLine(facts + "; no topic was checked, because each row names its topic")}
	}
	t, err := p.load(ctx, s.cfg.Topic)
	if err != nil {
		return s.outcomeOf("topic "+s.cfg.Topic, err)
	}
	out := s.judgeTopic(t)
	out.Detail = redact.OneLine(facts + "; topic " + t.name + ": " + out.Detail)
	return out
}

// cluster returns the number of brokers and their version.
func (p *producer) cluster(ctx context.Context) (facts string, err error) {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{}
	resp, err := req.RequestWith(ctx, p.client)
	if err != nil {
		return "", err
	}
	brokers := "brokers"
	if len(resp.Brokers) == 1 {
		brokers = "broker"
	}
	facts = fmt.Sprintf("%d %s", len(resp.Brokers), brokers)
	versions, err := kmsg.NewPtrApiVersionsRequest().RequestWith(ctx, p.client)
	if err != nil {
		return "", err
	}
	return facts + " of Kafka " + kversion.FromApiVersionsResponse(versions).VersionGuess(), nil
}

// Operations of a grant, by the bits of the protocol.
const (
	operationWrite = 4

	operationsUnknown = -1 << 31 // the cluster has no authorizer, or is too old to say
)

// judgeTopic says whether rows can be written to a topic.
func (s *Sink) judgeTopic(t *topic) sink.Outcome {
	facts := fmt.Sprintf("%d partitions, %d replicas, %d in sync", len(t.leaders), t.replicas, t.inSync)
	out := sink.Outcome{Class: sink.Delivered, Reason: store.ReasonBadRequest}
	var doubts []string
	for _, leader := range t.leaders {
		if leader < 0 {
			out.Class = sink.Unavailable
			doubts = append(doubts, "a partition has no leader")
			break
		}
	}
	switch {
	case min(t.minInSync, t.replicas) > t.inSync:
		out.Class = sink.Unavailable
		doubts = append(doubts, fmt.Sprintf("min.insync.replicas is %d, so that writes are refused until more replicas are in sync", t.minInSync))
	case t.minInSync > t.replicas: // Kafka 4.1 accepts the writes, measured
		out.Class = sink.Refused
		doubts = append(doubts, fmt.Sprintf("min.insync.replicas is %d, so that older brokers refuse every write; lower it or add replicas", t.minInSync))
	case t.limitsError != nil:
		doubts = append(doubts, "its settings cannot be read ("+s.text(t.limitsError)+"); grant DescribeConfigs, or set max-request-bytes")
	case t.minInSync == 1 && t.replicas > 1:
		facts += ", min.insync.replicas 1: a broker that fails may lose rows that were delivered"
	default:
		facts += fmt.Sprintf(", min.insync.replicas %d", t.minInSync)
	}
	if t.operations != operationsUnknown && t.operations&(1<<operationWrite) == 0 {
		out.Class, out.Reason = sink.Misconfigured, store.ReasonForbidden
		doubts = append(doubts, "the relay may not write to it; grant Write")
	}
	facts += fmt.Sprintf("; records up to %d bytes", s.maxMessage(t))
	if out.Class == sink.Delivered {
		out.Reason = store.ReasonNone
	}
	if out.Class == sink.Delivered || out.Class == sink.Refused {
		doubts = append(doubts, "no record was sent")
	}
	out.Detail = strings.Join(append([]string{facts}, doubts...), "; ")
	return out
}
