package webhook

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/httpsink"
	"github.com/sluicebox/sluicebox/dispatch/sink/internal/template"
	"github.com/sluicebox/sluicebox/store"
)

// address makes the address of each request. There are three forms:
//
//   - fixed: every row has the same address
//   - fields in the path or the query, whose values are escaped for where they stand
//   - one field alone, {attr.NAME}: the row has the whole address, which a Guard checks
type address struct {
	path, query template.Template
	hasQuery    bool
	fromRow     bool

	// shared is the part that all rows share; for addresses of rows an example.
	shared *url.URL
}

// wholeAddress matches an address that is one field alone.
var wholeAddress = regexp.MustCompile(`^\{attr\.[^{}]+\}$`)

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
		return bad("has a brace alone or an unknown field in braces; the fields are " + template.Fields + "; write {{ and }} for braces")
	}

	example := raw
	switch a.fromRow = wholeAddress.MatchString(raw); {
	case a.fromRow:
		example = "https://address.of.the.row"
	case !a.fixed():
		if strings.Count(a.path.Before(), "/") < 3 {
			return bad("has a field in its host; write the host as text, or let one field, {attr.NAME}, be the whole address, with allow-hosts")
		}
		example, _ = a.render(&sink.Message{ID: "x", Kind: "x", Group: store.GroupOf("x"), Attributes: a.examples()})
	}
	if _, err := url.Parse(example); err != nil {
		return bad("is not a URL such as https://hooks.example/orders")
	}
	a.shared, err = httpsink.ParseAddress("url", example, "token")
	return a, err
}

// examples returns a value for each attribute in the address.
func (a *address) examples() (all store.Attributes) {
	for _, name := range append(a.path.Attributes(), a.query.Attributes()...) {
		all = append(all, store.Attribute{Name: name, Value: "x"})
	}
	return all
}

// fixed reports whether all rows have the same address.
func (a *address) fixed() bool { return a.path.Fixed() && a.query.Fixed() }

// render returns the address for a row. missing is a field that has no value in this row.
func (a *address) render(m *sink.Message) (text, missing string) {
	if a.fromRow {
		return a.path.Text(m, asIs)
	}
	if text, missing = a.path.Text(m, url.PathEscape); missing != "" || !a.hasQuery {
		return text, missing
	}
	query, missing := a.query.Text(m, url.QueryEscape)
	return text + "?" + query, missing
}

// of returns the address for a row. reason is set if the row can never be sent.
func (a *address) of(m *sink.Message, guard *httpsink.Guard) (text, reason string) {
	text, missing := a.render(m)
	switch {
	case missing != "":
		return "", fmt.Sprintf("row has no %s, which url needs", missing)
	case a.fromRow:
		return text, checkRowAddress(text, guard)
	case !a.fixed() && hasDotSegment(text):
		return "", "a value of the row makes . or .. a part of the address, which leads to another path"
	}
	return text, ""
}

// hasDotSegment reports whether a segment of the path is . or .., which receivers and proxies
// resolve.
func hasDotSegment(text string) bool {
	path, _, _ := strings.Cut(text, "?")
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "." || segment == ".." {
			return true
		}
	}
	return false
}

// checkRowAddress returns the reason why an address of a row cannot be used, "" if it can. It
// shows no more of it than the host.
func checkRowAddress(text string, guard *httpsink.Guard) (reason string) {
	u, err := url.Parse(text)
	if err != nil {
		return "the row's address is not a URL"
	}
	if _, err := httpsink.ParseAddress("the row's address", text, "token"); err != nil {
		return err.Error()
	}
	if err := guard.Check(u); err != nil {
		return err.Error()
	}
	return ""
}
