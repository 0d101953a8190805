package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/template"
	"github.com/sluicebox/sluicebox/store"
)

// askTimeout bounds each question of a probe.
const askTimeout = 3 * time.Second

// report collects the findings of a probe.
type report struct {
	facts, doubts, mistakes []string
}

func (r *report) fact(format string, args ...any) {
	r.facts = append(r.facts, fmt.Sprintf(format, args...))
}
func (r *report) doubt(format string, args ...any) {
	r.doubts = append(r.doubts, fmt.Sprintf(format, args...))
}
func (r *report) mistake(format string, args ...any) {
	r.mistakes = append(r.mistakes, fmt.Sprintf(format, args...))
}

// Probe implements sink.Prober. It publishes nothing: it compares the settings of the server, of
// the user and of the stream with those of the sink.
func (s *Sink) Probe(ctx context.Context, _ string) sink.Outcome {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	conn, err := s.link.Get(ctx)
	if err != nil {
		return s.noConnection(err)
	}
	if !conn.nc.IsConnected() {
		return s.classify(ctx, conn, "", nats.ErrReconnectBufExceeded)
	}
	var r report
	version := conn.nc.ConnectedServerVersion()
	r.fact("server %s, max_payload %d", version, conn.nc.MaxPayload())
	if s.atomic && !hasBatches(version) {
		r.mistake("%s", &versionError{version})
	}
	pattern := wildcards(&s.subject)
	s.probePermissions(ctx, conn, pattern, &r)
	if info := s.probeStream(ctx, conn, pattern, &r); info != nil {
		s.compare(&info.Config, pattern, &r)
	}
	switch {
	case r.mistakes != nil:
		return s.outcome(sink.Misconfigured, store.ReasonBadRequest, "%s", strings.Join(append(r.mistakes, r.facts...), "; "))
	case r.doubts != nil:
		return s.outcome(sink.Refused, store.ReasonInternal, "%s", strings.Join(append(r.doubts, r.facts...), "; "))
	}
	return s.outcome(sink.Delivered, store.ReasonNone, "%s; only a delivery proves that it stores rows", strings.Join(r.facts, "; "))
}

// wildcards returns the subjects of a template: a token with a value of the row is a *.
func wildcards(t *template.Template) string {
	const value = "\x00"
	tokens := strings.Split(strings.Join(t.Literals(), value), ".")
	for i := range tokens {
		if strings.Contains(tokens[i], value) {
			tokens[i] = "*"
		}
	}
	return strings.Join(tokens, ".")
}

// covers reports whether the subjects of a filter include all those of a pattern.
func covers(filter, pattern string) bool {
	f, p := strings.Split(filter, "."), strings.Split(pattern, ".")
	for i := range f {
		switch {
		case f[i] == ">":
			return len(p) > i
		case i >= len(p), f[i] != "*" && f[i] != p[i]:
			return false
		}
	}
	return len(f) == len(p)
}

// anyCovers reports whether one of the filters includes all subjects of a pattern.
func anyCovers(filters []string, pattern string) bool {
	return slices.ContainsFunc(filters, func(f string) bool { return covers(f, pattern) })
}

// ask calls a function that makes a request to a subject. It ends with errDenied if the user may
// not publish to it.
func (s *session) ask(ctx context.Context, subject string, request func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	w := s.watch(subject)
	defer s.unwatch(subject, w)
	failed := make(chan error, 1)
	go func() { failed <- request(ctx) }()
	select {
	case err := <-failed:
		return err
	case <-w.denied:
		cancel()
		return errors.Join(errDenied, <-failed)
	}
}

// probePermissions checks whether the user may publish to the subjects. A server before 2.10, or a
// user without access to the question, leaves that open.
func (s *Sink) probePermissions(ctx context.Context, conn *session, pattern string, r *report) {
	const subject = "$SYS.REQ.USER.INFO"
	var answer *nats.Msg
	err := conn.ask(ctx, subject, func(ctx context.Context) (err error) {
		answer, err = conn.nc.RequestWithContext(ctx, subject, nil)
		return err
	})
	var info struct {
		Data struct {
			Permissions struct {
				Publish struct{ Allow, Deny []string }
			}
		}
	}
	if err != nil || json.Unmarshal(answer.Data, &info) != nil {
		r.fact("permissions unknown")
		return
	}
	publish := info.Data.Permissions.Publish
	if len(publish.Allow) > 0 && !anyCovers(publish.Allow, pattern) || anyCovers(publish.Deny, pattern) {
		r.mistake("user may not publish to %s", pattern)
	}
}

// probeStream finds the stream of the sink, nil if there is none or it is unknown.
func (s *Sink) probeStream(ctx context.Context, conn *session, pattern string, r *report) *jetstream.StreamInfo {
	name := ""
	if s.stream.Fixed() {
		name, _ = s.stream.Text(nil, nil)
	}
	if name == "" {
		err := conn.ask(ctx, "$JS.API.STREAM.NAMES", func(ctx context.Context) (err error) {
			name, err = conn.js.StreamNameBySubject(ctx, pattern)
			return err
		})
		if err != nil {
			s.lookupFailed(r, "a stream with the subject "+pattern, err)
			return nil
		}
	}
	var info *jetstream.StreamInfo
	err := conn.ask(ctx, "$JS.API.STREAM.INFO."+name, func(ctx context.Context) error {
		stream, err := conn.js.Stream(ctx, name)
		if err == nil {
			info = stream.CachedInfo()
		}
		return err
	})
	if err != nil {
		s.lookupFailed(r, "stream "+name, err)
		return nil
	}
	return info
}

// lookupFailed reports a question without an answer.
func (s *Sink) lookupFailed(r *report, what string, err error) {
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		r.mistake("%s does not exist; create it", what)
	case errors.Is(err, errDenied):
		r.doubt("%s is not known, because the user may not ask; allow publish to $JS.API.STREAM.INFO.* and $JS.API.STREAM.NAMES", what)
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		r.mistake("server has no JetStream for this account; enable it")
	default:
		r.doubt("%s is not known: %s", what, err)
	}
}

// compare compares the settings of the stream with those of the sink.
func (s *Sink) compare(c *jetstream.StreamConfig, pattern string, r *report) {
	r.fact("stream %s: %s, replicas %d, discard %s, duplicate window %s", c.Name, c.Storage, c.Replicas, c.Discard, c.Duplicates)
	if c.MaxMsgSize > 0 {
		r.fact("max_msg_size %d", c.MaxMsgSize)
	}
	if !anyCovers(c.Subjects, pattern) {
		r.mistake("stream %s has the subjects %s, not all of %s", c.Name, strings.Join(c.Subjects, ", "), pattern)
	}
	if c.NoAck {
		r.mistake("stream %s has no_ack and acknowledges nothing; remove it", c.Name)
	}
	if c.Sealed {
		r.mistake("stream %s is sealed", c.Name)
	}
	switch {
	case s.atomic && !c.AllowAtomicPublish:
		r.mistake("stream %s has no allow_atomic, which batch: atomic needs", c.Name)
	case !s.atomic && c.AllowAtomicPublish:
		r.fact("batch: atomic is possible")
	}
	if longest := s.maxBackoff + s.timeout; s.maxBackoff > 0 && c.Duplicates < longest {
		r.doubt("duplicate window %s of stream %s is shorter than backoff.max and request-timeout (%s), so a retry may be stored twice; make it longer",
			c.Duplicates, c.Name, longest)
	}
}
