// Package console is the web page of the admin address. Its files are part of the binary.
package console

import (
	"embed"
	"io/fs"
	"net/http"
	"path"
)

// Path is where the files of the page are served. The page itself is also served at /.
const Path = "/console/"

//go:embed assets
var assets embed.FS

// policy allows the page's own scripts and styles, none of them inline, and requests to the
// relay. A payload that got into the page as markup could run nothing.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"form-action 'none'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// Handler serves the page and its files. They have no secrets, so they need no token.
func Handler() http.Handler { return pageOf("index.html") }

// Sources serves the page with the sources of a process that has several. Each has a page of its own,
// below its path.
func Sources() http.Handler { return pageOf("sources.html") }

// pageOf serves a page at / and at Path, and the files.
func pageOf(page string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := path.Base(r.URL.Path)
		if r.URL.Path == "/" || r.URL.Path == Path {
			name = page
		} else if r.URL.Path != Path+name {
			http.NotFound(w, r)
			return
		}
		body, err := fs.ReadFile(assets, "assets/"+name)
		if err != nil {
			http.NotFound(w, r)
			return
		}
		types := map[string]string{".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
		w.Header().Set("Content-Type", types[path.Ext(name)]+"; charset=utf-8")
		w.Header().Set("Content-Security-Policy", policy)
		_, _ = w.Write(body) // the client may have disconnected
	})
}
