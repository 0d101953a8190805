package camunda_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// gateway is a server with the two operations of Camunda's REST API that the sink uses. It fails
// the test on a request that the OpenAPI document of Camunda 8.8 (MessagePublicationRequest,
// getTopology) does not allow, and answers as the document says.
type gateway struct {
	*httptest.Server
	tb testing.TB

	mu            sync.Mutex
	authorization string            // what a request must have, "" for anything
	keys          map[string]string // by messageId, name and correlationKey
	messages      []publication
	topology      string
	refuse        string // the type of the rejection of all messages, "" for none
}

// publication is a MessagePublicationRequest.
type publication struct {
	Name, CorrelationKey, MessageID, TenantID string
	TimeToLive                                int64
	Variables                                 json.RawMessage
}

const healthy = `{"brokers":[{"nodeId":0,"host":"h","port":26501,"partitions":[{"partitionId":1,"role":"leader","health":"healthy"}],"version":"8.8.0"}],
	"clusterSize":1,"partitionsCount":1,"replicationFactor":1,"gatewayVersion":"8.8.0","lastCompletedChangeId":"-1"}`

func serveREST(tb testing.TB) *gateway {
	tb.Helper()
	g := &gateway{tb: tb, keys: map[string]string{}, topology: healthy}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /engine/v2/topology", g.getTopology)
	mux.HandleFunc("POST /engine/v2/messages/publication", g.publish)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		tb.Errorf("unknown operation %s %s", r.Method, r.URL)
		g.problem(w, http.StatusNotFound, "NOT_FOUND", "no operation")
	})
	g.Server = httptest.NewServer(mux)
	tb.Cleanup(g.Close)
	return g
}

// problem answers with a ProblemDetail.
func (g *gateway) problem(w http.ResponseWriter, status int, title, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, `{"type":"about:blank","title":%q,"status":%d,"detail":%q,"instance":"/v2"}`, title, status, detail)
}

func (g *gateway) json(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, text)
}

// isAllowed checks what both operations have in common.
func (g *gateway) isAllowed(w http.ResponseWriter, r *http.Request) bool {
	if accept := r.Header.Get("Accept"); !strings.Contains(accept, "application/json") || !strings.Contains(accept, "application/problem+json") {
		g.tb.Errorf("%s accepts %q, but an answer may be JSON or a problem", r.URL.Path, accept)
	}
	if r.URL.RawQuery != "" {
		g.tb.Errorf("%s has parameters: %s", r.URL.Path, r.URL.RawQuery)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.authorization != "" && r.Header.Get("Authorization") != g.authorization {
		g.problem(w, http.StatusUnauthorized, "Unauthorized", "no")
		return false
	}
	return true
}

func (g *gateway) getTopology(w http.ResponseWriter, r *http.Request) {
	if g.isAllowed(w, r) {
		g.json(w, g.topology)
	}
}

func (g *gateway) publish(w http.ResponseWriter, r *http.Request) {
	if !g.isAllowed(w, r) {
		return
	}
	if media := r.Header.Get("Content-Type"); media != "application/json" {
		g.tb.Errorf("the content type is %q", media)
	}
	m, err := parsePublication(r.Body)
	if err != nil {
		g.tb.Errorf("a request that the document does not allow: %v", err)
		g.problem(w, http.StatusBadRequest, "Bad Request", err.Error())
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch g.refuse {
	case "":
	case "INVALID_ARGUMENT":
		g.problem(w, http.StatusBadRequest, g.refuse, "Expected to handle request Publish Message with tenant identifier 'a', but multi-tenancy is disabled")
		return
	default:
		g.problem(w, http.StatusServiceUnavailable, g.refuse, "no")
		return
	}
	id := strings.Join([]string{m.TenantID, m.Name, m.CorrelationKey, m.MessageID}, "\x00")
	if g.keys[id] != "" {
		g.problem(w, http.StatusConflict, "ALREADY_EXISTS", "Command 'PUBLISH' rejected with code 'ALREADY_EXISTS'")
		return
	}
	g.keys[id] = fmt.Sprint(2251799813685249 + len(g.keys))
	g.messages = append(g.messages, m)
	g.json(w, fmt.Sprintf(`{"messageKey":%q,"tenantId":"<default>"}`, g.keys[id]))
}

// parsePublication checks the fields of a request, their types and which are required.
func parsePublication(body io.Reader) (m publication, err error) {
	d := json.NewDecoder(body)
	var fields map[string]json.RawMessage
	if err := d.Decode(&fields); err != nil {
		return m, err
	}
	if d.More() {
		return m, fmt.Errorf("a text behind the object")
	}
	types := map[string]any{
		"name": &m.Name, "correlationKey": &m.CorrelationKey, "messageId": &m.MessageID, "tenantId": &m.TenantID,
		"timeToLive": &m.TimeToLive, "variables": &m.Variables,
	}
	for name, value := range fields {
		to := types[name]
		if to == nil {
			return m, fmt.Errorf("%s is no property, and others are not allowed", name)
		}
		if err := json.Unmarshal(value, to); err != nil || string(value) == "null" {
			return m, fmt.Errorf("%s is %s", name, value)
		}
	}
	if m.Name == "" {
		return m, fmt.Errorf("name is missing")
	}
	if m.Variables != nil && m.Variables[0] != '{' {
		return m, fmt.Errorf("variables is no object")
	}
	if m.TimeToLive < 0 || m.TimeToLive > time.Hour.Milliseconds()*24*365 {
		return m, fmt.Errorf("timeToLive is %d", m.TimeToLive)
	}
	return m, nil
}

// published returns the messages that the gateway has.
func (g *gateway) published() []publication {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.messages
}

func (g *gateway) set(change func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change()
}
