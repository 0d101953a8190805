package config

import (
	"net"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/sluicebox/sluicebox/capture/poll"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

var (
	relayName = regexp.MustCompile(`^[a-z0-9_]{1,40}$`)
	sinkName  = regexp.MustCompile(`^[a-z0-9_-]{1,40}$`)
	// serviceLink matches the variables that Kubernetes sets in every container for a
	// Service whose name starts with sluicebox. They are no overrides.
	serviceLink = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)
)

// invalidEnumText returns the error for a text that is not a value of an enum key.
func invalidEnumText(text string, f field) string {
	must := "must be " + f.enum[0]
	if len(f.enum) > 1 {
		must = "must be one of " + strings.Join(f.enum, ", ")
	}
	if slices.Contains(f.later, text) {
		return "is " + text + ", which this version does not have yet; it " + must
	}
	if near := store.Nearest(text, f.enum); near != "" {
		must += "; did you mean " + near + "?"
	}
	return "is \"" + text + "\", " + must
}

// checkUnknownVariables reports SLUICEBOX_* variables without a key.
func (d *decoder) checkUnknownVariables() {
	known := make([]string, 0, len(d.knownVariables))
	for name := range d.knownVariables {
		known = append(known, name)
	}
	slices.Sort(known)
	var unknown []string
	for name := range d.overrides {
		if !d.knownVariables[name] && !serviceLink.MatchString(name) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	for _, name := range unknown {
		text := "no key has this variable"
		switch near := store.Nearest(name, known); {
		case near != "":
			text += "; did you mean " + near + "?"
		case strings.HasPrefix(name, variableName("sinks")+"_"), strings.HasPrefix(name, variableName("outboxes")+"_"):
			text += "; the entry must exist in the file, or in " + variableName("sinks") + " and " + variableName("outboxes") + " as YAML"
		default:
			text += "; see `sluicebox config schema` for the keys, or unset it"
		}
		d.failAt(location{name: name}, "", text)
	}
}

// hasNoProblem reports whether neither a key nor a section around it has a problem
// already, so that each mistake is reported once.
func (d *decoder) hasNoProblem(path string) bool {
	path = d.originalKey(path)
	for path != "" {
		if d.faultyKeys[path] {
			return false
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
	return true
}

// requireValue reports a missing required key.
func (d *decoder) requireValue(path, value, remedy string) bool {
	if value != "" {
		return true
	}
	if d.hasNoProblem(path) {
		d.fail(path, "is required; %s (or set %s)", remedy, variableName(d.originalKey(path)))
	}
	return false
}

// checkConditions reports keys of an entry that do not apply with its other keys.
func (d *decoder) checkConditions(path string, v reflect.Value) {
	for _, f := range fieldsOf(v.Type()) {
		c, is, unmet := f.unmetCondition(v)
		p := joinKey(path, f.name)
		if !unmet || !d.isGiven(p) || !d.hasNoProblem(joinKey(path, c.key)) || !d.hasNoProblem(p) {
			continue
		}
		if is == "" {
			d.fail(p, "needs %s: %s, and there is no %s here", c.key, c.value, c.key)
		} else {
			d.fail(p, "needs %s: %s, but this is %s: %s; remove it, or change the %s", c.key, c.value, c.key, is, c.key)
		}
	}
}

// isGiven reports whether a key, or a key inside it, was given.
func (d *decoder) isGiven(path string) bool {
	path = d.originalKey(path)
	for at := range d.locations {
		if rest, below := strings.CutPrefix(at, path); below && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return true
		}
	}
	return false
}

// minHold is the minimum of checkpoint.max-hold and checkpoint.max-kept. Below it, the
// log written while a few transactions are delivered would cause spilling or the loss of
// a retained log.
const minHold Size = 1 << 20

// check reports missing and contradictory values, and expands the preset.
func (d *decoder) check(s *Settings) {
	if d.hasNoProblem("name") && !relayName.MatchString(s.Name) {
		d.fail("name", "is %q, must be 1 to 40 of the characters a-z, 0-9 and _", s.Name)
	}
	d.checkSource(&s.Source)
	d.checkDelivery("dispatch", &s.Dispatch.Delivery)
	if s.Dispatch.ProcessingTimeoutSeconds < 1 {
		d.fail("dispatch.processing-timeout-seconds", "is %d, must be at least 1", s.Dispatch.ProcessingTimeoutSeconds)
	}

	d.requireNonNegative("dispatch.takeover-wait", s.Dispatch.TakeoverWait)
	if s.Dispatch.Claims == claimsOff && s.Dispatch.Takeover == "timeout" && d.hasNoProblem("dispatch.claims") && d.hasNoProblem("dispatch.takeover") {
		d.fail("dispatch.claims", "is off, but dispatch.takeover: timeout needs claims to tell whose row it is; use claims: on or takeover: at-once")
	}

	d.checkHold("checkpoint.max-hold", s.Checkpoint.MaxHold)
	d.checkHold("checkpoint.max-kept", s.Checkpoint.MaxKept)
	d.requirePositive("checkpoint.sweep-interval", s.Checkpoint.SweepInterval)
	d.checkAdmin(&s.Admin)
	d.expandPreset(s)
	d.setDefaultWires(s)
	d.setDefaultSenders(s)
	d.setReferences(s)
	d.checkSinks(s.Sinks)
	d.checkOutboxes(s)
	d.checkRowFields(s)
}

// maxServerID is the largest number in the four bytes of a server id.
const maxServerID = 1<<32 - 1

func (d *decoder) checkSource(s *Source) {
	if d.requireValue("source.url", s.URL.Reveal(), "write "+DatabaseURLForms) {
		d.checkDatabase("source.url", s.URL)
	}
	main, mainKnown := s.URL.databaseType()
	stream, streamKnown := s.StreamURL.databaseType()
	switch {
	case s.StreamURL == "":
	case main.file && d.hasNoProblem("source.stream-url"):
		d.fail("source.stream-url", "does not apply to SQLite, which has no roles; omit it")
	case stream.file, mainKnown && streamKnown && main.schemes[0] != stream.schemes[0]:
		d.fail("source.stream-url", "must be the same database as source.url")
	default:
		d.checkDatabase("source.stream-url", s.StreamURL)
	}

	if (s.ServerID < 0 || int64(s.ServerID) > maxServerID) && d.hasNoProblem("source.server-id") {
		d.fail("source.server-id", "is %d, must be 1 to %d, or 0 for a random one", s.ServerID, int64(maxServerID))
	}
	d.requirePositive("source.heartbeat-interval", s.HeartbeatInterval)
	d.checkPolling(s)
}

// checkPolling validates the keys in package poll.
func (d *decoder) checkPolling(s *Source) {
	c := poll.Config{Interval: s.PollInterval, BatchSize: s.PollBatchSize, Backoff: s.PollBackoff}
	d.failFields("source", c.Validate(), func(key string) string {
		if key == "outboxes" {
			return "" // checked with the tables
		}
		return key
	})
}

func (d *decoder) checkHold(path string, size Size) {
	if size < minHold && d.hasNoProblem(path) {
		d.fail(path, "is %s, must be at least %s", size, minHold)
	}
}

func (d *decoder) requirePositive(path string, t time.Duration) {
	if t <= 0 && d.hasNoProblem(path) {
		d.fail(path, "is %s, must be above 0", t)
	}
}

func (d *decoder) requireNonNegative(path string, t time.Duration) {
	if t < 0 && d.hasNoProblem(path) {
		d.fail(path, "is %s, must not be below 0s", t)
	}
}

// checkDelivery validates the keys in package dispatch.
func (d *decoder) checkDelivery(path string, s *Delivery) {
	if d.hasOwnKey(path, "give-up-after") {
		d.requireNonNegative(joinKey(path, "give-up-after"), s.GiveUpAfter)
	}
	d.failFields(path, s.Validate(), func(key string) string {
		if !d.hasOwnKey(path, key) {
			return ""
		}
		return key
	})
	if d.hasOwnKey(path, "request-timeout") {
		d.requirePositive(joinKey(path, "request-timeout"), s.RequestTimeout)
	}
}

// hasOwnKey reports whether to check a delivery key under path. Under a sink that is so
// only if the key, or a key it is compared with, is given there.
func (d *decoder) hasOwnKey(path, key string) bool {
	if path == "dispatch" {
		return true
	}
	section, _, _ := strings.Cut(key, ".")
	return d.isGiven(joinKey(path, section))
}

// failFields reports the invalid values that a Validate found in the section at path. fileKey
// returns the key in the file for a key of the section, or "" if it is checked elsewhere.
func (d *decoder) failFields(path string, found error, fileKey func(key string) string) {
	for _, e := range fieldErrors(found) {
		key := fileKey(e.Key)
		if p := joinKey(path, key); key != "" && d.hasNoProblem(p) {
			d.fail(p, "%s", e.Text)
		}
	}
}

// fieldErrors returns the invalid values in an error of a Validate.
func fieldErrors(err error) []*store.FieldError {
	switch e := err.(type) {
	case *store.FieldError:
		return []*store.FieldError{e}
	case interface{ Unwrap() []error }:
		var list []*store.FieldError
		for _, one := range e.Unwrap() {
			list = append(list, fieldErrors(one)...)
		}
		return list
	case interface{ Unwrap() error }:
		return fieldErrors(e.Unwrap())
	}
	return nil
}

func (d *decoder) checkAdmin(a *Admin) {
	d.checkToken("admin.token", a.Token)
	if a.Listen == "" || !d.hasNoProblem("admin.listen") {
		return
	}
	host, _, err := net.SplitHostPort(a.Listen)
	if err != nil {
		d.fail("admin.listen", "is %q, must be host:port such as 127.0.0.1:8090", a.Listen)
		return
	}
	if !store.Loopback(host) && a.Token == "" && d.hasNoProblem("admin.token") {
		d.fail("admin.listen", "is %s, which other machines can reach: set admin.token (or %s), or listen on 127.0.0.1", a.Listen, variableName("admin.token"))
	}
}

// checkToken refuses characters that an HTTP header cannot contain.
func (d *decoder) checkToken(path string, token sink.Secret) {
	if strings.ContainsFunc(string(token), func(r rune) bool { return unicode.IsControl(r) || r > unicode.MaxASCII || r == ' ' }) {
		d.fail(path, "holds a blank, a line break or another character that a bearer token cannot have")
	}
}
