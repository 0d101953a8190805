package webhook

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/httpsink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/template"
	"github.com/sluicebox/sluicebox/store"
)

// maxAddress is the maximum length in bytes of an address with values of the row. Few servers
// accept a longer one.
const maxAddress = 8 << 10

// address makes the address of each request. Its path and query may have fields of the row,
// whose values are escaped for where they stand.
type address struct {
	path, query template.Template
	hasQuery    bool

	// shared is an example: the address of a row whose values are all x.
	shared *url.URL
}

// parseAddress parses a template of addresses. The error is a *store.FieldError for the key
// url. It never quotes the address, because it may hold a key.
func parseAddress(raw string) (a address, err error) {
	bad := func(text string) (address, error) { return a, &store.FieldError{Key: "url", Text: text} }
	if raw == "" {
		return bad("is not set; set it to the address of the endpoint, for example https://hooks.example/orders")
	}
	if strings.Contains(raw, "#") {
		return bad("must not have a fragment (#), because it is never sent")
	}
	path, query, hasQuery := strings.Cut(raw, "?")
	a.hasQuery = hasQuery
	var errPath, errQuery error
	a.path, errPath = template.Parse(path)
	a.query, errQuery = template.Parse(query)
	if errPath != nil || errQuery != nil {
		return bad(template.Fault)
	}
	if !a.path.Fixed() && strings.Count(a.path.Literals()[0], "/") < 3 {
		return bad("has a field in its host; write the host as text")
	}

	example, _ := a.of(&sink.Message{ID: "x", Kind: "x", Group: store.GroupOf("x"), Attributes: a.examples()})
	if _, err := url.Parse(example); err != nil {
		return bad("is not a URL such as https://hooks.example/orders")
	}
	a.shared, err = httpsink.ParseAddress("url", example, "token")
	return a, err
}

// examples returns a value for each attribute in the address.
func (a *address) examples() (all store.Attributes) {
	for _, name := range slices.Concat(a.path.Attributes(), a.query.Attributes()) {
		all = append(all, store.Attribute{Name: name, Value: "x"})
	}
	return all
}

// fixed reports whether all rows have the same address.
func (a *address) fixed() bool { return a.path.Fixed() && a.query.Fixed() }

// of returns the address for a row. reason is set if the row can never be sent.
func (a *address) of(m *sink.Message) (text, reason string) {
	leaves := false
	text, missing := a.path.Text(m, func(value string) string {
		leaves = leaves || leavesSegment(value)
		return url.PathEscape(value)
	})
	if missing == "" && a.hasQuery {
		var query string
		query, missing = a.query.Text(m, url.QueryEscape)
		text += "?" + query
	}
	switch {
	case missing != "":
		return "", "row has no " + missing + ", which url needs"
	case leaves:
		return "", "a value of the row would lead to another path: it is empty, or has . or .. between slashes"
	case len(text) > maxAddress && !a.fixed():
		return "", fmt.Sprintf("url of %d bytes exceeds %d", len(text), maxAddress)
	}
	return text, ""
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
