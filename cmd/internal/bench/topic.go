package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/demobroker"
	"github.com/sluicebox/sluicebox/cmd/internal/demodb"
)

// withTopic runs a turn with a receiver that reads a new topic of the broker.
func (b *bench) withTopic(ctx context.Context, turn func(*receiver) (figures, error)) (f figures, err error) {
	r := &receiver{url: b.opts.Sink.Reveal(), topic: demodb.NewName(namePrefix), ended: make(chan error, 1)}
	topic, err := demobroker.Create(ctx, r.url, r.topic)
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
