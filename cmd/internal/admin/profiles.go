package admin

import (
	"net/http"
	"net/http/pprof"
)

// profileEndpoints serves profiles as net/http/pprof has them, but for the command
// line, which may hold what is nobody's business.
func (h *handler) profileEndpoints(mux *http.ServeMux) {
	for path, serve := range map[string]http.HandlerFunc{
		"GET /debug/pprof/":        pprof.Index, // each profile by its name, too
		"GET /debug/pprof/profile": pprof.Profile,
		"GET /debug/pprof/symbol":  pprof.Symbol,
		"GET /debug/pprof/trace":   pprof.Trace,
	} {
		mux.Handle(path, h.requireToken(serve))
	}
}
