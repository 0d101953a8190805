package camunda_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/camunda"
	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// grpcGateway is a server with the two calls of the gateway that the sink makes. Stop and Start keep
// its messages.
type grpcGateway struct {
	tb     testing.TB
	addr   string
	server *grpc.Server
	ended  sync.WaitGroup

	mu       sync.Mutex
	secure   *tls.Config // nil for none
	failure  error       // the answer to all calls, nil for none
	token    string      // what a call must have, "" for anything
	delay    time.Duration
	ids      []string
	requests []map[protowire.Number]string // fields with a length
	ttl      uint64
}

func serveGRPC(tb testing.TB) *grpcGateway {
	tb.Helper()
	g := &grpcGateway{tb: tb, addr: "127.0.0.1:0"}
	g.Start()
	tb.Cleanup(g.Stop)
	return g
}

func (g *grpcGateway) Start() {
	l, err := net.Listen("tcp", g.addr)
	if err != nil {
		g.tb.Fatal(err)
	}
	g.addr = l.Addr().String()
	options := []grpc.ServerOption{grpc.ForceServerCodecV2(camunda.RawCodec{}), grpc.UnknownServiceHandler(g.handle)}
	if g.secure != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(g.secure)))
	}
	server := grpc.NewServer(options...)
	g.server = server
	g.ended.Go(func() { _ = server.Serve(l) }) // until Stop
}

func (g *grpcGateway) Stop() {
	g.server.Stop()
	g.ended.Wait()
}

func (g *grpcGateway) Stored() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.ids)
}

func (g *grpcGateway) set(change func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change()
}

// handle answers one call.
func (g *grpcGateway) handle(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	var request []byte
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	head, _ := metadata.FromIncomingContext(stream.Context())
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.delay > 0 {
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-time.After(g.delay):
		}
	}
	if g.failure != nil {
		return g.failure
	}
	if g.token != "" && !slices.Equal(head.Get("authorization"), []string{g.token}) {
		return status.Error(codes.Unauthenticated, "got "+strings.Join(head.Get("authorization"), ","))
	}
	switch method {
	case "/gateway_protocol.Gateway/Topology":
		partition := []byte{0x08, 1}                                                 // partitionId 1; LEADER and HEALTHY are 0
		broker := protowire.AppendBytes([]byte{0x22}, partition)                     // partitions
		answer := protowire.AppendBytes([]byte{0x0a}, broker)                        // brokers
		answer = append(answer, 0x10, 1, 0x18, 1, 0x20, 1)                           // clusterSize, partitionsCount, replicationFactor
		return stream.SendMsg(protowire.AppendString(append(answer, 0x2a), "8.8.0")) // gatewayVersion
	case "/gateway_protocol.Gateway/PublishMessage":
		return g.publish(request, stream)
	}
	return status.Error(codes.Unimplemented, "unknown call "+method)
}

// publish keeps a message.
func (g *grpcGateway) publish(request []byte, stream grpc.ServerStream) error {
	fields := map[protowire.Number]string{}
	for len(request) > 0 {
		number, kind, n := protowire.ConsumeTag(request)
		request = request[n:]
		if kind == protowire.VarintType {
			g.ttl, n = protowire.ConsumeVarint(request)
		} else {
			fields[number], n = protowire.ConsumeString(request)
		}
		request = request[n:]
	}
	same := func(m map[protowire.Number]string) bool {
		return m[1] == fields[1] && m[2] == fields[2] && m[4] == fields[4]
	}
	if slices.ContainsFunc(g.requests, same) {
		return status.Error(codes.AlreadyExists, "Command 'PUBLISH' rejected with code 'ALREADY_EXISTS'")
	}
	g.requests = append(g.requests, fields)
	g.ids = append(g.ids, fields[4])
	return stream.SendMsg(protowire.AppendVarint([]byte{0x08}, 2251799813685249)) // key
}

func (g *grpcGateway) config() camunda.Config {
	cfg := config("grpc://" + g.addr)
	cfg.Name = "{kind}"
	return cfg
}

// answers returns a fault in which every call fails with a status.
func answers(code codes.Code, text string, class sink.Class) sinktest.Fault {
	return sinktest.Fault{Name: code.String() + " " + text, Class: class, Break: func(_ testing.TB, b sinktest.Broker) func() {
		g := b.(*grpcGateway)
		g.set(func() { g.failure = status.Error(code, text) })
		return func() { g.set(func() { g.failure = nil }) }
	}}
}

// sinkWith returns a fault by another configuration.
func sinkWith(name string, class sink.Class, change func(g *grpcGateway, c *camunda.Config)) sinktest.Fault {
	return sinktest.Fault{Name: name, Class: class, Sink: func(tb testing.TB, b sinktest.Broker) sink.Sink {
		g := b.(*grpcGateway)
		cfg := g.config()
		change(g, &cfg)
		return newSink(tb, cfg)
	}}
}

