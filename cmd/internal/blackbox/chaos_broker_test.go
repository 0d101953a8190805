package blackbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	checker "github.com/sluicebox/sluicebox/cmd/internal/verify"
	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// destination is a further destination of the jobs.
type destination struct {
	name     string // of its route and its sink; with a slash it begins the ids of what arrives there
	optional bool   // no row waits for it
	sink     string // the keys of its configuration
	server   brokerServer
	refuse   func() (allow func()) // makes the broker refuse every message, as if it were full
	read     func()                // notes what has arrived since the last call
}

// brokerServer is the server of a broker.
type brokerServer interface {
	ownServer
	freezer
}

// brokersVariable is a list of the brokers of a run: kafka, nats, rabbitmq. The first one is required, the
// others are optional destinations by turns.
const brokersVariable = "SLUICEBOX_TEST_BROKERS"

// webhookCopy begins the ids of what arrives at the destination of a run without a broker.
const webhookCopy = "copy/"

// brokerLimit is the size in bytes of the largest message of a broker. The platform takes more.
const brokerLimit = 950 << 10

// chosenBrokers are those of a run, by default NATS where it is installed.
func chosenBrokers() []string {
	if list := os.Getenv(brokersVariable); list != "" {
		return strings.Split(list, ",")
	}
	if os.Getenv("SLUICEBOX_TEST_NATS_BIN") != "" {
		return []string{"nats"}
	}
	return nil
}

// newCopies starts the further destinations. Short runs have a webhook instead of brokers.
func (c *chaos) newCopies(brief bool) {
	c.t.Helper()
	brokers := chosenBrokers()
	if brief || len(brokers) == 0 {
		to := sinktest.NewReceiver(c.t)
		to.Script(c.to.takeCopy)
		c.copies = []*destination{{name: strings.TrimSuffix(webhookCopy, "/"), sink: fmt.Sprintf("type: webhook, url: %q", to.URL()), read: func() {}}}
	} else {
		start := map[string]func() *destination{"kafka": c.newKafkaCopy, "nats": c.newNATSCopy, "rabbitmq": c.newRabbitCopy}
		for i, name := range brokers {
			if start[name] == nil {
				c.t.Fatalf("%s=%s: %q is no broker; use kafka, nats, rabbitmq", brokersVariable, strings.Join(brokers, ","), name)
			}
			d := start[name]()
			d.name, d.optional = name, i%2 == 1
			c.copies = append(c.copies, d)
		}
	}
	for _, d := range c.copies {
		c.marks = append(c.marks, d.name+"/")
	}
}

// routes are the further routes of the configuration, and sinks their sinks.
func (c *chaos) routes() (text string) {
	for _, d := range c.copies {
		text += fmt.Sprintf(", {name: %s, sink: %s", d.name, d.name)
		if d.optional {
			text += ", need: optional"
		}
		text += "}"
	}
	return text
}

func (c *chaos) sinks() (text string) {
	for _, d := range c.copies {
		text += fmt.Sprintf("\n  %s: {%s}", d.name, d.sink)
	}
	return text
}

// copiesOf are a row's copies for the oracle. One that cannot be delivered everywhere may have arrived
// where it can.
func (w *truth) copiesOf(r *chaosRow, row checker.Row) (all []checker.Row) {
	if r.kind != "DISPATCH_JOB" {
		return nil
	}
	if r.mayFail {
		row.State = checker.Failed
	}
	for _, mark := range w.marks {
		copied := row
		copied.ID = mark + row.ID
		if row.Lane != "" {
			copied.Lane = mark + row.Lane
		}
		all = append(all, copied)
	}
	return all
}

// sourceOf is the number of the destination of an arrival.
func (w *truth) sourceOf(id string) int {
	return 1 + slices.IndexFunc(w.marks, func(mark string) bool { return strings.HasPrefix(id, mark) })
}

// original is the id of the row of an arrival.
func original(id string) string { return id[strings.IndexByte(id, '/')+1:] }

