package camunda

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/tlsfiles"
	"github.com/sluicebox/sluicebox/store"
)

const (
	// defaultPort is that of the gateway's gRPC API.
	defaultPort = "26500"

	dialTimeout = 5 * time.Second

	// A request while there is no connection fails at once, and the lane waits. So the client's own
	// pauses between dials are short.
	minDialPause, maxDialPause = 50 * time.Millisecond, time.Second

	// A gateway closes a connection that pings more often than each 30 s (network.
	// minKeepAliveInterval). Camunda's own clients ping each 45 s.
	pingInterval, pingTimeout = 45 * time.Second, 10 * time.Second
)

// grpcAPI is the gRPC API. All senders share its connection, which the first request makes.
type grpcAPI struct {
	target, where string
	options       []grpc.DialOption
	timeout       time.Duration
	timeToLive    time.Duration
	maxBytes      int
	receipts      bool
	fixedTenant   bool

	mu   sync.Mutex
	conn *grpc.ClientConn // nil before the first request
}

// newGRPC returns the gRPC API at an address. It starts nothing.
func newGRPC(cfg *Config, to *url.URL) (*grpcAPI, error) {
	secure := insecure.NewCredentials()
	if to.Scheme == "grpcs" {
		c, err := tlsfiles.Config(cfg.CAFile, cfg.CertFile, cfg.KeyFile)
		if err != nil {
			return nil, err
		}
		secure = credentials.NewTLS(c)
	}
	addr := to.Host
	if to.Port() == "" {
		addr = net.JoinHostPort(to.Hostname(), defaultPort)
	}
	settings := cfg.http()
	return &grpcAPI{
		target: "dns:///" + addr, where: to.Scheme + "://" + addr,
		options: []grpc.DialOption{
			grpc.WithTransportCredentials(secure), grpc.WithUserAgent(settings.UserAgent),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{}), grpc.MaxCallRecvMsgSize(maxTopology)),
			grpc.WithDisableRetry(), grpc.WithDisableServiceConfig(),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: minDialPause, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxDialPause},
				MinConnectTimeout: min(dialTimeout, settings.RequestTimeout),
			}),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingInterval, Timeout: pingTimeout}),
		},
		timeout: settings.RequestTimeout, timeToLive: cfg.TimeToLive, maxBytes: cfg.MaxRequestBytes,
		receipts: cfg.Receipts, fixedTenant: isFixed(cfg.TenantID),
	}, nil
}

func (g *grpcAPI) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.conn != nil {
		_ = g.conn.Close() // no request runs
	}
}

func (g *grpcAPI) calls() (publish, topology string) {
	return "PublishMessage of " + g.where, "Topology of " + g.where
}

// connection returns the connection, which the client makes and makes again in the background.
func (g *grpcAPI) connection() (*grpc.ClientConn, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.conn != nil {
		return g.conn, nil
	}
	conn, err := grpc.NewClient(g.target, g.options...)
	if err == nil {
		g.conn = conn
	}
	return conn, err
}

// call makes one request. The client repeats it only if the gateway has not seen it.
func (g *grpcAPI) call(ctx context.Context, method, authorization string, request []byte) (answer []byte, err error) {
	conn, err := g.connection()
	if err != nil {
		return nil, err
	}
	cause := fmt.Errorf("no answer within request-timeout (%s)", g.timeout)
	attempt, cancel := context.WithTimeoutCause(ctx, g.timeout, cause)
	defer cancel()
	if authorization != "" {
		attempt = metadata.AppendToOutgoingContext(attempt, "authorization", authorization)
	}
	err = conn.Invoke(attempt, method, request, &answer)
	switch {
	case err == nil:
		return answer, nil
	case ctx.Err() != nil:
		return nil, status.Errorf(codes.Canceled, "request canceled: %v", context.Cause(ctx))
	case attempt.Err() != nil:
		return nil, status.Error(codes.DeadlineExceeded, cause.Error())
	}
	return nil, err
}

func (g *grpcAPI) publish(ctx context.Context, msg *message, authorization string, red *redact.Redactor) sink.Result {
	request := msg.proto(g.timeToLive)
	if len(request) > g.maxBytes {
		return tooLarge(len(request), g.maxBytes)
	}
	name, _ := g.calls()
	answer, err := g.call(ctx, publishMethod, authorization, request)
	if status.Code(err) == codes.AlreadyExists {
		return repeated()
	}
	if err != nil {
		return sink.Result{Outcome: g.failure(name, err, red)}
	}
	key, err := readKey(answer)
	if err != nil || key == 0 {
		return sink.Result{Outcome: sink.Outcome{
			Class: sink.Misconfigured, Reason: store.ReasonInternal,
			Detail: red.OneLine(name + ": answer not from the API of Camunda 8 (no key)"),
		}}
	}
	return delivered(strconv.FormatInt(key, 10), g.receipts)
}

func (g *grpcAPI) topology(ctx context.Context, authorization string, red *redact.Redactor) (*topology, sink.Outcome) {
	_, name := g.calls()
	answer, err := g.call(ctx, topologyMethod, authorization, nil)
	if err != nil {
		out := g.failure(name, err, red)
		if out.Class == sink.Rejected {
			out.Class = sink.Refused // no row is to blame
		}
		return nil, out
	}
	of, err := readTopology(answer)
	if err != nil || of.GatewayVersion == "" {
		return nil, sink.Outcome{
			Class: sink.Misconfigured, Reason: store.ReasonInternal,
			Detail: red.OneLine(name + ": answer not from the API of Camunda 8 (no gatewayVersion)"),
		}
	}
	return &of, sink.Outcome{Class: sink.Delivered, Detail: red.OneLine(name)}
}

// failure returns the outcome of a request that failed.
func (g *grpcAPI) failure(name string, err error, red *redact.Redactor) sink.Outcome {
	s := status.Convert(err)
	class, reason := classOf(s.Code())
	class = refinedClass(class, s.Message(), g.fixedTenant)
	if class == sink.Unavailable && strings.Contains(s.Message(), "tls: ") { // an error of package crypto/tls
		class, reason = sink.Misconfigured, store.ReasonBadRequest
	}
	text := name + ": " + s.Code().String()
	if !red.HidesBody() {
		text += ": " + tlsfiles.Explain(s.Message())
	}
	return sink.Outcome{Class: class, Reason: reason, Detail: red.OneLine(text)}
}

// classOf maps a status of gRPC to the class of the outcome and the reason that is stored with a
// FAILED row. Camunda documents which it answers ("gateway service", technical error handling).
func classOf(code codes.Code) (sink.Class, store.Reason) {
	switch code {
	case codes.OK, codes.AlreadyExists:
		return sink.Delivered, store.ReasonNone
	case codes.InvalidArgument, codes.OutOfRange:
		return sink.Rejected, store.ReasonBadRequest
	case codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded, codes.Canceled, codes.Aborted:
		return sink.Unavailable, store.ReasonGateway
	case codes.Unauthenticated:
		return sink.Misconfigured, store.ReasonUnauthorized
	case codes.PermissionDenied:
		return sink.Misconfigured, store.ReasonForbidden
	case codes.Unimplemented, codes.NotFound: // another program, or a gateway without the call
		return sink.Misconfigured, store.ReasonBadRequest
	}
	return sink.Refused, store.ReasonInternal
}
