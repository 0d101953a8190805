package redis

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/event"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/tlsfiles"
	"github.com/sluicebox/sluicebox/store"
)

// addAll appends messages to the stream KEYS[1] until one fails. ARGV[1] is the length to trim to,
// 0 for none. Behind it each message is the number of its arguments and the arguments. The answer
// is the list of the ids, and the error.
const addAll = `
local ids, i = {}, 2
while i <= #ARGV do
  local n = tonumber(ARGV[i])
  local args = {'XADD', KEYS[1]}
  if ARGV[1] ~= '0' then
    args[3], args[4], args[5] = 'MAXLEN', '~', ARGV[1]
  end
  args[#args + 1] = '*'
  for j = i + 1, i + n do
    args[#args + 1] = ARGV[j]
  end
  local id = redis.pcall(unpack(args))
  if type(id) == 'table' then
    return {ids, id.err}
  end
  ids[#ids + 1] = id
  i = i + n + 1
end
return {ids}`

// run are the messages of a lane that are sent in one command.
type run struct {
	items   []sink.Outcome // of the lane
	n       int            // the messages of the command are the first n
	stream  string
	command []any
	cmd     *redis.Cmd

	// large is the size of a single message that the server may not accept, 0 for others.
	large int
}

// minBulkLimit is the lowest limit of a message that a server can be given (proto-max-bulk-len).
const minBulkLimit = 1 << 20

// prepare makes the command for the messages of a lane, up to the first that can never be sent, and
// sets the outcomes of that and of those behind it. A message larger than any that the server
// has accepted, and than the lowest limit, is alone: the server may close its connection.
func (s *Sink) prepare(msgs []sink.Message, items []sink.Outcome) run {
	r := run{items: items}
	var all [][]any
	for i := range msgs {
		stream, args, reason := s.entry(&msgs[i])
		if reason != "" {
			fail(items, i, sink.Outcome{Class: sink.Rejected, Reason: store.ReasonBadRequest, Detail: redact.OneLine("not sent: " + reason)})
			break
		}
		if i > 0 && stream != r.stream { // lanes of one endpoint have one stream
			fail(items, i, sink.Outcome{Class: sink.NotSent})
			break
		}
		size := largest(args)
		if size <= minBulkLimit || int64(size) <= s.accepted.Load() {
			size = 0
		}
		if size > 0 && i > 0 {
			fail(items, i, sink.Outcome{Class: sink.NotSent})
			break
		}
		r.stream, r.n, all = stream, i+1, append(all, args)
		if r.large = size; size > 0 && len(msgs) > 1 {
			fail(items, 1, sink.Outcome{Class: sink.NotSent})
			break
		}
	}
	switch {
	case r.n == 1:
		args := []any{"XADD", r.stream}
		if s.cfg.MaxLength > 0 {
			args = append(args, "MAXLEN", "~", s.cfg.MaxLength)
		}
		r.command = append(append(args, "*"), all[0]...)
	case r.n > 1:
		r.command = []any{"EVAL", addAll, 1, r.stream, s.cfg.MaxLength}
		for _, one := range all {
			r.command = append(append(r.command, len(one)), one...)
		}
	}
	return r
}

// largest returns the size of the largest of the arguments, which the server limits.
func largest(args []any) (size int) {
	for _, arg := range args {
		switch arg := arg.(type) {
		case string:
			size = max(size, len(arg))
		case []byte:
			size = max(size, len(arg))
		}
	}
	return size
}

// entry returns the stream of a message, and the fields and values of its entry.
func (s *Sink) entry(m *sink.Message) (stream string, args []any, reason string) {
	if stream, reason = streamOf(&s.stream, m); reason != "" {
		return "", nil, reason
	}
	msg, reason := s.encoder.Encode(m)
	if reason != "" {
		return "", nil, reason
	}
	if len(msg.Body) > maxMessage {
		return "", nil, fmt.Sprintf("message of %d bytes exceeds %d", len(msg.Body), maxMessage)
	}
	args = []any{fieldID, event.ID(s.cfg.IDPrefix, m.ID), fieldData, msg.Body}
	for _, h := range msg.Headers {
		args = append(args, h.Name, h.Value)
	}
	return stream, args, ""
}

// settle sets the outcomes of a run by its answer.
func (s *Sink) settle(r run) {
	var ids []any
	answer, err := r.cmd.Result()
	if err != nil && !isAnswer(err) { // the connection ended behind the answer to another command
		fail(r.items, 0, s.failure(err))
		return
	}
	refused := "ERR answer is neither an id nor that of the script"
	switch value := answer.(type) {
	case string: // of XADD
		ids = []any{value}
	case []any: // of the script
		if len(value) > 0 {
			ids, _ = value[0].([]any)
		}
		if len(value) > 1 {
			refused, _ = value[1].(string)
		}
	}
	if err != nil {
		refused = err.Error()
	}
	stored := min(len(ids), r.n)
	for i := range stored {
		r.items[i] = sink.Outcome{Class: sink.Delivered}
		if id, ok := ids[i].(string); ok && s.cfg.Receipts {
			r.items[i].Receipt = []sink.Receipt{{Name: "stream", Value: r.stream}, {Name: "id", Value: id}}
		}
	}
	if stored == r.n {
		if r.large > 0 {
			s.accepted.Store(int64(r.large))
		}
		return
	}
	class, reason, hint := classOf(refused)
	if class == sink.Rejected {
		s.accepted.Store(0) // the limit was lowered
	}
	fail(r.items, stored, s.outcome(class, reason, "stream %s: %s%s", r.stream, refused, hint))
}

