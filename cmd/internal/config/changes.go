package config

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/sluicebox/sluicebox/dispatch/sink"
)

// Change is a key that differs between two configurations.
type Change struct {
	// Key is the key as the file has it, for example outboxes[0].retention. A section that only one
	// of the configurations has is one key.
	Key string

	// Where is file:line of the key in the later configuration, or of its section.
	Where string

	// Fixed: the key may not change while the relay runs.
	Fixed bool
}

// fixedKeys are the keys that a running relay keeps: what the database, the sockets and the records
// of the relay were made with.
var fixedKeys = regexp.MustCompile(`^(name|mode|shadow|sources?|process|spread-after|scale|ingest|tracing|admin\.(listen|profiling)|log\.format|` +
	`dispatch\.(takeover|processing-timeout-seconds)|outboxes)($|[.\[])`)

// freeKeys are the keys below fixedKeys that may change.
var freeKeys = regexp.MustCompile(`^outboxes\[\d+\]\.(sink|fan-out|unmatched|retention|routes\[\d+\]\.(sink|when)($|\.))`)

// Changes returns the keys in which a later configuration differs, in the order of the file. Secrets
// and the contents of files are compared too, but not shown.
func (c *Config) Changes(to *Config) []Change {
	w := changeWalk{from: c, to: to}
	w.section("", reflect.ValueOf(c.Settings), reflect.ValueOf(to.Settings))
	return w.changes
}

// changeWalk compares two configurations.
type changeWalk struct {
	from, to *Config
	changes  []Change
}

// section compares the keys of a section.
func (w *changeWalk) section(path string, a, b reflect.Value) {
	fields := fieldsOf(a.Type())
	for _, key := range variants(fields) {
		f, applies := chosen(key, fields, b)
		if !applies {
			continue
		}
		w.value(joinKey(path, f.name), a.FieldByIndex(f.index), b.FieldByIndex(f.index))
	}
}

// value compares the values of a key.
func (w *changeWalk) value(path string, a, b reflect.Value) {
	switch {
	case a.Kind() == reflect.Pointer && a.Type().Elem().Kind() == reflect.Struct && !a.IsNil() && !b.IsNil():
		w.value(path, a.Elem(), b.Elem())
	case a.Kind() == reflect.Struct:
		w.section(path, a, b)
	case a.Kind() == reflect.Slice && a.Type().Elem().Kind() == reflect.Struct && a.Len() == b.Len():
		for i := range a.Len() {
			w.value(fmt.Sprintf("%s[%d]", path, i), a.Index(i), b.Index(i))
		}
	case a.Type() == reflect.TypeFor[map[string]Sink]():
		w.sinks(path, a.Interface().(map[string]Sink), b.Interface().(map[string]Sink))
	case !reflect.DeepEqual(a.Interface(), b.Interface()):
		w.add(path, !w.mayChange(path, a, b))
	}
}

// sinks compares the sinks by name.
func (w *changeWalk) sinks(path string, a, b map[string]Sink) {
	names := slices.Sorted(maps.Keys(b))
	for name := range a {
		if _, kept := b[name]; !kept {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		was, had := a[name]
		will, has := b[name]
		if had && has {
			w.value(joinKey(path, name), reflect.ValueOf(was), reflect.ValueOf(will))
		} else {
			w.add(joinKey(path, name), false)
		}
	}
}

// mayChange reports whether a running relay can take another value of a key.
func (w *changeWalk) mayChange(path string, a, b reflect.Value) bool {
	switch {
	case path == "dispatch.claims":
		return a.String() != claimsOff && b.String() != claimsOff // off is a matter of the layouts
	case strings.HasSuffix(path, ".retention") && freeKeys.MatchString(path):
		return a.Int() > 0 && b.Int() > 0 // deletions need rights that a start checks
	case strings.HasSuffix(path, ".unmatched"):
		return true
	}
	return !fixedKeys.MatchString(path) || freeKeys.MatchString(path)
}

// add adds a change of a key that a configuration has. Others follow from such keys.
func (w *changeWalk) add(path string, fixed bool) {
	if !w.from.report.isGiven(path) && !w.to.report.isGiven(path) {
		return
	}
	written := w.to.report.originalKey(path)
	w.changes = append(w.changes, Change{Key: w.to.entry.rename(written), Where: w.to.report.locationOf(written).name, Fixed: fixed})
}

// ChangesInPlace implements sluicebox.InPlace: a change of secrets, addresses and files needs no new
// session, because it changes neither what a request holds nor which circuit breaker it has.
func (i sinkInputs) ChangesInPlace(before any) bool {
	was, ok := before.(sinkInputs)
	if !ok || was.settings.Type != i.settings.Type {
		return false
	}
	a, b := was.settings.withoutConnection(), i.settings.withoutConnection()
	return reflect.DeepEqual(a, b)
}

// withoutConnection returns the sink without its secrets, its address and its files. An address with
// fields of the row stays, because it says which circuit breaker a request has.
func (s *Sink) withoutConnection() Sink {
	c := *s
	c.APIBaseURL, c.OAuth, c.References = "", nil, nil
	c.CAFile, c.CertFile, c.KeyFile, c.NATS.CredsFile, c.NATS.NKeyFile = "", "", "", "", ""
	c.ErrorDetail, c.UserAgent = "", ""
	clearSecrets(reflect.ValueOf(&c).Elem())
	return c
}

// clearSecrets removes the secrets of a section, unless they have fields of the row. Headers may: no
// circuit breaker depends on them.
func clearSecrets(v reflect.Value) {
	for i := range v.NumField() {
		switch f := v.Field(i); {
		case !f.CanSet():
		case f.Kind() == reflect.Struct:
			clearSecrets(f)
		case f.Type() == reflect.TypeFor[sink.Secret]():
			if !strings.Contains(f.String(), "{") {
				f.SetZero()
			}
		case f.Type() == reflect.TypeFor[[]sink.Secret](), f.Type() == reflect.TypeFor[map[string]sink.Secret]():
			f.SetZero()
		}
	}
}
