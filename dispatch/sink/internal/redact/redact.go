// Package redact removes the secrets of a sink from texts of its destination, and makes
// them fit one line of the row's error column and of the log.
package redact

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"html"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// Redactor removes the secrets of a sink from the text of a response. A receiver may
// echo a secret in many forms: as sent, escaped for JSON, URLs or HTML, also several
// times over, in base64 or hexadecimal, in another case, or with blanks inside. It finds no
// secret that is escaped around such blanks and follows the first character of another escape,
// because without the blanks that character takes the secret's first ones. A nil Redactor has
// no secrets.
type Redactor struct {
	// secrets is a function, so that printing a Redactor does not show them. It
	// returns them in lower case, the longest first.
	secrets   func() [][]byte
	hidesBody bool
}

// New returns a Redactor that removes these secrets. hidesBody also hides the bodies of
// responses, because they may quote payloads.
func New(hidesBody bool, secrets ...string) *Redactor {
	return (&Redactor{func() [][]byte { return nil }, hidesBody}).With(secrets...)
}

// With returns a Redactor that also removes these secrets.
func (r *Redactor) With(secrets ...string) *Redactor {
	all := slices.Clone(r.secrets())
	add := func(s string) {
		if s != "" {
			all = append(all, lower([]byte(s)))
		}
	}

	for _, s := range secrets {
		add(s)
		add(strings.ReplaceAll(s, " ", "+")) // as in forms
		add(strings.ReplaceAll(s, " ", ""))  // for views without blanks
	}

	slices.SortFunc(all, func(a, b []byte) int { return cmp.Or(cmp.Compare(len(b), len(a)), bytes.Compare(a, b)) })
	all = slices.CompactFunc(all, bytes.Equal)
	return &Redactor{secrets: func() [][]byte { return all }, hidesBody: r.hidesBody}
}

// HidesBody reports whether details must not show the body of a response.
func (r *Redactor) HidesBody() bool { return r != nil && r.hidesBody }

// OneLine returns s as one line of at most 300 printable characters. A longer text
// ends in an ellipsis.
func OneLine(s string) string { return (*Redactor)(nil).OneLine(s) }

// OneLine is the function [OneLine], and also removes the secrets.
func (r *Redactor) OneLine(s string) string {
	// A secret may be a part of a character.
	s = strings.ToValidUTF8(r.redact(printableLine(s)), string(utf8.RuneError))
	end := 0 // of the first maxDetail characters
	for range maxDetail {
		_, size := utf8.DecodeRuneInString(s[end:])
		end += size
	}

	if end < len(s) {
		return strings.TrimSpace(s[:end]) + "…"
	}
	return strings.TrimSpace(s)
}

// Error returns err with a text as of [Redactor.OneLine]. errors.Is and errors.As find err. It
// returns nil for nil.
func (r *Redactor) Error(err error) error {
	if err == nil {
		return nil
	}
	return &cleanError{r.OneLine(err.Error()), err}
}

// cleanError is an error without the secrets in its text.
type cleanError struct {
	text string
	err  error
}

func (e *cleanError) Error() string { return e.text }
func (e *cleanError) Unwrap() error { return e.err }

// printableLine replaces each run of spaces and unprintable characters by one space.
// It reads no more of s than redact scans.
func printableLine(s string) string {
	var b strings.Builder
	blank := false
	for _, c := range s { // an invalid byte is U+FFFD
		if unicode.IsSpace(c) || !unicode.IsPrint(c) {
			blank = b.Len() > 0
			continue
		}
		if blank {
			b.WriteByte(' ')
			blank = false
		}
		if b.WriteRune(c); b.Len() >= maxScanned {
			break
		}
	}
	return b.String()
}

const (
	// maxDetail is the maximum length of a detail in characters.
	maxDetail = 300

	// maxShown is the maximum number of bytes of a text in a detail. maxScanned bytes
	// are scanned, so that a secret is not cut in two.
	maxShown   = 2 << 10
	maxScanned = maxShown + 1<<10

	// maxEscapes is the maximum depth of nested escapes, maxEncodings that of nested
	// base64 and hexadecimal.
	maxEscapes, maxEncodings = 5, 2

	// minSecretBytes is the minimum length of a secret that is searched for in
	// encodings and at a truncated end. A shorter one would be found by chance.
	// minSpacedSecretBytes is the minimum for a secret with blanks inside.
	minSecretBytes, minSpacedSecretBytes = 4, 8
)