// classOf returns the class of an error that the server answered, and what to do.
func classOf(text string) (class sink.Class, reason store.Reason, hint string) {
	code, _, _ := strings.Cut(text, " ")
	switch strings.TrimPrefix(code, "-") {
	case "LOADING", "BUSY", "OOM", "MISCONF", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN":
		return sink.Unavailable, store.ReasonGateway, ""
	case "READONLY":
		return sink.Unavailable, store.ReasonGateway, "; set url to the primary, unless it is being replaced"
	case "NOAUTH", "WRONGPASS":
		return sink.Misconfigured, store.ReasonUnauthorized, "; check user and password"
	case "NOPERM":
		return sink.Misconfigured, store.ReasonForbidden, "; allow XADD and EVAL on the stream"
	case "WRONGTYPE":
		return sink.Misconfigured, store.ReasonBadRequest, "; name a stream"
	case "MOVED", "ASK", "CROSSSLOT":
		return sink.Misconfigured, store.ReasonBadRequest, "; the server is a node of a cluster, which is not supported"
	case "NOSCRIPT", "DENIED", "NOPROTO":
		return sink.Misconfigured, store.ReasonForbidden, ""
	}
	switch {
	case strings.HasPrefix(text, "ERR max number of clients"):
		return sink.Unavailable, store.ReasonGateway, ""
	case strings.HasPrefix(text, "ERR The user executing the script"):
		return sink.Misconfigured, store.ReasonForbidden, "; allow XADD on the stream"
	case strings.HasPrefix(text, "ERR unknown command"), strings.HasPrefix(text, "ERR DB index"), strings.HasPrefix(text, "ERR invalid DB"),
		strings.HasPrefix(text, "ERR AUTH"), strings.HasPrefix(text, "ERR Client sent AUTH"):
		return sink.Misconfigured, store.ReasonBadRequest, ""
	case strings.HasPrefix(text, "ERR Protocol error: invalid bulk length"):
		return sink.Rejected, store.ReasonBadRequest, "; the message exceeds proto-max-bulk-len of the server"
	}
	return sink.Refused, store.ReasonInternal, ""
}

// cancelledError is a request that its context ended. It may still be executed.
type cancelledError struct{ cause error }

func (e *cancelledError) Error() string { return e.cause.Error() }

// isAnswer reports whether an error is what the server answered.
func isAnswer(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer)
}

// failure returns the outcome of a request without an answer, or of a connection that the server
// refused.
func (s *Sink) failure(err error) sink.Outcome {
	var cancelled *cancelledError
	dial := (*net.OpError)(nil)
	switch {
	case errors.As(err, &dial) && dial.Op == "dial":
		return s.outcome(sink.Unavailable, store.ReasonGateway, "%s", err)
	case errors.As(err, &cancelled) && errors.Is(err, context.Canceled):
		return s.outcome(sink.Unavailable, store.ReasonGateway, "request canceled")
	case errors.As(err, &cancelled):
		return s.outcome(sink.Unavailable, store.ReasonGateway, "%s", err)
	case isAnswer(err):
		var answer redis.Error
		errors.As(err, &answer) // without what the client says about it
		class, reason, hint := classOf(answer.Error())
		return s.outcome(class, reason, "%s%s", answer.Error(), hint)
	case errors.As(err, new(*tls.CertificateVerificationError)), errors.As(err, new(x509.UnknownAuthorityError)),
		errors.As(err, new(tls.RecordHeaderError)), errors.As(err, new(tls.AlertError)):
		return s.outcome(sink.Misconfigured, store.ReasonBadRequest, "TLS: %s", tlsfiles.Explain(err.Error()))
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return s.outcome(sink.Unavailable, store.ReasonGateway, "%s", s.timeoutText())
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return s.outcome(sink.Unavailable, store.ReasonGateway, "server closed the connection")
	}
	return s.outcome(sink.Unavailable, store.ReasonGateway, "%s", tlsfiles.Explain(err.Error()))
}

// largeFailure returns the outcome of a request with one large message. A server that does not accept it
// closes the connection, and its answer may be lost. If the server answers another request
// then, the message is suspect.
func (s *Sink) largeFailure(ctx context.Context, size int, err error) sink.Outcome {
	out := s.failure(err)
	closed := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
	if !closed || !s.isAlive(ctx) {
		return out
	}
	out = s.outcome(sink.Unavailable, store.ReasonInternal,
		"server closed the connection on a message of %d bytes; see its proto-max-bulk-len and client-query-buffer-limit", size)
	out.Suspect = true
	return out
}

// isAlive reports whether the server answers.
func (s *Sink) isAlive(ctx context.Context) bool {
	pipe := s.client.Pipeline()
	ping := pipe.Ping(ctx)
	return s.exec(ctx, pipe) == nil && (ping.Err() == nil || strings.HasPrefix(ping.Err().Error(), "NOPERM"))
}

// timeoutText says that there is no answer. A deadline of the connection may end before the one of
// its context.
func (s *Sink) timeoutText() string {
	return fmt.Sprintf("no answer within request-timeout (%s)", s.cfg.timeout())
}

// outcome returns an outcome whose detail names the server and holds no secret.
func (s *Sink) outcome(class sink.Class, reason store.Reason, format string, args ...any) sink.Outcome {
	return sink.Outcome{Class: class, Reason: reason, Detail: s.redactor().OneLine("Redis " + s.addr + ": " + fmt.Sprintf(format, args...))}
}
