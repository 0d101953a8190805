package blackbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// poisonMark in a payload gets 400 until it is forgiven.
const poisonMark = "poison!"

// chaosReceiver answers, and notes what it accepts.
type chaosReceiver struct {
	truth    *truth
	effects  *effects
	behave   atomic.Pointer[sinktest.Script] // a fault; Answer{} lets it answer as always
	forgiven atomic.Bool                     // poison is accepted
}

func (c *chaosReceiver) answer(req *sinktest.Request) sinktest.Answer {
	a := sinktest.Answer{Delay: time.Millisecond}
	if fault := c.behave.Load(); fault != nil {
		if b := (*fault)(req); isFault(&b) {
			a = b
		}
	}
	if a.Status == 0 && !c.forgiven.Load() && strings.Contains(string(req.Body), poisonMark) {
		a = sinktest.Answer{Status: http.StatusBadRequest, Body: []byte("poison")}
	}
	if a.Status == 0 || a.Status/100 == 2 {
		for i, it := range req.Items {
			if i >= len(a.ItemStatuses) || a.ItemStatuses[i] == "SUCCESS" {
				c.accept(it.ID, &it)
			}
		}
		c.noteLate(req, &a)
	}
	return a
}

const aReplay = "a replay"

func (c *chaosReceiver) accept(id string, it *sinktest.Received) {
	if it.Replay != "" {
		c.effects.add(aReplay)
	}
	c.truth.accept(id, it.Payload, it.Replay != "")
}

// lateAnswer is how long the receiver may take for an answer before the oracle expects that the rows may
// arrive again. It is half of the relays' request-timeout: the rest is theirs, and the network's.
const lateAnswer = time.Second

// noteLate notes rows whose answer comes so late that a relay may have given the request up, for example
// because the machine stood still. No fault explains that they arrive again.
func (c *chaosReceiver) noteLate(req *sinktest.Request, a *sinktest.Answer) {
	began := time.Now()
	a.Written = func(client context.Context) {
		if time.Since(began) > lateAnswer || client.Err() != nil {
			c.truth.late(req.IDs())
		}
	}
}

func isFault(a *sinktest.Answer) bool { return a.Status != 0 || a.Disconnect || a.Delay != 0 }

// answerKind is a receiver that answers some requests otherwise. The salt decides which.
func answerKind(name string, most time.Duration, script func(salt uint64) sinktest.Script) chaosKind {
	name = "receiver " + name
	return chaosKind{name: name, least: 300 * time.Millisecond, most: most, counted: true, inject: func(c *chaos, r *rand.Rand) func() {
		answer := script(r.Uint64())
		counted := sinktest.Script(func(req *sinktest.Request) sinktest.Answer {
			a := answer(req)
			if isFault(&a) {
				c.effects.add(name)
			}
			return a
		})
		c.to.behave.Store(&counted)
		return func() { c.to.behave.CompareAndSwap(&counted, nil) }
	}}
}

// takeCopy is the second destination of the jobs.
func (c *chaosReceiver) takeCopy(req *sinktest.Request) sinktest.Answer {
	for _, it := range req.Items {
		c.accept(webhookCopy+it.ID, &it)
	}
	return sinktest.Answer{}
}

func receiverKinds() []chaosKind {
	const long = 4 * time.Second
	kind := func(name string, answer func(req *sinktest.Request, salt uint64) sinktest.Answer) chaosKind {
		return answerKind(name, long, func(salt uint64) sinktest.Script {
			return func(req *sinktest.Request) sinktest.Answer { return answer(req, salt) }
		})
	}
	always := func(a sinktest.Answer) func(*sinktest.Request, uint64) sinktest.Answer {
		return func(*sinktest.Request, uint64) sinktest.Answer { return a }
	}
	some := func(of int, a sinktest.Answer) func(*sinktest.Request, uint64) sinktest.Answer {
		return func(req *sinktest.Request, salt uint64) sinktest.Answer {
			if (uint64(req.N)+salt)%uint64(of) != 0 {
				return sinktest.Answer{}
			}
			return a
		}
	}
	return []chaosKind{
		kind("answers 503", always(sinktest.Answer{Status: http.StatusServiceUnavailable})),
		kind("answers 503 at times", some(3, sinktest.Answer{Status: http.StatusServiceUnavailable})),
		kind("hangs", always(sinktest.Answer{Status: http.StatusServiceUnavailable, Delay: time.Minute})),
		kind("is slow", always(sinktest.Answer{Delay: 300 * time.Millisecond})),
		kind("resets the connection", always(sinktest.Answer{Status: http.StatusServiceUnavailable, Disconnect: true})),
		kind("loses acknowledgements", some(4, sinktest.Answer{Status: http.StatusCreated, Disconnect: true})),
		kind("answers 429 with Retry-After", always(sinktest.Answer{Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"1"}}})),
		kind("redirects", always(sinktest.Answer{Status: http.StatusFound, Header: http.Header{"Location": {"http://127.0.0.1:1/"}}})),
		kind("answers 401", always(sinktest.Answer{Status: http.StatusUnauthorized})),
		fewRows(kind("takes few rows (413)", func(req *sinktest.Request, _ uint64) sinktest.Answer {
			if len(req.Items) > fewItems {
				return sinktest.Answer{Status: http.StatusRequestEntityTooLarge}
			}
			return sinktest.Answer{}
		})),
		kind("has another in its place", always(sinktest.Answer{Status: http.StatusServiceUnavailable, Body: []byte("<html>maintenance</html>")})),
		kind("echoes its secrets", func(req *sinktest.Request, _ uint64) sinktest.Answer {
			return sinktest.Answer{Status: http.StatusServiceUnavailable, Body: fmt.Appendf(nil, `{"error": %q}`, req.Header.Get("Authorization"))}
		}),
	}
}

// fewItems is how many rows a receiver takes that takes few.
const fewItems = 2

// fewRows commits rows beside the writers, so that requests have more than a few rows at any rate. With several
// rows of a group they share a request; with a result for each row, more groups than senders do.
func fewRows(k chaosKind) chaosKind {
	begin := k.inject
	k.inject = func(c *chaos, r *rand.Rand) func() {
		end := begin(c, r)
		var rows []*chaosRow
		for group := range 20 * fewItems {
			rows = append(rows, c.rowsOf(7000+group, 2*fewItems)...)
		}
		written := c.writes(rows)
		return func() {
			end()
			written()
		}
	}
	return k
}