// redact replaces each secret in s by [sink.Redacted] and truncates s to maxShown.
func (r *Redactor) redact(s string) string {
	s = s[:min(len(s), maxScanned)]
	if r == nil || len(r.secrets()) == 0 {
		return s[:min(len(s), maxShown)]
	}

	hidden := make([]bool, len(s))
	r.search([]byte(s), maxEncodings, func(from, to int) {
		for i := from; i < to; i++ {
			hidden[i] = true
		}
	})

	var b strings.Builder
	for i := range min(len(s), maxShown) {
		switch {
		case !hidden[i]:
			b.WriteByte(s[i])
		case i == 0 || !hidden[i-1]:
			b.WriteString(sink.Redacted)
		}
	}

	return b.String()
}

// search calls found for each range of a text that reveals a secret. It decodes up to
// depth nested encodings.
func (r *Redactor) search(text []byte, depth int, found func(from, to int)) {
	t := &view{text: text}
	for n := 0; t != nil && n < maxEscapes; n++ {
		r.searchView(t, depth, found)
		t = t.unescape()
	}

	t = (&view{text: text}).removeBlanks()
	for n := 0; t != nil && n < maxEscapes; n++ {
		r.searchView(t, depth, found)
		if t = t.unescape(); t != nil {
			t = t.removeBlanks()
		}
	}
}

// searchView searches one view of the text.
func (r *Redactor) searchView(t *view, depth int, found func(from, to int)) {
	folded := lower(t.text)
	minLen := 0
	for _, secret := range r.secrets() {
		if t.noBlanks && len(secret) < minSpacedSecretBytes {
			continue
		}
		minLen = len(secret) // the shortest comes last
		for at := 0; ; at++ {
			i := bytes.Index(folded[at:], secret)
			if i < 0 {
				break
			}
			at += i
			found(t.origin(at, at+len(secret)))
		}
		for n := min(len(secret)-1, len(folded)); n >= minSecretBytes; n-- { // truncated at the end
			if !bytes.HasSuffix(folded, secret[:n]) {
				continue
			}
			if !plainWords(secret[:n]) { // a word that ends a text is no part of a secret
				found(t.origin(len(folded)-n, len(folded)))
			}
			break
		}
	}

	if minLen = max(minLen, minSecretBytes); depth > 0 {
		r.searchEncoded(t, base64Char, fromBase64, minLen*4/3, depth, found)
		r.searchEncoded(t, hexChar, fromHex, minLen*2, depth, found)
	}
}

// searchEncoded finds each run of an encoding's characters that decodes to a text
// with a secret. A run shorter than minLen cannot.
func (r *Redactor) searchEncoded(t *view, has func(byte) bool, decode func([]byte) [][]byte, minLen, depth int, found func(from, to int)) {
	for i := 0; i < len(t.text); i++ {
		end := i
		for end < len(t.text) && has(t.text[end]) {
			end++
		}
		hides := false
		if end-i >= minLen {
			for _, plain := range decode(t.text[i:end]) {
				r.search(plain, depth-1, func(from, to int) { hides = hides || to-from >= minSecretBytes })
			}
		}
		if hides {
			found(t.origin(i, end))
		}
		i = end
	}
}

func base64Char(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || strings.IndexByte("+/-_", c) >= 0
}

