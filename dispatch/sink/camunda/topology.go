package camunda

import (
	"fmt"
	"strings"
)

// topology is the state of a cluster (TopologyResponse of both APIs).
type topology struct {
	GatewayVersion  string   `json:"gatewayVersion"`
	PartitionsCount int      `json:"partitionsCount"`
	Brokers         []broker `json:"brokers"`
}

type broker struct {
	Partitions []partition `json:"partitions"`
}

type partition struct {
	ID     int    `json:"partitionId"`
	Role   string `json:"role"`
	Health string `json:"health"`
}

// String returns the facts for a detail.
func (t *topology) String() string {
	return fmt.Sprintf("gateway %s, brokers %d, partitions %d", t.GatewayVersion, len(t.Brokers), t.PartitionsCount)
}

// doubts returns why messages may not be accepted although the gateway answers. A partition without
// a healthy leader accepts none.
func (t *topology) doubts() (texts []string) {
	led := map[int]bool{}
	for _, b := range t.Brokers {
		for _, p := range b.Partitions {
			if strings.EqualFold(p.Role, "leader") && strings.EqualFold(p.Health, "healthy") {
				led[p.ID] = true
			}
		}
	}
	if n := t.PartitionsCount - len(led); n > 0 {
		texts = append(texts, fmt.Sprintf("partitions without a healthy leader %d", n))
	}
	return texts
}
