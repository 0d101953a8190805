package topic

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/store"
)

const (
	// minRetention is longer than a shard takes to move and to save a checkpoint. With less, a shard
	// would lose its place in every rebalance.
	minRetention = 10 * time.Minute
	// safeRetention leaves a night to notice that a shard lags.
	safeRetention = 24 * time.Hour
	// newRetention is that of a new topic.
	newRetention = 7 * 24 * time.Hour
	// defaultMessageBytes is the default of a broker.
	defaultMessageBytes = 1 << 20
	// minRetentionBytes is a few segments of a partition.
	minRetentionBytes = 1 << 30
)

// checker collects findings about the settings of a topic.
type checker struct {
	spec     Spec
	settings map[string]string
	found    []store.Finding
}

// check returns the faults of settings, and then the advice. A setting that the broker does not have is
// not checked.
func check(spec Spec, replicas int, settings map[string]string) []store.Finding {
	c := &checker{spec: spec, settings: settings}
	c.unclean()
	c.replicas(replicas)
	c.cleanup()
	c.size()
	c.retention()
	slices.SortStableFunc(c.found, func(a, b store.Finding) int { return int(b.Grade) - int(a.Grade) })
	return c.found
}

// add adds a finding about a setting, with the command that gives it another value.
func (c *checker) add(grade store.Grade, name, better, reason string) {
	c.found = append(c.found, store.Finding{
		Grade: grade, Subject: "topic " + c.spec.Name, Text: fmt.Sprintf("%s=%s: %s", name, c.settings[name], reason),
		Remedy: fmt.Sprintf("kafka-configs.sh --bootstrap-server … --alter --entity-type topics --entity-name %s --add-config %s=%s", c.spec.Name, name, better),
	})
}

// number returns the value of a setting that is a number.
func (c *checker) number(name string) (n int64, ok bool) {
	n, err := strconv.ParseInt(c.settings[name], 10, 64)
	return n, err == nil
}

func (c *checker) unclean() {
	const name = "unclean.leader.election.enable"
	if c.settings[name] == "true" {
		c.add(store.GradeFault, name, "false", "a broker that lacks acknowledged records may lead, and they are lost")
	}
}

func (c *checker) replicas(n int) {
	const name = "min.insync.replicas"
	least, ok := c.number(name)
	switch {
	case ok && least > int64(n):
		c.add(store.GradeFault, name, fmt.Sprint(max(1, n-1)), fmt.Sprintf("more than the %d of the topic, so every append is refused", n))
	case n == 1:
		c.found = append(c.found, store.Finding{
			Grade: store.GradeAdvice, Subject: "topic " + c.spec.Name, Text: "1 replica: no rows are sent while its broker is down, and if its disk is lost, each shard takes a snapshot",
			Remedy: "kafka-reassign-partitions.sh --bootstrap-server … --execute --reassignment-json-file …, with 3 replicas of each partition",
		})
	case !ok:
	case least < 2:
		c.add(store.GradeFault, name, "2", fmt.Sprintf("a record counts as stored when one of %d brokers has it, and is lost with that broker", n))
	case least == int64(n):
		c.add(store.GradeAdvice, name, fmt.Sprint(n-1), fmt.Sprintf("the topic has %d replicas, so no rows are sent while a broker is down; use one replica more", n))
	}
}

func (c *checker) cleanup() {
	const name = "cleanup.policy"
	policy, ok := c.settings[name]
	switch {
	case !ok:
	case strings.Contains(policy, "compact"):
		c.add(store.GradeFault, name, "delete", "compaction needs records with keys, and removes records that a shard has to read")
	case policy == "":
		c.add(store.GradeAdvice, name, "delete", "no record is ever deleted, and the disks fill")
	}
}

func (c *checker) size() {
	const name = "max.message.bytes"
	need := int64(c.spec.RecordBytes + BatchBytes)
	if limit, ok := c.number(name); ok && c.spec.RecordBytes > 0 && limit < need {
		c.add(store.GradeFault, name, fmt.Sprint(need), fmt.Sprintf("a record may have %d bytes, and its batch %d", c.spec.RecordBytes, need))
	}
}

func (c *checker) retention() {
	const name, bytesName = "retention.ms", "retention.bytes"
	if ms, ok := c.number(name); ok {
		kept, week := time.Duration(ms)*time.Millisecond, fmt.Sprint(newRetention.Milliseconds())
		bytes, _ := c.number(bytesName)
		switch {
		case ms < 0 && bytes < 0:
			c.add(store.GradeAdvice, name, week, "no record is ever deleted, and the disks fill")
		case ms < 0:
		case kept < minRetention:
			c.add(store.GradeFault, name, week, fmt.Sprintf("records are kept for %s, and a shard that is away for longer takes a snapshot", kept))
		case kept < safeRetention:
			c.add(store.GradeAdvice, name, week, fmt.Sprintf("records are kept for %s, and a shard that lags for longer takes a snapshot", kept))
		}
	}
	if bytes, ok := c.number(bytesName); ok && bytes >= 0 && bytes < minRetentionBytes {
		c.add(store.GradeAdvice, bytesName, "-1", "records are deleted by size, however young, and a shard that lags by as much takes a snapshot")
	}
}
