// Package tracetest has a server of OTLP for tests.
package tracetest

import (
	"context"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// Server takes spans by OTLP over gRPC or HTTP, as a collector does.
type Server struct {
	collector.UnimplementedTraceServiceServer

	// URL is the endpoint.
	URL string

	mu       sync.Mutex
	spans    []*trace.Span
	resource map[string]string
	grown    chan struct{} // closed and replaced with each export
}

// New starts a server that ends with the test. protocol is http or grpc.
func New(t testing.TB, protocol string) *Server {
	t.Helper()
	s := &Server{resource: map[string]string{}, grown: make(chan struct{})}
	if protocol == "http" {
		srv := httptest.NewServer(http.HandlerFunc(s.post))
		t.Cleanup(srv.Close)
		s.URL = srv.URL
		return s
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	collector.RegisterTraceServiceServer(srv, s)
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	t.Cleanup(func() { srv.Stop(); <-done })
	s.URL = "http://" + l.Addr().String()
	return s
}

// Export implements collector.TraceServiceServer.
func (s *Server) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range req.GetResourceSpans() {
		for _, a := range r.GetResource().GetAttributes() {
			s.resource[a.GetKey()] = a.GetValue().GetStringValue()
		}
		for _, in := range r.GetScopeSpans() {
			s.spans = append(s.spans, in.GetSpans()...)
		}
	}
	close(s.grown)
	s.grown = make(chan struct{})
	return &collector.ExportTraceServiceResponse{}, nil
}

// post takes spans over HTTP.
func (s *Server) post(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	var in collector.ExportTraceServiceRequest
	if err != nil || req.URL.Path != "/v1/traces" || proto.Unmarshal(body, &in) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	_, _ = s.Export(req.Context(), &in)
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// Spans returns the spans so far, and a channel that is closed when there are more.
func (s *Server) Spans() (all []*trace.Span, grown <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.spans), s.grown
}

// Resource returns an attribute of the resource that sent the latest spans.
func (s *Server) Resource(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.resource[name]
}

// Traceparent returns the W3C header of a span.
func Traceparent(s *trace.Span) string {
	return "00-" + hex.EncodeToString(s.GetTraceId()) + "-" + hex.EncodeToString(s.GetSpanId()) + "-01"
}
