package admin

import (
	"net/http"
	"net/http/pprof"
)

// profileEndpoints serves the profiles of net/http/pprof except the command line, because
// that may hold secrets.
func (h *handler) profileEndpoints(mux *http.ServeMux) {
	for path, serve := range map[string]http.HandlerFunc{
		"GET /debug/pprof/":        pprof.Index, // also serves each profile by name
		"GET /debug/pprof/profile": pprof.Profile,
		"GET /debug/pprof/symbol":  pprof.Symbol,
		"GET /debug/pprof/trace":   pprof.Trace,
	} {
		mux.Handle(path, h.requireToken(serve))
	}
}