func hexChar(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// fromBase64 returns the possible decodings of a run, because the encoding may start
// at any offset in it.
func fromBase64(run []byte) (plain [][]byte) {
	run = []byte(strings.NewReplacer("-", "+", "_", "/").Replace(string(run)))
	for from := range min(4, len(run)) {
		part := run[from:]
		if len(part)%4 == 1 {
			part = part[:len(part)-1]
		}
		b := make([]byte, base64.RawStdEncoding.DecodedLen(len(part)))
		n, _ := base64.RawStdEncoding.Decode(b, part)
		plain = append(plain, b[:n])
	}
	return plain
}

// fromHex returns the possible decodings of a hexadecimal run.
func fromHex(run []byte) (plain [][]byte) {
	for from := range min(2, len(run)) {
		part := run[from : len(run)-(len(run)-from)%2]
		b := make([]byte, hex.DecodedLen(len(part)))
		n, _ := hex.Decode(b, part)
		plain = append(plain, b[:n])
	}
	return plain
}

// view is a text, or the text after removing escapes. from and to hold the range in
// the original of each byte. They are nil for the original.
type view struct {
	text     []byte
	from, to []int
	noBlanks bool // without blanks
}

// origin returns the range in the original of bytes i to j.
func (t *view) origin(i, j int) (from, to int) {
	if t.from == nil || i == j {
		return i, j
	}
	return t.from[i], t.to[j-1]
}

// add appends bytes that replace bytes i to j of another view.
func (t *view) add(text []byte, of *view, i, j int) {
	from, to := of.origin(i, j)
	for _, c := range text {
		t.text, t.from, t.to = append(t.text, c), append(t.from, from), append(t.to, to)
	}
}

// unescape returns the view without one layer of escapes, or nil if it has no
// escapes.
func (t *view) unescape() *view {
	var next *view
	out := &view{noBlanks: t.noBlanks}
	for i := 0; i < len(t.text); {
		plain, n := unescape(t.text[i:])
		if n == 0 {
			plain, n = t.text[i:i+1], 1
		} else {
			next = out
		}
		out.add(plain, t, i, i+n)
		i += n
	}
	return next
}

// removeBlanks returns the view without blanks and invisible characters.
func (t *view) removeBlanks() *view {
	out := &view{noBlanks: true}
	for i := 0; i < len(t.text); {
		r, n := utf8.DecodeRune(t.text[i:])
		if !unicode.IsSpace(r) && unicode.IsPrint(r) {
			for k := range n {
				out.add(t.text[i+k:i+k+1], t, i+k, i+k+1)
			}
		}
		i += n
	}
	return out
}

// unescape decodes an escape at the start of b and returns its length, 0 if there is
// none.
func unescape(b []byte) (plain []byte, n int) {
	switch b[0] {
	case '%':
		return hexByte(b, 1)
	case '&':
		end := bytes.IndexByte(b[:min(len(b), 12)], ';')
		if end < 0 {
			return nil, 0
		}
		entity := string(b[:end+1])
		if strings.ContainsFunc(entity[1:end], isOutsideEntity) { // the semicolon is that of another text
			return nil, 0
		}
		if text := html.UnescapeString(entity); text != entity {
			return []byte(text), end + 1
		}
	case '\\':
		if len(b) < 2 {
			return nil, 0
		}
		switch b[1] {
		case '/', '\\', '"', '\'':
			return b[1:2], 2
		case 'n', 'r', 't', 'N', 'R', 'T':
			return []byte{'\n'}, 2
		case 'x', 'X':
			return hexByte(b, 2)
		case 'u', 'U':
			return unicodeEscape(b)
		}
	}

	return nil, 0
}

// isOutsideEntity reports whether no HTML entity has the character between its & and its semicolon.
func isOutsideEntity(c rune) bool {
	return c != '#' && (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z')
}

// hexByte reads two hexadecimal digits after the prefix of an escape.
func hexByte(b []byte, behind int) (plain []byte, n int) {
	if len(b) < behind+2 {
		return nil, 0
	}
	v, err := strconv.ParseUint(string(b[behind:behind+2]), 16, 8)
	if err != nil {
		return nil, 0
	}
	return []byte{byte(v)}, behind + 2
}

// unicodeEscape reads \uXXXX, or a surrogate pair of two.
func unicodeEscape(b []byte) (plain []byte, n int) {
	unit := func(b []byte) (rune, bool) {
		if len(b) < 6 || b[0] != '\\' || b[1]|0x20 != 'u' {
			return 0, false
		}
		v, err := strconv.ParseUint(string(b[2:6]), 16, 16)
		return rune(v), err == nil
	}

	first, ok := unit(b)
	if !ok {
		return nil, 0
	}
	if second, ok := unit(b[6:]); ok && utf16.IsSurrogate(first) {
		return utf8.AppendRune(nil, utf16.DecodeRune(first, second)), 12
	}
	return utf8.AppendRune(nil, first), 6
}

// lower converts ASCII letters to lower case, byte for byte.
func lower(b []byte) []byte {
	b = bytes.Clone(b)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return b
}

// dropShort removes texts that are too short for a secret, because redacting them
// would spoil any text.
func dropShort(texts ...string) []string {
	return slices.DeleteFunc(texts, func(s string) bool { return len(s) < minSecretBytes })
}

// HeaderSecrets returns the secret parts of a header value: the whole value, the
// credentials after a scheme, and for Basic the decoded credentials and the password.
func HeaderSecrets(value string) []string {
	scheme, credentials, ok := strings.Cut(value, " ")
	if !ok {
		return dropShort(value)
	}

	texts := []string{value, credentials}
	if plain, err := base64.StdEncoding.DecodeString(credentials); err == nil && strings.EqualFold(scheme, "Basic") {
		_, password, _ := strings.Cut(string(plain), ":")
		texts = append(texts, string(plain), password)
	}
	return dropShort(texts...)
}

// PlainHeaderSecrets returns the HeaderSecrets of a header. A plain word is no secret, for
// example the name of a tenant, unless the name of the header is that of a credential.
func PlainHeaderSecrets(name, value string) []string {
	if plainWord(value) && !credentialName(name) {
		return nil
	}
	return HeaderSecrets(value)
}

// credentialName reports whether a header of this name carries a credential.
func credentialName(name string) bool {
	name = strings.ToLower(name)
	return slices.ContainsFunc([]string{"auth", "cookie", "key", "token", "secret", "pass", "pwd", "sign", "cred", "session", "jwt", "pin", "code"},
		func(word string) bool { return strings.Contains(name, word) })
}

// PathSecrets returns the parts of a path that may be a key: each segment that is not a plain
// word, and the whole path if it has one. For example, T00A in /services/T00A is one, and
// /v1/orders has none.
func PathSecrets(u *url.URL) []string {
	var texts []string
	for part := range strings.SplitSeq(u.EscapedPath(), "/") {
		if plain, err := url.PathUnescape(part); err == nil {
			part = plain
		}
		if !plainWord(part) {
			texts = append(texts, part)
		}
	}
	if texts = dropShort(texts...); len(texts) > 0 {
		texts = append([]string{u.Path}, texts...)
	}
	return texts
}

// ReferencesSecrets returns the ReferenceSecrets of all texts.
func ReferencesSecrets(references []sink.Secret) (texts []string) {
	for _, reference := range references {
		texts = append(texts, ReferenceSecrets(string(reference))...)
	}
	return texts
}

// ReferenceSecrets returns the secret parts of a text that the configuration takes from a file
// or a variable: the text, even if it is a plain word. Of a whole address, only its path and
// the last segment are secrets besides those that may be a key.
func ReferenceSecrets(text string) []string {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return append(HeaderSecrets(text), dropShort(strings.Trim(text, "/"))...)
	}
	path := strings.Trim(u.Path, "/")
	texts := []string{path, path[strings.LastIndex(path, "/")+1:]}
	return append(PathSecrets(u), append(dropShort(texts...), QuerySecrets(u)...)...)
}

// plainWord reports whether a text looks like a word, for example "services", and not like a
// key.
func plainWord(s string) bool {
	const maxText, maxWord = 16, 14
	for word := range strings.FieldsFuncSeq(s, func(r rune) bool { return r == '-' || r == '_' }) {
		if len(word) >= maxWord || strings.Trim(word, "abcdefghijklmnopqrstuvwxyz") != "" {
			return false
		}
	}
	return len(s) < maxText
}

// plainWords reports whether a text looks like a path of plain words.
func plainWords(s []byte) bool {
	for part := range bytes.SplitSeq(s, []byte("/")) {
		if !plainWord(string(part)) {
			return false
		}
	}
	return true
}

// QuerySecrets returns the values of an address' query.
func QuerySecrets(u *url.URL) (texts []string) {
	for pair := range strings.SplitSeq(u.RawQuery, "&") {
		_, value, ok := strings.Cut(pair, "=")
		if !ok {
			value = pair
		}
		texts = append(texts, value)
		if plain, err := url.QueryUnescape(value); err == nil {
			texts = append(texts, plain)
		}
	}
	return dropShort(texts...)
}
