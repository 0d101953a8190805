// Package topic describes the topic between capture and dispatch, for both of its sides.
package topic

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/sluicebox/sluicebox/store"
)

// Describe returns the id of a topic. The error is a *store.SetupError if the topic has another number of
// partitions.
func Describe(ctx context.Context, admin *kadm.Client, name string, partitions int) (kadm.TopicID, error) {
	topics, err := admin.ListTopics(ctx, name)
	if err != nil {
		return kadm.TopicID{}, fmt.Errorf("describe topic %s: %w", name, err)
	}
	topic := topics[name]
	if topic.Err != nil {
		return kadm.TopicID{}, fmt.Errorf("describe topic %s: %w", name, topic.Err)
	}
	if n := len(topic.Partitions); n != partitions {
		return kadm.TopicID{}, Resized(name, n, partitions)
	}
	return topic.ID, nil
}

// Resized is the error of a topic with another number of partitions than is configured.
func Resized(name string, has, configured int) *store.SetupError {
	return &store.SetupError{
		Problem: fmt.Sprintf("topic %s has %d partitions, and %d are configured", name, has, configured),
		Remedy:  "rows of a group would change their partition: configure the number that the topic has, or move to a new topic",
	}
}
