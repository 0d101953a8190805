package admin

import "net/http"

// Handler returns the handler of the endpoints, as Run serves it.
func (s *Server) Handler() http.Handler { return s.served }
