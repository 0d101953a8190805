package camunda

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/httpsink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
	"github.com/sluicebox/sluicebox/store"
)

// Paths of the REST API.
const (
	apiPath         = "/v2"
	publicationPath = apiPath + "/messages/publication"
	topologyPath    = apiPath + "/topology"
)

// The body of a success has a key and a tenant, and a topology some 100 bytes for each replica of a
// partition.
const (
	maxPublication = 64 << 10
	maxTopology    = 4 << 20
)

// rest is the REST API.
type rest struct {
	base       string // without a slash at its end
	client     *httpsink.Client
	settings   func() *httpsink.Settings
	timeToLive time.Duration
	maxBytes   int
	receipts   bool

	fixedTenant bool
}

// newREST returns the REST API at an address. It does not connect.
func newREST(cfg *Config, to *url.URL) (*rest, error) {
	settings := cfg.http()
	client, err := httpsink.NewClient(&settings, to)
	if err != nil {
		return nil, err
	}
	settings.Token = ""
	return &rest{
		base: strings.TrimRight(to.String(), "/"), client: client, settings: func() *httpsink.Settings { return &settings },
		timeToLive: cfg.TimeToLive, maxBytes: cfg.MaxRequestBytes, receipts: cfg.Receipts, fixedTenant: isFixed(cfg.TenantID),
	}, nil
}

func (r *rest) close() { r.client.Close() }

func (r *rest) calls() (publish, topology string) {
	return "POST " + r.base + publicationPath, "GET " + r.base + topologyPath
}

// header returns the headers of a request.
func (r *rest) header(authorization string) http.Header {
	h := httpsink.Header(r.settings(), "")
	h.Set("Accept", "application/json, application/problem+json")
	if authorization != "" {
		h.Set("Authorization", authorization)
	}
	return h
}

func (r *rest) publish(ctx context.Context, msg *message, authorization string, red *redact.Redactor) sink.Result {
	body := msg.json(r.timeToLive)
	if len(body) > r.maxBytes {
		return tooLarge(len(body), r.maxBytes)
	}
	h := r.header(authorization)
	h.Set("Content-Type", "application/json")
	httpsink.SetIdempotencyKey(h, msg.rowID) // Camunda ignores it; a proxy may not
	httpsink.SetReplay(h, msg.replay)
	name, _ := r.calls()
	a, err := r.client.Do(ctx, &httpsink.Request{
		Method: http.MethodPost, URL: r.base + publicationPath, Header: h, Body: body, MaxSuccess: maxPublication,
	})
	if err != nil {
		return httpsink.NoAnswerResult(name, err, red)
	}
	return r.classify(name, a, red)
}

// classify classifies the answer to a message.
func (r *rest) classify(name string, a *httpsink.Answer, red *redact.Redactor) sink.Result {
	class, reason := sink.Classify(a.Status)
	fail := func(class sink.Class, reason store.Reason, detail string) sink.Result {
		return sink.Result{Outcome: sink.Outcome{Class: class, Reason: reason, Detail: detail}, RetryAfter: a.RetryAfter}
	}
	switch {
	case a.Status == http.StatusConflict:
		return repeated()
	case class != sink.Delivered:
		return fail(refinedClass(class, string(a.Body), r.fixedTenant), reason, a.Failure(name, red))
	case a.Err != nil && !errors.Is(a.Err, httpsink.ErrTooLong): // the message may be published
		return fail(sink.Unavailable, store.ReasonGateway, a.Detail(name, ": incomplete response: "+httpsink.ErrorText(a.Err), red))
	}
	var answer struct {
		Key json.RawMessage `json:"messageKey"` // a text, or a number before Camunda 8.7
	}
	if err := parse(a, &answer); err != nil || len(answer.Key) == 0 {
		return fail(sink.Misconfigured, store.ReasonInternal, a.Detail(name, notTheAPI(a, "messageKey", red), red))
	}
	return delivered(string(bytes.Trim(answer.Key, `"`)), r.receipts)
}

func (r *rest) topology(ctx context.Context, authorization string, red *redact.Redactor) (*topology, sink.Outcome) {
	_, name := r.calls()
	a, err := r.client.Do(ctx, &httpsink.Request{
		Method: http.MethodGet, URL: r.base + topologyPath, Header: r.header(authorization), MaxSuccess: maxTopology,
	})
	if err != nil {
		return nil, httpsink.NoAnswerResult(name, err, red).Outcome
	}
	switch class, reason := sink.Classify(a.Status); class {
	case sink.Delivered:
	case sink.Misconfigured:
		return nil, sink.Outcome{Class: class, Reason: reason, Detail: a.Failure(name, red)}
	default:
		return nil, sink.Outcome{Class: sink.Refused, Reason: reason, Detail: a.Failure(name, red)}
	}
	var of topology
	if err := parse(a, &of); err != nil || of.GatewayVersion == "" {
		return nil, sink.Outcome{Class: sink.Misconfigured, Reason: store.ReasonInternal, Detail: a.Detail(name, notTheAPI(a, "gatewayVersion", red), red)}
	}
	return &of, sink.Outcome{Class: sink.Delivered, Detail: a.Detail(name, "", red)}
}

// parse reads the body of a success.
func parse(a *httpsink.Answer, to any) error {
	if a.Err != nil {
		return a.Err
	}
	return json.Unmarshal(a.Body, to)
}

// notTheAPI says of a success that another program sent it, for example a login page.
func notTheAPI(a *httpsink.Answer, member string, red *redact.Redactor) string {
	return fmt.Sprintf(": response not from the API of Camunda 8 (no %s), content type %q%s", member, a.ContentType, a.Excerpt(red))
}

// tooLarge returns the result of a message that is not sent because of its size.
func tooLarge(size, limit int) sink.Result {
	return sink.RejectFirst(1, fmt.Sprintf("not sent: message of %d bytes exceeds max-request-bytes (%d)", size, limit))
}