// TestGRPCSuite: the gRPC API as a broker, with every status that Camunda documents and some others.
func TestGRPCSuite(t *testing.T) {
	sinktest.RunBroker(t, sinktest.BrokerHarness{
		New: func(tb testing.TB) (sink.Sink, sinktest.Broker) {
			g := serveGRPC(tb)
			return newSink(tb, g.config()), g
		},
		Kind: "order", Mode: sink.Atomic, Secrets: []string{canary},
		Faults: []sinktest.Fault{
			answers(codes.InvalidArgument, "Property 'variables' is invalid", sink.Rejected),
			answers(codes.InvalidArgument, "Expected to handle gRPC request PublishMessage with tenant identifier 'a'", sink.Misconfigured),
			answers(codes.ResourceExhausted, "backpressure", sink.Unavailable),
			answers(codes.ResourceExhausted, "gRPC message exceeds maximum size 4194304: 5000000", sink.Rejected),
			answers(codes.Unavailable, "partition has no leader", sink.Unavailable),
			answers(codes.DeadlineExceeded, "Time out between gateway and broker", sink.Unavailable),
			answers(codes.Aborted, "the connection was cut", sink.Unavailable),
			answers(codes.PermissionDenied, "FORBIDDEN", sink.Misconfigured),
			answers(codes.Unimplemented, "unknown service", sink.Misconfigured),
			answers(codes.Internal, "Unexpected error", sink.Refused),
			answers(codes.FailedPrecondition, "INVALID_STATE", sink.Refused),
			answers(codes.Unknown, "", sink.Refused),
			sinkWith("a wrong token", sink.Misconfigured, func(g *grpcGateway, c *camunda.Config) {
				g.set(func() { g.token = "Bearer other" })
				c.Token = canary
			}),
			sinkWith("a wrong password", sink.Misconfigured, func(g *grpcGateway, c *camunda.Config) {
				g.set(func() { g.token = "Bearer other" })
				c.User, c.Password = "relay", canary
			}),
			sinkWith("TLS without TLS", sink.Misconfigured, func(_ *grpcGateway, c *camunda.Config) { c.URL = "grpcs" + c.URL[len("grpc"):] }),
			sinkWith("no answer", sink.Unavailable, func(g *grpcGateway, c *camunda.Config) {
				g.set(func() { g.delay = time.Minute })
				c.RequestTimeout = 300 * time.Millisecond
			}),
			sinkWith("another CA", sink.Misconfigured, func(g *grpcGateway, c *camunda.Config) {
				g.startTLS()
				c.URL = sink.Secret("grpcs://" + g.addr)
			}),
			sinkWith("no client certificate", sink.Misconfigured, func(g *grpcGateway, c *camunda.Config) {
				c.URL, c.CAFile = sink.Secret("grpcs://"+g.addr), g.startTLS().ca
			}),
		},
	})
}

// files are PEM files.
type files struct{ ca, cert, key string }

// startTLS restarts the gateway with TLS and the demand for a certificate. With TLS 1.3 a client may
// write to a closed connection before it reads why.
func (g *grpcGateway) startTLS() (of files) {
	g.tb.Helper()
	other := httptest.NewUnstartedServer(nil)
	other.StartTLS() // for its certificate
	own := other.TLS.Certificates[0]
	other.Close()
	g.Stop()
	g.secure = &tls.Config{Certificates: []tls.Certificate{own}, ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12}
	g.Start()

	key, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	if err != nil {
		g.tb.Fatal(err)
	}
	dir := g.tb.TempDir()
	write := func(name, kind string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600); err != nil {
			g.tb.Fatal(err)
		}
		return path
	}
	return files{
		ca: write("ca.pem", "CERTIFICATE", own.Certificate[0]), cert: write("cert.pem", "CERTIFICATE", own.Certificate[0]),
		key: write("key.pem", "PRIVATE KEY", key),
	}
}

// The message and its receipt, over TLS with a client certificate and a user.
func TestGRPCMessage(t *testing.T) {
	g := serveGRPC(t)
	of := g.startTLS()
	g.token = "Basic cmVsYXk6Y2FuYXJ5LTdmM2QyYTkxYzQ="
	cfg := g.config()
	cfg.URL, cfg.CAFile, cfg.CertFile, cfg.KeyFile = sink.Secret("grpcs://"+g.addr), of.ca, of.cert, of.key
	cfg.User, cfg.Password, cfg.Receipts = "relay", canary, true
	cfg.Name, cfg.TenantID = "", "{attr.tenant}"
	s := newSink(t, cfg)
	if out := s.Probe(t.Context(), ""); out.Class != sink.Delivered || !strings.Contains(out.Detail, "gateway 8.8.0, brokers 1, partitions 1") {
		t.Errorf("the probe: %+v", out)
	}
	res := s.Deliver(t.Context(), []sink.Message{row("1")})
	if res.Class != sink.Delivered || len(res.Receipt) != 1 || res.Receipt[0].Value != "2251799813685249" {
		t.Errorf("%+v", res)
	}
	if res = s.Deliver(t.Context(), []sink.Message{row("1")}); res.Class != sink.Delivered || res.Skipped != 1 {
		t.Errorf("again: %+v", res)
	}
	want := map[protowire.Number]string{1: "OrderPaid", 2: "order-7", 4: "1", 5: `{"total":1.0}`, 6: "acme"}
	if len(g.requests) != 1 || g.ttl != uint64(time.Hour.Milliseconds()) {
		t.Fatalf("%d requests, time to live %d", len(g.requests), g.ttl)
	}
	for number, text := range want {
		if got := g.requests[0][number]; got != text {
			t.Errorf("field %d is %q, want %q", number, got, text)
		}
	}
}

// The detail of a failure has no text of the gateway if it must not be shown.
func TestGRPCErrorDetail(t *testing.T) {
	g := serveGRPC(t)
	g.failure = status.Error(codes.InvalidArgument, "total is 7")
	cfg := g.config()
	cfg.ErrorDetail = sink.ErrorDetailStatus
	out := newSink(t, cfg).Deliver(t.Context(), []sink.Message{row("1")}).Outcome
	if out.Class != sink.Rejected || !strings.Contains(out.Detail, "InvalidArgument") || strings.Contains(out.Detail, "total") {
		t.Errorf("%+v", out)
	}
}
