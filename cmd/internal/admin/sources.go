package admin

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/sluicebox/sluicebox"
	"github.com/sluicebox/sluicebox/cmd/internal/admin/console"
)

// SourceStatus is one source of a process with several, in short.
type SourceStatus struct {
	Name     string         `json:"name"`
	Ready    bool           `json:"ready"`
	IsLeader bool           `json:"is_leader"`
	Leader   string         `json:"leader"` // identifies the leader's process
	Mode     sluicebox.Mode `json:"mode"`
	Detail   string         `json:"detail"` // the failed checks, or the role
	Lag      Lag            `json:"lag"`
	Captured Rates          `json:"captured_per_second"`

	// Role marks a role of a process with scale, which has no endpoints of its own.
	Role bool `json:"role,omitempty"`
}

// SourceList is the response of GET /api/v1/sources.
type SourceList struct {
	Process string         `json:"process"`
	Version string         `json:"version"`
	Sources []SourceStatus `json:"sources"`
}

// Sources are the sources of a process. Its methods return at once and are safe for concurrent use.
type Sources interface {
	// List returns them in the order of the configuration.
	List() SourceList

	// Handler returns the endpoints of a source, nil for an unknown name.
	Handler(name string) http.Handler
}

// SourcePrefix is the path of the endpoints of a source, before its name. Those of a process with one
// source have no prefix.
const SourcePrefix = "/sources/"

const sourcesPath = "/api/v1/sources"

// sourcesIndex is the response of / of a process with several sources.
const sourcesIndex = `Sluicebox
/livez               the process runs
/readyz              every source works or stands by
/readyz?verbose      each source by name
/leader              200 while the process leads a source
/metrics             for Prometheus, with the label source
/api/v1/sources      the sources
/sources/NAME/       the endpoints of one source: /sources/NAME/api/v1/status and so on
/api/v1/session      who calls; POST logs in
`

// NewSources returns a server for a process with several sources. Of the configuration it uses the
// address, the access and the metrics. It starts nothing.
func NewSources(cfg Config, of Sources) *Server {
	h := &handler{status: sourceChecks{of}, log: cfg.Log}
	h.access.Store(accessOf(&cfg))
	return &Server{cfg: cfg, handler: h, served: h.sourceEndpoints(cfg, of)}
}

// Handler returns the endpoints, for a server with others beside them.
func (s *Server) Handler() http.Handler { return s.served }

// sourceEndpoints returns the endpoints of the process, and below SourcePrefix those of its sources.
func (h *handler) sourceEndpoints(cfg Config, of Sources) http.Handler {
	mux := http.NewServeMux()
	h.processEndpoints(mux, cfg, console.Sources(), sourcesIndex)
	mux.HandleFunc("GET /leader", h.leader(sourceChecks{of}))
	h.get(mux, sourcesPath, func(_ context.Context, q *query) (any, error) {
		return of.List(), q.finish()
	})
	mux.HandleFunc(SourcePrefix+"{source}/", func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("source")
		if to := of.Handler(name); to != nil {
			http.StripPrefix(SourcePrefix+name, to).ServeHTTP(w, r)
			return
		}
		h.unknownSource(w, r, fmt.Sprintf("unknown source %q", name), of)
	})
	mux.HandleFunc(apiPath, func(w http.ResponseWriter, r *http.Request) {
		h.unknownSource(w, r, "this process has several sources: name one, "+SourcePrefix+"NAME"+r.URL.Path+" (--source-name NAME)", of)
	})
	return h.protect(mux)
}

// unknownSource refuses a request that names no source. The names need the token.
func (h *handler) unknownSource(w http.ResponseWriter, r *http.Request, problem string, of Sources) {
	h.api(func(http.ResponseWriter, *http.Request) (any, error) {
		var names []string
		list := of.List().Sources
		for i := range list {
			if !list[i].Role {
				names = append(names, list[i].Name)
			}
		}
		if len(names) == 0 {
			return nil, badRequest("%s; it has none at the moment", problem)
		}
		text := strings.Join(names[:min(len(names), maxNamedSources)], ", ")
		if more := len(names) - maxNamedSources; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		return nil, badRequest("%s; the sources are %s", problem, text)
	}).ServeHTTP(w, r)
}

// maxNamedSources is the most names of sources in an error.
const maxNamedSources = 20

// sourceChecks reports each source as a check.
type sourceChecks struct{ Sources }

// Checks implements Status.
func (s sourceChecks) Checks() []sluicebox.Check {
	list := s.List().Sources
	checks := make([]sluicebox.Check, len(list))
	for i := range list {
		checks[i] = sluicebox.Check{Name: list[i].Name, OK: list[i].Ready, Detail: list[i].Detail}
	}
	return checks
}

// Leader implements Leader: the process is one that leads a source.
func (s sourceChecks) Leader() (leads bool, detail string) {
	n, list := 0, s.List().Sources
	for i := range list {
		if list[i].IsLeader {
			n++
		}
	}
	return n > 0, fmt.Sprintf("leads %d of %d sources", n, len(list))
}

// Sources returns the sources of a process with several. A relay with one has no such endpoint.
func (c *Client) Sources(ctx context.Context) (SourceList, error) {
	return call[SourceList](ctx, c, http.MethodGet, sourcesPath, nil)
}

// OfSource returns a client of one source. An empty name is the process. Close the first one only.
func (c *Client) OfSource(name string) *Client {
	if name == "" {
		return c
	}
	of := *c
	of.base += strings.TrimSuffix(SourcePrefix, "/") + "/" + name
	return &of
}
