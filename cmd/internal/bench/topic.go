package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/demobroker"
	"github.com/sluicebox/sluicebox/cmd/internal/demodb"
)

// withTopic runs a turn with a receiver that reads a new topic of the broker.
func (b *bench) withTopic(ctx context.Context, turn func(*receiver) (figures, error)) (f figures, err error) {
	r := &receiver{url: b.opts.Sink.Reveal(), topic: newTopicName(time.Now()), ended: make(chan error, 1)}
	if err := removeLeftovers(ctx, r.url, time.Now()); err != nil {
		return nil, err
	}
	topic, err := demobroker.Create(ctx, r.url, r.topic, false)
	if err != nil {
		return nil, err
	}
	defer topic.Close()
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		defer cancel()
		if removed := topic.Remove(ctx); removed != nil {
			err = errors.Join(err, fmt.Errorf("remove topic %s: %w", r.topic, removed))
		}
	}()

	r.sink, r.secrets = topic.Sink()
	reading, stop := context.WithCancel(ctx)
	go func() {
		r.ended <- topic.Read(reading, func(payload []byte) {
			if t := r.tally.Load(); t != nil {
				t.record(payload, time.Now())
			}
		})
	}()
	defer func() {
		stop()
		if failed := <-r.ended; failed != nil {
			err = errors.Join(err, fmt.Errorf("read topic %s: %w", r.topic, failed))
		}
	}()
	return turn(r)
}

// leftoverAge is the age from which on a topic is a leftover of a benchmark that was killed. It is more than a
// turn takes.
const leftoverAge = 24 * time.Hour

// newTopicName returns a name with the time, in seconds since 1970, by which removeLeftovers knows its age.
func newTopicName(now time.Time) string {
	return demodb.NewName(fmt.Sprintf("%s%08x_", namePrefix, now.Unix()))
}

// removeLeftovers removes the topics of benchmarks that were killed.
func removeLeftovers(ctx context.Context, address string, now time.Time) error {
	names, err := demobroker.Leftovers(ctx, address, namePrefix)
	if err != nil {
		return err
	}
	for _, name := range names {
		text, _, _ := strings.Cut(strings.TrimPrefix(name, namePrefix), "_")
		began, err := strconv.ParseInt(text, 16, 64)
		if err != nil || now.Sub(time.Unix(began, 0)) < leftoverAge {
			continue
		}
		if err := demobroker.Remove(ctx, address, name); err != nil {
			return err
		}
	}
	return nil
}
