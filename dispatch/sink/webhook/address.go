package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/egress"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/event"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/httpsink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/redact"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/template"
	"github.com/sluicebox/sluicebox/store"
)

// maxAddress is the maximum length in bytes of an address with values of the row. Few servers
// accept a longer one.
const maxAddress = 8 << 10

// address makes the address of each request. It may have fields of the row, whose values are
// escaped for where they stand.
type address struct {
	// origin is the scheme, the host and the port. It may begin with a field that has the
	// whole address.
	origin, path, query template.Template
	whole, hasQuery     bool

	// hosts are those that rows may name.
	hosts egress.Hosts

	// shared is an example: the address of a row whose values are all x.
	shared *url.URL
}

// named reports whether rows name the host.
func (a *address) named() bool { return !a.origin.Fixed() }

// parseAddress parses a template of addresses, and the hosts that rows may name. The error is
// a *store.FieldError for the key of either. It never quotes the address, because it may hold
// a key.
func parseAddress(raw string, allowHosts []string) (a address, err error) {
	bad := func(text string) (address, error) { return a, &store.FieldError{Key: "url", Text: text} }
	if raw == "" {
		return bad("is not set; set it to the address of the endpoint, for example https://hooks.example/orders")
	}
	if strings.Contains(raw, "#") {
		return bad("must not have a fragment (#), because it is never sent")
	}
	path, query, hasQuery := strings.Cut(raw, "?")
	origin, path := splitOrigin(path)
	a.hasQuery, a.whole = hasQuery, strings.HasPrefix(origin, "{")
	var errs [3]error
	a.origin, errs[0] = template.ParsePayload(origin)
	a.path, errs[1] = template.ParsePayload(path)
	a.query, errs[2] = template.ParsePayload(query)
	switch {
	case errors.Join(errs[:]...) != nil:
		return bad(template.Fault + "; url also takes {payload.NAME}")
	case a.whole && path != "" && path[0] != '/':
		return bad("begins with a field, which must have a slash, a question mark or nothing behind it")
	case a.named() && len(allowHosts) == 0:
		return bad("has a field in its host; list the hosts that rows may name in allow-hosts, or write the host as text")
	}
	if a.hosts, err = egress.Parse(allowHosts); err != nil {
		return a, &store.FieldError{Key: "allow-hosts", Text: err.Error()}
	}

	example := a.example()
	if _, err := url.Parse(example); err != nil {
		return bad("is not a URL such as https://hooks.example/orders")
	}
	a.shared, err = httpsink.ParseAddress("url", example, "token")
	return a, err
}

// splitOrigin splits an address into its scheme and host, or the field at its beginning, and
// its path.
func splitOrigin(text string) (origin, path string) {
	end := 0
	if field, _, ok := strings.Cut(text, "}"); ok && strings.HasPrefix(text, "{") && !strings.HasPrefix(text, "{{") {
		end = len(field) + 1
	} else if scheme, _, ok := strings.Cut(text, "://"); ok {
		end = len(scheme) + len("://")
		if slash := strings.IndexByte(text[end:], '/'); slash >= 0 {
			return text[:end+slash], text[end+slash:]
		}
		end = len(text)
	}
	return text[:end], text[end:]
}

// example returns the address of a row whose values are all x.
func (a *address) example() string {
	m := &sink.Message{ID: "x", Kind: "x", Group: store.GroupOf("x"), Attributes: a.examples(), Payload: a.examplePayload()}
	origin, _ := a.origin.Text(m, event.AsIs)
	if a.whole {
		origin = "https://" + origin
	}
	path, _ := a.path.Text(m, event.AsIs)
	query, _ := a.query.Text(m, event.AsIs)
	if a.hasQuery {
		query = "?" + query
	}
	return origin + path + query
}

// examples returns a value for each attribute in the address.
func (a *address) examples() (all store.Attributes) {
	for _, name := range slices.Concat(a.origin.Attributes(), a.path.Attributes(), a.query.Attributes()) {
		all = append(all, store.Attribute{Name: name, Value: "x"})
	}
	return all
}

// examplePayload returns a payload with the members in the address.
func (a *address) examplePayload() []byte {
	members := map[string]string{}
	for _, name := range slices.Concat(a.origin.Members(), a.path.Members(), a.query.Members()) {
		members[name] = "x"
	}
	text, err := json.Marshal(members)
	if err != nil {
		panic("webhook: encode texts as JSON: " + err.Error())
	}
	return text
}

// fixed reports whether all rows have the same address.
func (a *address) fixed() bool { return !a.named() && a.path.Fixed() && a.query.Fixed() }

// target is where a row goes.
type target struct {
	text   string
	origin string // scheme, host and port, which may be shown
}

// of returns the address for a row. reason is set if the row can never be sent.
func (a *address) of(m *sink.Message) (to target, reason string) {
	leaves, outside, missing := false, false, ""
	text := func(t *template.Template, escape func(string) string) (text string) {
		if missing == "" {
			text, missing = t.Text(m, escape)
		}
		return text
	}
	origin := text(&a.origin, func(value string) string {
		outside = outside || !a.whole && strings.ContainsAny(value, "/?#")
		return value
	})
	rest := text(&a.path, func(value string) string {
		leaves = leaves || leavesSegment(value)
		return url.PathEscape(value)
	})
	if a.hasQuery {
		rest += "?" + text(&a.query, url.QueryEscape)
	}
	to = target{origin + rest, a.shared.Scheme + "://" + a.shared.Host}
	switch {
	case missing != "":
		return target{}, "row has no " + missing + ", which url needs"
	case outside:
		return target{}, "the host of the row has a slash, a question mark or a # in it"
	case leaves:
		return target{}, "a value of the row would lead to another path: it is empty, or has . or .. between slashes"
	case len(to.text) > maxAddress && !a.fixed():
		return target{}, fmt.Sprintf("url of %d bytes exceeds %d", len(to.text), maxAddress)
	case !a.named():
		return to, ""
	case a.whole && rest != "" && strings.Contains(origin, "?"):
		return target{}, "the address of the row has a query, but url goes on behind it"
	}
	named, reason := a.hosts.Target(to.text)
	return target{to.text, named.Origin}, reason
}

// endpointOf returns the scheme, the host and the port to which a row goes; "" if it can never
// be sent.
func (a *address) endpointOf(m *sink.Message) string {
	to, reason := a.of(m)
	if reason != "" {
		return ""
	}
	return to.origin
}

// secrets returns the texts of an address for a row that no detail may show.
func (t target) secrets() []string {
	u, err := url.Parse(t.text)
	if err != nil {
		return nil
	}
	return append(redact.PathSecrets(u), redact.QuerySecrets(u)...)
}

// leavesSegment reports whether a value in a path may lead out of its place: receivers and
// proxies drop empty segments, and resolve . and .., some of them also behind an escaped
// slash or backslash.
func leavesSegment(value string) bool {
	for segment := range strings.FieldsFuncSeq(value+"/", func(r rune) bool { return r == '/' || r == '\\' }) {
		if segment == "." || segment == ".." {
			return true
		}
	}
	return value == ""
}
