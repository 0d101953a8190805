// Package topic checks the topic between capture and dispatch, for both of its sides.
package topic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/sluicebox/sluicebox/store"
)

// Spec is what a feeder or a shard needs of a topic.
type Spec struct {
	Name       string
	Partitions int
	// RecordBytes is the largest record that a feeder appends, 0 for a shard.
	RecordBytes int
}

// BatchBytes is what a batch of one record has beside its value: 61 bytes of header, and some for the
// lengths.
const BatchBytes = 1 << 10

// Description is the state of a topic.
type Description struct {
	ID kadm.TopicID
	// Findings are all settings that lose records or weaken the topic: the faults, then the
	// advice.
	Findings []store.Finding
}

// Describe reads a topic and its settings. The error is a *store.SetupError if the topic has too few
// partitions. Partitions that were added later stay empty, because a feeder appends to the first ones only.
// A client without the right to read the settings gets advice in their place.
func Describe(ctx context.Context, admin *kadm.Client, spec Spec) (d Description, err error) {
	topics, err := admin.ListTopics(ctx, spec.Name)
	if err != nil {
		return d, fmt.Errorf("describe topic %s: %w", spec.Name, err)
	}
	topic := topics[spec.Name]
	if errors.Is(topic.Err, kerr.UnknownTopicOrPartition) {
		return d, fmt.Errorf("describe topic %s: %w; create it: %s", spec.Name, topic.Err, createCommand(spec))
	}
	if topic.Err != nil {
		return d, fmt.Errorf("describe topic %s: %w", spec.Name, topic.Err)
	}
	n := len(topic.Partitions)
	if n < spec.Partitions {
		return d, Resized(spec.Name, n, spec.Partitions)
	}
	d.ID = topic.ID
	if n > spec.Partitions {
		defer func() { d.Findings = append(d.Findings, unused(spec, n)) }()
	}
	settings, err := readSettings(ctx, admin, spec.Name)
	switch {
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed):
		d.Findings = []store.Finding{{
			Grade: store.GradeAdvice, Subject: "topic " + spec.Name, Text: "its settings cannot be read, and are not checked: " + err.Error(),
			Remedy: fmt.Sprintf("kafka-acls.sh --bootstrap-server … --add --allow-principal User:… --operation DescribeConfigs --topic %s", spec.Name),
		}}
		return d, nil
	case err != nil:
		return d, fmt.Errorf("describe settings of topic %s: %w", spec.Name, err)
	}
	d.Findings = check(spec, replicas(topic.Partitions), settings)
	return d, nil
}

// maxReplicas is the number of replicas of a new topic. One broker may be down, and a record still has two.
const maxReplicas = 3

// Create creates a topic with settings that Describe accepts. It reports false if the topic exists.
func Create(ctx context.Context, admin *kadm.Client, spec Spec) (created bool, err error) {
	brokers, err := admin.ListBrokers(ctx)
	if err != nil {
		return false, fmt.Errorf("create topic %s: %w", spec.Name, err)
	}
	replicas := min(maxReplicas, len(brokers))
	settings := map[string]*string{
		"unclean.leader.election.enable": kadm.StringPtr("false"),
		"min.insync.replicas":            kadm.StringPtr(strconv.Itoa(min(2, replicas))),
		"cleanup.policy":                 kadm.StringPtr("delete"),
		"retention.ms":                   kadm.StringPtr(strconv.FormatInt(newRetention.Milliseconds(), 10)),
		"max.message.bytes":              kadm.StringPtr(strconv.Itoa(max(defaultMessageBytes, spec.RecordBytes+BatchBytes))),
	}
	answer, err := admin.CreateTopic(ctx, int32(spec.Partitions), int16(replicas), settings, spec.Name) //nolint:gosec // both are small
	err = cmp.Or(err, answer.Err)
	switch {
	case errors.Is(err, kerr.TopicAlreadyExists):
		return false, nil
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed):
		return false, &store.SetupError{Problem: fmt.Sprintf("create topic %s: %s", spec.Name, err), Remedy: "as an administrator: " + createCommand(spec)}
	case err != nil:
		return false, fmt.Errorf("create topic %s: %w", spec.Name, err)
	}
	return true, nil
}

// Diagnose returns all findings about a topic. If there is no fault, the first says that the topic is usable.
func Diagnose(ctx context.Context, admin *kadm.Client, spec Spec) []store.Finding {
	f := store.Finding{Grade: store.GradeFault, Subject: "topic " + spec.Name}
	d, err := Describe(ctx, admin, spec)
	var setup *store.SetupError
	switch {
	case errors.As(err, &setup):
		f.Text, f.Remedy = setup.Problem, setup.Remedy
		return []store.Finding{f}
	case err != nil:
		f.Text, f.Remedy = err.Error(), "create the topic, or start its brokers"
		return []store.Finding{f}
	case store.CountFaults(d.Findings) == 0:
		f.Grade, f.Text = store.GradeOK, fmt.Sprintf("%d partitions", spec.Partitions)
		return append([]store.Finding{f}, d.Findings...)
	}
	return d.Findings
}

func createCommand(spec Spec) string {
	return fmt.Sprintf("kafka-topics.sh --bootstrap-server … --create --topic %s --partitions %d --replication-factor 3 --config min.insync.replicas=2", spec.Name, spec.Partitions)
}

// readSettings returns the settings of a topic, by name.
func readSettings(ctx context.Context, admin *kadm.Client, name string) (map[string]string, error) {
	all, err := admin.DescribeTopicConfigs(ctx, name)
	if err != nil {
		return nil, err
	}
	of, err := all.On(name, nil)
	if err = errors.Join(err, of.Err); err != nil {
		return nil, err
	}
	settings := make(map[string]string, len(of.Configs))
	for i := range of.Configs {
		if of.Configs[i].Value != nil {
			settings[of.Configs[i].Key] = *of.Configs[i].Value
		}
	}
	return settings, nil
}

// Resized is the error of a topic with another number of partitions than is configured.
func Resized(name string, has, configured int) *store.SetupError {
	return &store.SetupError{
		Problem: fmt.Sprintf("topic %s has %d partitions, and %d are configured", name, has, configured),
		Remedy:  fmt.Sprintf("set scale.partitions to %d, or add partitions: kafka-topics.sh --bootstrap-server … --alter --topic %s --partitions %d", has, name, configured),
	}
}

// unused is the advice about a topic with more partitions than are used.
func unused(spec Spec, has int) store.Finding {
	return store.Finding{
		Grade: store.GradeAdvice, Subject: "topic " + spec.Name, Text: fmt.Sprintf("has %d partitions, and the relay uses the first %d", has, spec.Partitions),
		Remedy: fmt.Sprintf("to use all of them, set scale.partitions to %d and restart the processes; otherwise nothing", has),
	}
}

// replicas returns how many replicas each partition has at least.
func replicas(partitions kadm.PartitionDetails) int {
	least := math.MaxInt
	for _, p := range partitions {
		least = min(least, len(p.Replicas))
	}
	return least
}