// readCopies notes what has arrived at the brokers, and waits for what is COMPLETED before an optional
// destination has it.
func (c *chaos) readCopies(states map[string]string) {
	c.t.Helper()
	end := time.Now().Add(mostRecovery)
	for {
		for _, d := range c.copies {
			d.read()
		}
		missing := c.missingCopies(states)
		if len(missing) == 0 {
			return
		}
		if time.Now().After(end) {
			c.t.Errorf("%d rows have not arrived at a further destination %s after the last fault, for example %s", len(missing), mostRecovery, missing[0])
			return
		}
		c.sleep(100 * time.Millisecond)
	}
}

func (c *chaos) missingCopies(states map[string]string) (ids []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.order {
		if r.kind != "DISPATCH_JOB" || r.mayFail || states[r.id] != "COMPLETED" {
			continue
		}
		for _, mark := range c.marks {
			if !c.arrived[mark+r.id] {
				ids = append(ids, mark+r.id)
			}
		}
	}
	return ids
}

func (c *chaos) newNATSCopy() *destination {
	n := &natsScene{scene: c.scene, server: servers.NATS.Start(c.t, map[string]string{"max_payload": fmt.Sprint(brokerLimit)})}
	n.configure(-1)
	read := uint64(0) // messages that the oracle has
	return &destination{
		sink:   fmt.Sprintf("type: nats, url: %q, subject: events.copy, stream: EVENTS, headers: {row: '{id}'}", n.server.URL),
		server: n.server,
		refuse: func() func() { n.configure(1); return func() { n.configure(-1) } },
		read:   func() { read = c.readNATS(n, read) },
	}
}

// readNATS notes the messages behind one of a stream, and returns the last one.
func (c *chaos) readNATS(n *natsScene, read uint64) uint64 {
	c.t.Helper()
	n.stream(func(ctx context.Context, js jetstream.JetStream) error {
		stream, err := js.Stream(ctx, "EVENTS")
		if err != nil {
			return err
		}
		consumer, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
			AckPolicy: jetstream.AckNonePolicy, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: read + 1,
		})
		if err != nil {
			return err
		}
		for last := stream.CachedInfo().State.LastSeq; read < last; {
			batch, err := consumer.Fetch(int(min(last-read, 500)), jetstream.FetchMaxWait(testTimeout))
			if err != nil {
				return err
			}
			for m := range batch.Messages() {
				at, err := m.Metadata()
				if err != nil {
					return err
				}
				c.acceptAt("nats/"+m.Headers().Get("row"), m.Data(), at.Timestamp)
				read = at.Sequence.Stream
			}
			if batch.Error() != nil {
				return batch.Error()
			}
		}
		return nil
	})
	return read
}

// brokerKinds are faults of the brokers.
func brokerKinds() (kinds []chaosKind) {
	const short, long = 300 * time.Millisecond, 5 * time.Second
	for _, name := range []string{"kafka", "nats", "rabbitmq"} {
		kind := func(what string, begin func(d *destination) (end func())) {
			kinds = append(kinds, chaosKind{
				name: name + " " + what, least: short, most: long,
				on: func(string) bool { return slices.Contains(chosenBrokers(), name) },
				inject: func(c *chaos, _ *rand.Rand) func() {
					return begin(c.copies[slices.IndexFunc(c.copies, func(d *destination) bool { return d.name == name })])
				},
			})
		}
		stopped := func(mode string) func(d *destination) func() {
			return func(d *destination) func() {
				d.server.Stop(mode)
				return func() { d.server.Restart(nil) }
			}
		}
		kind("killed", stopped("immediate"))
		kind("restarted", stopped("fast"))
		kind("frozen", func(d *destination) func() { d.server.Freeze(); return d.server.Thaw })
		kind("full", func(d *destination) func() { return d.refuse() })
	}
	beyond := oddKind("rows beyond a broker's limit", 50, func(r *chaosRow, _ *rand.Rand) {
		if r.kind == "DISPATCH_JOB" { // an event goes to the platform alone, which takes it
			r.mayFail = true
		}
		r.fill(strings.Repeat("x", brokerLimit+20<<10))
	})
	beyond.on = func(string) bool { return len(chosenBrokers()) > 0 }
	return append(kinds, beyond)
}
