package sinktest

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
)

// Escapes returns the forms in which a receiver may echo a text, by name.
func Escapes() map[string]func(string) string {
	each := func(format string) func(string) string {
		return func(s string) string {
			var b strings.Builder
			for _, c := range s {
				_, _ = fmt.Fprintf(&b, format, c)
			}
			return b.String()
		}
	}

	bytewise := func(format string) func(string) string {
		return func(s string) string {
			var b strings.Builder
			for _, c := range []byte(s) {
				_, _ = fmt.Fprintf(&b, format, c)
			}
			return b.String()
		}
	}

	between := func(mark string) func(string) string {
		return func(s string) string { return strings.Join(strings.Split(s, ""), mark) }
	}
	return map[string]func(string) string{
		"as it is":           func(s string) string { return s },
		"upper case":         strings.ToUpper,
		"JSON":               func(s string) string { q := strconv.Quote(s); return q[1 : len(q)-1] },
		"JSON with slashes":  func(s string) string { return strings.ReplaceAll(s, "/", `\/`) },
		"JSON by code":       each(`\u%04x`),
		"JSON by CODE":       each(`\u%04X`),
		"by byte":            bytewise(`\x%02x`),
		"a URL":              url.QueryEscape,
		"a path":             url.PathEscape,
		"a URL, all of it":   bytewise("%%%02x"),
		"HTML":               html.EscapeString,
		"HTML by code":       each("&#%d;"),
		"HTML by hex code":   each("&#x%x;"),
		"base64":             func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) },
		"base64 for URLs":    func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) },
		"base64 of a header": func(s string) string { return base64.StdEncoding.EncodeToString([]byte("Bearer " + s + " ")) },
		"base64 of a user":   func(s string) string { return base64.StdEncoding.EncodeToString([]byte("me:" + s)) },
		"hexadecimal":        func(s string) string { return hex.EncodeToString([]byte(s)) },
		"HEXADECIMAL":        func(s string) string { return strings.ToUpper(hex.EncodeToString([]byte(s))) },
		"a line each":        between("\r\n"),
		"unseen in between":  between("\u200b"),
	}
}

// LeakedSecret returns the form in which a text reveals a secret, "" if it does not.
// It tries each escape once and twice, also on parts of the secret, and by another
// method than the sinks'.
func LeakedSecret(text, secret string) string {
	const part = 10
	for name, escape := range Escapes() {
		for again, escaped := range []string{escape(secret), escape(escape(secret))} {
			for at := 0; at+part <= len(escaped); at += part / 2 {
				piece := escaped[at : at+part]
				found := strings.Contains(strings.ToLower(text), strings.ToLower(piece))
				switch {
				case strings.HasPrefix(name, "base64 of"): // its beginning is not secret
					found = false
				case strings.HasPrefix(name, "base64"): // not reversible in another case
					found = strings.Contains(text, piece)
				}
				if found {
					return fmt.Sprintf("%s (%d times): %q in %q", name, again+1, piece, text)
				}
			}
			if strings.Contains(text, escaped) {
				return fmt.Sprintf("%s (%d times): %q in %q", name, again+1, escaped, text)
			}
		}
	}

	return ""
}

// testEcho: no detail shows the credentials that a receiver echoes, in whatever form.
func (h Harness) testEcho(t *testing.T) {
	if h.Secret == "" {
		t.Skip("the harness has no secret")
	}

	var body atomic.Pointer[string]
	var status atomic.Int64
	srv := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/at?"+url.QueryEscape(*body.Load()))
		Reply{int(status.Load()), "application/json", []byte(*body.Load())}.write(w)
	})

	s := h.New(t, srv.URL, longTimeout)
	for first, escape := range Escapes() {
		for _, second := range []string{"as it is", "JSON by code", "a URL", "base64"} {
			again := Escapes()[second]
			for _, form := range []string{`{"results":[{"status":"ERROR","error":"you sent %s, which"}]}`, "no: Bearer %s"} {
				text := fmt.Sprintf(form, again(escape(h.Secret)))
				body.Store(&text)
				code := []int{200, 302, 400, 401, 503}[len(text)%5]
				status.Store(int64(code))
				res := deliver(t, s, h.message("a"))
				if form := LeakedSecret(res.At(0).Detail, h.Secret); form != "" {
					t.Errorf("%d, %s and %s: %s", code, first, second, form)
				}
			}
		}
	}
}
