package ingest

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/sluicebox/sluicebox/store"
)

// authenticate returns the client that a request comes from, nil if none. It compares the token
// with that of every client, so that the time says nothing about any of them.
func (s *Server) authenticate(r *http.Request) (found *Client) {
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		given = ""
	}
	hash := sha256.Sum256([]byte(given))
	for i := range s.cfg.Clients {
		c := &s.cfg.Clients[i]
		ok := c.Token == nil || subtle.ConstantTimeCompare(hash[:], c.Token[:]) == 1
		if ok && (c.Certificate == "" || shows(r, c.Certificate)) {
			found = c
		}
	}
	return found
}

// shows reports whether the certificate of a request's connection has a name. Its authority was
// verified when the connection was made.
func shows(r *http.Request, name string) bool {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return false
	}
	leaf := r.TLS.VerifiedChains[0][0]
	return slices.Contains(namesOf(leaf), name)
}

// namesOf returns the DNS names and URIs of a certificate, or else its common name.
func namesOf(c *x509.Certificate) []string {
	names := slices.Clone(c.DNSNames)
	for _, uri := range c.URIs {
		names = append(names, uri.String())
	}
	if names == nil {
		names = append(names, c.Subject.CommonName)
	}
	return names
}

// mayWrite reports whether the client may write an outbox.
func (c *Client) mayWrite(outbox string) bool { return slices.Contains(c.Outboxes, outbox) }

// maySend reports whether the client may write a row of a group.
func (c *Client) maySend(o *store.Outbox, group []string) bool {
	if len(c.Tenants) == 0 || !hasTenants(o) {
		return true
	}
	return len(group) > 0 && slices.ContainsFunc(c.Tenants, func(tenant int) bool { return strconv.Itoa(tenant) == group[0] })
}
