package config

import (
	"cmp"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/kafka"
	"github.com/sluicebox/sluicebox/dispatch/sink/logfile"
	"github.com/sluicebox/sluicebox/dispatch/sink/webhook"
	"github.com/sluicebox/sluicebox/store"
)

// checkChain refuses chain for a valid sink whose messages cannot carry it, and for one that spreads the
// rows of a lane. There each receiver would miss the rows of the others.
func (k *checker) checkChain(path string, s *Sink, rows []rowsOf) {
	if !s.Chain || !k.hasNoProblem(path+".chain") {
		return
	}
	if !s.carriesChain() {
		k.fail(path+".chain", "is true, but the sink's messages have no header for each row; set chain: false here, or choose another type or format")
	} else if key := s.spreadsLanes(rows); key != "" {
		k.fail(path+".chain", "is true, but %s may send the rows of a message group to several places; let it depend on the group and the kind alone, or set chain: false here", key)
	}
}

// carriesChain reports whether each row has a header of its own.
func (s *Sink) carriesChain() bool {
	switch s.Type {
	case SinkFlowCatalyst, SinkCamunda, SinkStatistics:
		return false
	case SinkWebhook:
		return s.Webhook.Format != webhook.FormatJSONArray && s.Webhook.Format != webhook.FormatBatch
	case SinkLog:
		return cmp.Or(s.Log.Format, logfile.FormatRow) == logfile.FormatRow
	}
	return true
}

// spreadsLanes returns the key by which rows of a lane may have different destinations, "" if none does.
func (s *Sink) spreadsLanes(rows []rowsOf) (key string) {
	var templates [][2]string
	switch s.Type {
	case SinkWebhook:
		templates = [][2]string{{"url", string(s.Webhook.URL)}}
	case SinkKafka:
		templates = [][2]string{{"topic", s.Kafka.Topic}}
	case SinkNATS:
		templates = [][2]string{{"subject", s.NATS.Subject}, {"stream", s.NATS.Stream}}
	case SinkRabbitMQ:
		templates = [][2]string{{"routing-key", s.RabbitMQ.RoutingKey}}
	case SinkRedis:
		templates = [][2]string{{"stream", s.Redis.Stream}}
	}
	byLane := []string{"{{", "", sink.Field{}.String(), ""}
	if !slices.ContainsFunc(rows, func(r rowsOf) bool { return r.hasOwnKinds() }) {
		byLane = append(byLane, sink.Field{Attribute: store.AttributeKind}.String(), "")
	}
	ofLane := strings.NewReplacer(byLane...)
	for _, t := range templates {
		if strings.Contains(ofLane.Replace(t[1]), "{") {
			return t[0]
		}
	}
	switch {
	case s.Type != SinkKafka:
	case s.Kafka.Format == kafka.FormatDebezium:
		if slices.ContainsFunc(rows, func(r rowsOf) bool { return !r.inGroup(s.Kafka.Debezium.EventKey) }) {
			return "debezium.event-key"
		}
	case cmp.Or(s.Kafka.Key, kafka.KeyGroup) != kafka.KeyGroup:
		return "key"
	}
	return ""
}

// hasOwnKinds reports whether rows of a lane may have kinds of their own.
func (r *rowsOf) hasOwnKinds() bool {
	isKind := func(a store.AttributeColumn) bool { return a.Name == store.AttributeKind }
	return slices.ContainsFunc(r.layout.Attributes, isKind) && !r.inGroup(store.AttributeKind)
}

// inGroup reports whether an attribute is a column of the group.
func (r *rowsOf) inGroup(attribute string) bool {
	return slices.ContainsFunc(r.layout.Attributes, func(a store.AttributeColumn) bool {
		return a.Name == attribute && (a.Column == r.layout.Columns.Group || slices.Contains(r.layout.GroupRest, a.Column))
	})
}
