package kafka

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// topicAge is how long a topic's partitions and limits are used. New partitions get rows at
// the latest after it. It is a fifth of the Java client's, whose producers are more.
const topicAge = time.Minute

// limitAge is how long a topic's limits are believed for a row that they end.
const limitAge = time.Second

// defaultMaxMessage is the default of max.message.bytes since Kafka 2.4. It stands for a limit
// that could not be read, for example because the credentials may not. A larger record is sent
// alone, and the broker decides.
const defaultMaxMessage = 1<<20 + 12

// maxTopicName is the maximum length of a topic's name.
const maxTopicName = 249

// topic is what the cluster says about a topic. It is not modified.
type topic struct {
	name    string
	id      [16]byte // zero before Kafka 2.8
	leaders []int32  // broker of each partition, -1 for none
	read    time.Time

	maxMessage  int // bytes of a batch; a guess if hasMaximum is false
	hasMaximum  bool
	minInSync   int // 0 if unknown
	replicas    int // the fewest of a partition
	inSync      int // the fewest of a partition
	operations  int32
	limitsError error // why the limits are unknown
}

// leader returns the broker that leads a partition, -1 for none.
func (t *topic) leader(partition int32) int32 {
	if int(partition) >= len(t.leaders) {
		return -1
	}
	return t.leaders[partition]
}

// topics are the topics that rows went to, by name. All producers use the same, so that they
// notice new partitions at once.
type topics struct {
	mu    sync.Mutex
	known map[string]*topic
}

func (ts *topics) get(name string) *topic {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t := ts.known[name]; t != nil && time.Since(t.read) < topicAge {
		return t
	}
	return nil
}

// put keeps a topic. notice says that it has more partitions than before.
func (ts *topics) put(t *topic) (notice string) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.known == nil {
		ts.known = map[string]*topic{}
	}
	if before := ts.known[t.name]; before != nil && before.id == t.id && len(before.leaders) < len(t.leaders) {
		notice = fmt.Sprintf("topic %s has %d partitions instead of %d, so that rows of a group may be read before earlier ones in their old partition", t.name, len(t.leaders), len(before.leaders))
	}
	ts.known[t.name] = t
	return notice
}

// forget makes the next request read the topic again.
func (ts *topics) forget(name string) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t := ts.known[name]; t != nil {
		old := *t
		old.read = time.Time{}
		ts.known[name] = &old
	}
}

// topic returns a topic, and reads it if it is not known.
func (p *producer) topic(ctx context.Context, name string) (*topic, error) {
	if p.connected {
		if t := p.sink.topics.get(name); t != nil {
			return t, nil
		}
	}
	return p.load(ctx, name)
}

// load reads a topic. Its client then knows the brokers.
func (p *producer) load(ctx context.Context, name string) (*topic, error) {
	t, err := p.describe(ctx, name)
	if err != nil {
		return nil, err
	}
	p.connected = true
	p.readLimits(ctx, t)
	p.notice = cmp.Or(p.sink.topics.put(t), p.notice)
	return t, nil
}

// describe reads the partitions of a topic.
func (p *producer) describe(ctx context.Context, name string) (*topic, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.AllowAutoTopicCreation = false
	req.IncludeTopicAuthorizedOperations = true
	of := kmsg.NewMetadataRequestTopic()
	of.Topic = kmsg.StringPtr(name)
	req.Topics = append(req.Topics, of)
	resp, err := req.RequestWith(ctx, p.client)
	if err != nil {
		return nil, err
	}
	if len(resp.Topics) != 1 {
		return nil, kerr.UnknownTopicOrPartition
	}
	found := &resp.Topics[0]
	if err := kerr.ErrorForCode(found.ErrorCode); err != nil {
		return nil, err
	}
	t := &topic{name: name, id: found.TopicID, read: time.Now(), operations: found.AuthorizedOperations, leaders: make([]int32, len(found.Partitions))}
	if len(found.Partitions) == 0 {
		return nil, errNoLeader
	}
	for i := range found.Partitions {
		part := &found.Partitions[i]
		if int(part.Partition) >= len(t.leaders) {
			return nil, fmt.Errorf("partition %d of %d", part.Partition, len(t.leaders))
		}
		t.leaders[part.Partition] = part.Leader
		if replicas, inSync := len(part.Replicas), len(part.ISR); i == 0 {
			t.replicas, t.inSync = replicas, inSync
		} else {
			t.replicas, t.inSync = min(t.replicas, replicas), min(t.inSync, inSync)
		}
	}
	return t, nil
}

// Settings of a topic.
const (
	settingMaxMessage = "max.message.bytes"
	settingMinInSync  = "min.insync.replicas"
)

// readLimits reads the settings of a topic. The credentials need no right to do so.
func (p *producer) readLimits(ctx context.Context, t *topic) {
	t.maxMessage = defaultMaxMessage
	req := kmsg.NewPtrDescribeConfigsRequest()
	of := kmsg.NewDescribeConfigsRequestResource()
	of.ResourceType, of.ResourceName = kmsg.ConfigResourceTypeTopic, t.name
	of.ConfigNames = []string{settingMaxMessage, settingMinInSync}
	req.Resources = append(req.Resources, of)
	resp, err := req.RequestWith(ctx, p.client)
	if err == nil && len(resp.Resources) == 1 {
		err = kerr.ErrorForCode(resp.Resources[0].ErrorCode)
	}
	if err != nil {
		t.limitsError = err
		return
	}
	for _, r := range resp.Resources {
		for _, c := range r.Configs {
			n, err := strconv.Atoi(deref(c.Value))
			switch {
			case err != nil || n <= 0:
			case c.Name == settingMaxMessage:
				t.maxMessage, t.hasMaximum = n, true
			case c.Name == settingMinInSync:
				t.minInSync = n
			}
		}
	}
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// checkTopicName returns why a topic cannot have a name, "" if it can.
func checkTopicName(name string) string {
	switch {
	case name == "":
		return "is empty"
	case name == "." || name == "..":
		return "is a dot"
	case len(name) > maxTopicName:
		return fmt.Sprintf("has %d characters, which exceeds %d", len(name), maxTopicName)
	}
	for i := range len(name) {
		c := name[i]
		if c != '.' && c != '_' && c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return "has a character other than letters, digits, dots, _ and -"
		}
	}
	return ""
}
