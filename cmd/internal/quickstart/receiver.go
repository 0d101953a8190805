package quickstart

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/demobroker"
)

const (
	eventsPath  = "/api/events/batch" // of the FlowCatalyst API
	maxRequest  = 4 << 20             // the relay sends just under 1 MiB
	stopTimeout = 5 * time.Second
)

// destination is where the relay delivers to: the receiver, or a topic of a broker.
type destination struct {
	url   string
	topic demobroker.Topic // nil without a broker
	stop  func() error     // must be called
}

// startDestination starts a receiver, or creates a topic and reads it.
func (q *quickstart) startDestination(ctx context.Context) (*destination, error) {
	if q.opts.Sink == "" {
		r, err := startReceiver(ctx, q.oracle, q.faults)
		if err != nil {
			return nil, err
		}
		return &destination{url: r.url, stop: r.stop}, nil
	}
	address := q.opts.Sink.Reveal()
	names, err := demobroker.Leftovers(ctx, address, namePrefix)
	if err != nil {
		return nil, err
	}
	q.printText(q.env.Stderr, "%s", leftoverNote(names, "topic %s on the broker.", func(name string) []string {
		return []string{demobroker.Removal(address, name)}
	}))
	topic, err := demobroker.Create(ctx, address, q.dbInfo.name, q.opts.Keep)
	if err != nil {
		return nil, err
	}
	// The relay outlives the signal that ends the writers.
	reading, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- topic.Read(reading, q.oracle.recordPayload) }()
	return &destination{url: q.opts.Sink.String() + ", topic " + q.dbInfo.name, topic: topic, stop: func() error {
		defer topic.Close()
		cancel()
		err := <-ended
		if q.shouldKeep() {
			return err
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
		defer cancel()
		return errors.Join(err, topic.Remove(ctx))
	}}, nil
}

// recordPayload records a row that arrived alone.
func (o *oracle) recordPayload(payload []byte) {
	row, err := parseOrder(payload)
	if err != nil {
		row = order{} // which was never written
	}
	o.recordRequest([]order{row}, time.Now())
}

// receiver is an HTTP server that speaks the FlowCatalyst API.
type receiver struct {
	oracle *oracle
	faults *faults
	server *http.Server
	url    string
	ended  chan error
}

// startReceiver starts a receiver on a free port of the loopback interface. The caller
// must stop it.
func startReceiver(ctx context.Context, o *oracle, f *faults) (*receiver, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start receiver: %w", err)
	}
	r := &receiver{oracle: o, faults: f, url: "http://" + listener.Addr().String(), ended: make(chan error, 1)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+eventsPath, r.handle)
	r.server = &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: stopTimeout,
		ErrorLog:          log.New(io.Discard, "", 0), // drops are on purpose
	}
	go func() { r.ended <- r.server.Serve(listener) }()
	return r, nil
}

// stop shuts the receiver down. After stopTimeout it closes the remaining connections.
func (r *receiver) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if r.server.Shutdown(ctx) != nil {
		_ = r.server.Close() // an error would be one of a connection
	}
	if err := <-r.ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("receiver: %w", err)
	}
	return nil
}

// handle records the rows of a request, or fails the request on purpose.
func (r *receiver) handle(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxRequest))
	at := time.Now()
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}

	rows, err := parseBatch(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}

	switch r.faults.choose(rows) {
	case unavailable:
		http.Error(w, "quickstart receiver is unavailable on purpose", http.StatusServiceUnavailable)
	case serverError:
		http.Error(w, "quickstart receiver fails on purpose", http.StatusInternalServerError)
	case disconnected:
		panic(http.ErrAbortHandler) // the server's way to drop a connection
	default:
		r.oracle.recordRequest(rows, at)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(results(rows)) // a disconnected relay retries
	}
}

func parseBatch(body []byte) ([]order, error) {
	var payloads []json.RawMessage
	if err := json.Unmarshal(body, &payloads); err != nil {
		return nil, fmt.Errorf("body is not a JSON array: %w", err)
	}
	rows := make([]order, len(payloads))
	for i, payload := range payloads {
		var err error
		if rows[i], err = parseOrder(payload); err != nil {
			return nil, fmt.Errorf("row %d of %d: %w", i+1, len(payloads), err)
		}
	}
	return rows, nil
}

// results returns the API's response to accepted rows.
func results(rows []order) []byte {
	type result struct {
		ID     string `json:"id"`
		Status string `json:"status"`
	}
	answer := struct {
		Results []result `json:"results"`
	}{make([]result, len(rows))}
	for i, row := range rows {
		answer.Results[i] = result{"quickstart-" + row.id(), "SUCCESS"}
	}
	text, err := json.Marshal(answer)
	if err != nil {
		panic("quickstart: marshal results: " + err.Error())
	}
	return text
}
