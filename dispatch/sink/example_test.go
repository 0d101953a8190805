package sink_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

// lineSink writes each row as one line, for example to a file or a pipe.
type lineSink struct {
	mu sync.Mutex
	w  io.Writer
}

// Limits reports the mode Ordered, because Deliver stops at the first failure.
func (s *lineSink) Limits(string) sink.Limits {
	return sink.Limits{Mode: sink.Ordered, MaxItems: 100, MaxBytes: 1 << 20}
}

// Deliver writes the messages in order. It does not retry: the lane of the failed row
// does, and it keeps the later rows of the group behind it.
func (s *lineSink) Deliver(_ context.Context, msgs []sink.Message) sink.Result {
	s.mu.Lock()
	defer s.mu.Unlock()

	items := make([]sink.Outcome, len(msgs))
	for i := range items {
		items[i].Class = sink.NotSent
	}

	for i := range msgs {
		items[i] = s.write(&msgs[i])
		if items[i].Class != sink.Delivered {
			break
		}
	}
	return sink.Result{Items: items}
}

// write classifies each failure: Rejected blames the row, Unavailable the receiver.
func (s *lineSink) write(m *sink.Message) sink.Outcome {
	if !json.Valid(m.Payload) {
		return sink.Outcome{Class: sink.Rejected, Reason: store.ReasonBadRequest, Detail: "payload is not valid JSON"}
	}
	if _, err := fmt.Fprintf(s.w, "%s %s\n", m.ID, m.Payload); err != nil {
		return sink.Outcome{Class: sink.Unavailable, Reason: store.ReasonGateway, Detail: err.Error()}
	}
	return sink.Outcome{Class: sink.Delivered}
}

// A sink of your own implements [sink.Sink]. It makes one attempt per call and
// classifies the outcome of each row.
func ExampleSink() {
	var lines sink.Sink = &lineSink{w: os.Stdout}

	msgs := []sink.Message{
		{ID: "1", Kind: "order.created", Payload: []byte(`{"total":12}`)},
		{ID: "2", Kind: "order.created", Payload: []byte(`{"total":`)},
		{ID: "3", Kind: "order.created", Payload: []byte(`{"total":7}`)},
	}

	res := lines.Deliver(context.Background(), msgs)

	for i := range msgs {
		fmt.Printf("row %s: %s\n", msgs[i].ID, res.At(i).Class)
	}

	// Output:
	// 1 {"total":12}
	// row 1: delivered
	// row 2: rejected
	// row 3: not_sent
}
