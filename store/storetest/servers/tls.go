package servers

// TLS restarts the server with TLS for localhost and 127.0.0.1, and returns the file of the
// CA that signed its certificate. The test is skipped if the server is built without TLS,
// as version 18 is.
func (s *Server) TLS() (caFile string) {
	s.tb.Helper()
	var library string
	conn := Connect(s.tb, s.URL)
	if err := conn.QueryRow(s.tb.Context(), "SHOW ssl_library").Scan(&library); err != nil {
		s.tb.Fatal(err)
	}

	closeConn(conn)
	if library == "" {
		s.tb.Skipf("these programs of PostgreSQL %d are built without TLS", s.version)
	}

	caFile, certFile, keyFile := s.certify()
	s.Restart(map[string]string{"ssl": "on", "ssl_cert_file": certFile, "ssl_key_file": keyFile})
	return caFile
}
