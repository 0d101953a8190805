package blackbox

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// A run with an odd seed asks the receiver for a result for each row. One with a seed whose second bit is set
// deletes delivered events after retention, at each start of a session.
const (
	seedOfItems     = 1
	seedOfRetention = 2

	chaosRetention = 20 * time.Second
)

// options are the keys of the sink and of the events' outbox that the seed decides.
func (p chaosPlan) options() (sink, outbox string) {
	if p.items() {
		sink = ", wire: items"
	}
	if p.deletes() {
		outbox = fmt.Sprintf(", retention: %s", chaosRetention)
	}
	return sink, outbox
}

func (p chaosPlan) items() bool   { return p.seed&seedOfItems != 0 && !p.brief }
func (p chaosPlan) deletes() bool { return p.seed&seedOfRetention != 0 && !p.brief }

// deleted notes as COMPLETED the events that retention may have deleted. The oracle still asks
// for their arrivals. It returns how many.
func (c *chaos) deleted(states map[string]string) (n int) {
	if !c.deletes {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.order {
		if _, is := states[r.id]; !is && r.kind == "EVENT" && time.Since(r.committed) > chaosRetention {
			states[r.id] = "COMPLETED"
			n++
		}
	}
	return n
}

// answerKinds are answers that are partial, cut off or slow, and faults between a relay and its receiver.
func answerKinds() []chaosKind {
	const short, long = 300 * time.Millisecond, 4 * time.Second
	script := func(name string, make func(salt uint64) sinktest.Script) chaosKind {
		return answerKind(name, long, make)
	}
	ofItems := func(k chaosKind) chaosKind { k.needs = needItems; return k }
	network := func(what string, begin, end func(w *servers.Proxy)) chaosKind {
		return chaosKind{name: "receiver's network " + what, least: short, most: long, inject: func(c *chaos, _ *rand.Rand) func() {
			begin(c.toReceiver)
			return func() { end(c.toReceiver) }
		}}
	}
	always := func(answer sinktest.Script) func(uint64) sinktest.Script {
		return func(uint64) sinktest.Script { return answer }
	}
	return []chaosKind{
		ofItems(script("fails the rows of a request", failsSome)),
		ofItems(script("leaves rows out of its answer", always(func(req *sinktest.Request) sinktest.Answer {
			if !hasResults(req) {
				return sinktest.Answer{}
			}
			return sinktest.Answer{Status: http.StatusCreated, Body: sinktest.Results(len(req.Items) - 1)}
		}))),
		script("cuts its answers off", always(func(*sinktest.Request) sinktest.Answer {
			return sinktest.Answer{
				Status: http.StatusCreated, Body: []byte(`{"results": [{"id": "plat`),
				Header: http.Header{"Content-Type": {"application/json"}, "Content-Length": {"4096"}},
			}
		})),
		script("answers byte by byte", always(func(*sinktest.Request) sinktest.Answer {
			return sinktest.Answer{Status: http.StatusCreated, Body: []byte("["), WriteRest: dribble}
		})),
		script("answers 429 until a date", always(func(*sinktest.Request) sinktest.Answer {
			until := time.Now().Add(2 * time.Second).UTC().Format(http.TimeFormat)
			return sinktest.Answer{Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {until}}}
		})),
		network("cut", func(w *servers.Proxy) { w.Reset(true) }, (*servers.Proxy).Accept),
		network("black-holed", (*servers.Proxy).Disconnect, (*servers.Proxy).Reconnect),
		network("half-closed", (*servers.Proxy).HalfClose, func(*servers.Proxy) {}),
	}
}

// hasResults reports whether the answer to a request has a result for each row.
func hasResults(req *sinktest.Request) bool { return bytes.HasPrefix(req.Body, []byte("{")) }

// failsSome fails the rows of some requests by their results, each row twice at most. A row that failed more often
// would be to blame. The platform accepts all rows of a request or none.
func failsSome(salt uint64) sinktest.Script {
	var mu sync.Mutex
	failed := map[string]int{}
	return func(req *sinktest.Request) sinktest.Answer {
		mu.Lock()
		defer mu.Unlock()
		often := slices.ContainsFunc(req.Items, func(it sinktest.Received) bool { return failed[it.ID] > 1 })
		if !hasResults(req) || often || (uint64(req.N)+salt)%3 != 0 {
			return sinktest.Answer{}
		}
		for _, it := range req.Items {
			failed[it.ID]++
		}
		return sinktest.Answer{Status: http.StatusCreated, ItemStatuses: slices.Repeat([]string{"ERROR"}, len(req.Items))}
	}
}

// dribble writes a blank at a time until the client has gone.
func dribble(client context.Context, body io.Writer) {
	for client.Err() == nil {
		if _, err := body.Write([]byte(" ")); err != nil {
			return
		}
		if f, ok := body.(http.Flusher); ok {
			f.Flush()
		}
		select {
		case <-client.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}
