package config

import (
	"fmt"
	"net"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/sluicebox/sluicebox/capture/poll"
	"github.com/sluicebox/sluicebox/dispatch/sink"
	"github.com/sluicebox/sluicebox/store"
)

var (
	tokenName = regexp.MustCompile(`^[A-Za-z0-9._@-]{1,60}$`)
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
	if near := store.Nearest(text, f.enum); near != "" {
		must += "; did you mean " + near + "?"
	}
	return "is \"" + text + "\", " + must
}

// checkConditions reports keys of an entry that do not apply with its other keys.
func (k *checker) checkConditions(path string, v reflect.Value) {
	fields := fieldsOf(v.Type())
	for _, key := range variants(fields) {
		f, applies := chosen(key, fields, v)
		p := joinKey(path, f.name)
		if applies || !k.isGiven(p) {
			continue
		}
		c, is, _ := f.unmetCondition(v, fields)
		for _, other := range key[1:] {
			if also, _, _ := other.unmetCondition(v, fields); also.key == c.key && also.not == c.not {
				c.values = slices.Compact(slices.Sorted(slices.Values(slices.Concat(c.values, also.values))))
			}
		}
		switch {
		case !k.hasNoProblem(joinKey(path, c.key)) || !k.hasNoProblem(p):
		case c.not:
			k.fail(p, "does not apply to %s: %s; remove it", c.key, is)
		case is == "":
			k.fail(p, "needs %s, and there is no %s here", c.text(), c.key)
		default:
			k.fail(p, "needs %s, but this is %s: %s; remove it, or change the %s", c.text(), c.key, is, c.key)
		}
	}
}

// minHold is the minimum of checkpoint.max-hold and checkpoint.max-kept. Below it, the
// log written while a few transactions are delivered would cause spilling or the loss of
// a retained log.
const minHold Size = 1 << 20

// checker reports missing and contradictory values of decoded settings.
type checker struct{ *report }

// check reports missing and contradictory values, and expands the preset.
func (k *checker) check(s *Settings) {
	if k.hasNoProblem("name") && !relayName.MatchString(s.Name) {
		k.fail("name", "is %q, must be 1 to 40 of the characters a-z, 0-9 and _", s.Name)
	}
	k.checkSource(&s.Source)
	k.checkDelivery("dispatch", &s.Dispatch.Delivery)
	if s.Dispatch.ProcessingTimeoutSeconds < 1 {
		k.fail("dispatch.processing-timeout-seconds", "is %d, must be at least 1", s.Dispatch.ProcessingTimeoutSeconds)
	}

	k.requireNonNegative("dispatch.takeover-wait", s.Dispatch.TakeoverWait)
	if s.Dispatch.Claims == claimsOff && s.Dispatch.Takeover == "timeout" && k.hasNoProblem("dispatch.claims") && k.hasNoProblem("dispatch.takeover") {
		k.fail("dispatch.claims", "is off, but dispatch.takeover: timeout needs claims to tell whose row it is; use claims: on or takeover: at-once")
	}

	k.checkHold("checkpoint.max-hold", s.Checkpoint.MaxHold)
	k.checkHold("checkpoint.max-kept", s.Checkpoint.MaxKept)
	k.requirePositive("checkpoint.sweep-interval", s.Checkpoint.SweepInterval)
	k.checkAdmin(&s.Admin)
	k.checkShadow(&s.Shadow)
	if s.Notices != nil {
		k.failFields("notices", s.Notices.Validate(), func(key string) string { return key })
	}
	if s.Tracing != nil {
		k.failFields("tracing", s.Tracing.Validate(), func(key string) string { return key })
	}
	k.expandPreset(s)
	k.setDefaultWires(s)
	k.setDefaultSenders(s)
	s.setReceipts()
	k.checkSinks(s.Sinks)
	k.checkOutboxes(s)
	k.checkRowFields(s)
	k.checkIngest(s)
	k.checkScale(s)
	if s.Ingest != nil && len(s.Source.PasswordCommand) > 0 && k.hasNoProblem("ingest") {
		k.fail("ingest", "does not go with source.password-command; give the password in source.url, or remove one of them")
	}
}

// checkScale validates the section scale, and refuses what does not work with it.
func (k *checker) checkScale(s *Settings) {
	if s.Scale == nil {
		return
	}
	k.failFields("scale", s.Scale.Validate(), func(key string) string { return key })
	if s.Source.URL.SQLite() && k.hasNoProblem("source.url") {
		k.fail("scale", "needs a database that several machines reach, which SQLite is not; remove it")
	}
	if s.Source.Mode == "poll" && k.hasNoProblem("source.mode") {
		k.fail("source.mode", "is poll, but scale needs the database's log; use stream, or remove scale")
	}
	if s.Ingest != nil {
		k.fail("ingest", "does not go with scale; remove it, and run a process with ingest and without scale for another name")
	}
	for i := range s.Outboxes {
		k.checkScaled(fmt.Sprintf("outboxes[%d]", i), &s.Outboxes[i])
	}
}

// checkScaled refuses what an outbox cannot have with scale.
func (k *checker) checkScaled(path string, o *Outbox) {
	switch {
	case len(o.Routes) > 0:
		k.fail(path+".routes", "do not go with scale yet; give the outbox one sink, or remove scale")
	case o.DeadLetterTable != "":
		k.fail(path+".dead-letter-table", "does not go with scale yet; remove it, or remove scale")
	}
}

func (k *checker) checkShadow(s *Shadow) {
	k.requirePositive("shadow.stuck-after", s.StuckAfter)
	k.requirePositive("shadow.lost-after", s.LostAfter)
	k.requirePositive("shadow.report-interval", s.ReportInterval)
	if s.MaxRows < 1 {
		k.fail("shadow.max-rows", "is %d, must be at least 1", s.MaxRows)
	}
}

// maxServerID is the largest number in the four bytes of a server id.
const maxServerID = 1<<32 - 1

func (k *checker) checkSource(s *Source) {
	if k.requireValue("source.url", s.URL.Reveal(), "write "+DatabaseURLForms) {
		k.checkDatabase("source.url", s.URL)
	}
	main, mainKnown := s.URL.databaseType()
	stream, streamKnown := s.StreamURL.databaseType()
	switch {
	case s.StreamURL == "":
	case main.file && k.hasNoProblem("source.stream-url"):
		k.fail("source.stream-url", "does not apply to SQLite, which has no roles; omit it")
	case stream.file, mainKnown && streamKnown && main.schemes[0] != stream.schemes[0]:
		k.fail("source.stream-url", "must be the same database as source.url")
	default:
		k.checkDatabase("source.stream-url", s.StreamURL)
	}

	if (s.ServerID < 0 || int64(s.ServerID) > maxServerID) && k.hasNoProblem("source.server-id") {
		k.fail("source.server-id", "is %d, must be 1 to %d, or 0 for a random one", s.ServerID, int64(maxServerID))
	}
	k.requirePositive("source.heartbeat-interval", s.HeartbeatInterval)
	k.checkPasswordCommand(s)
	k.checkPolling(s)
}

// checkPasswordCommand validates the command that prints passwords.
func (k *checker) checkPasswordCommand(s *Source) {
	const key = "source.password-command"
	switch {
	case len(s.PasswordCommand) == 0 || !k.hasNoProblem(key):
	case s.PasswordCommand[0] == "":
		k.fail(key, "has an empty program; write its path, and its arguments behind it")
	case s.URL != "" && !s.URL.Postgres() && !s.URL.MySQL():
		k.fail(key, "applies to PostgreSQL, MySQL and MariaDB; remove it, and give the password in the URL")
	}
}

// checkPolling validates the keys in package poll.
func (k *checker) checkPolling(s *Source) {
	c := poll.Config{Interval: s.PollInterval, BatchSize: s.PollBatchSize, Backoff: s.PollBackoff}
	k.failFields("source", c.Validate(), func(key string) string {
		if key == "outboxes" {
			return "" // checked with the tables
		}
		return key
	})
}

func (k *checker) checkHold(path string, size Size) {
	if size < minHold && k.hasNoProblem(path) {
		k.fail(path, "is %s, must be at least %s", size, minHold)
	}
}

// checkDelivery validates the keys in package dispatch.
func (k *checker) checkDelivery(path string, s *Delivery) {
	if k.hasOwnKey(path, "give-up-after") {
		k.requireNonNegative(joinKey(path, "give-up-after"), s.GiveUpAfter)
	}
	k.failFields(path, s.Validate(), func(key string) string {
		if !k.hasOwnKey(path, key) {
			return ""
		}
		return key
	})
	if k.hasOwnKey(path, "request-timeout") {
		k.requirePositive(joinKey(path, "request-timeout"), s.RequestTimeout)
	}
}

// hasOwnKey reports whether to check a delivery key under path. Under a sink that is so
// only if the key, or a key it is compared with, is given there.
func (k *checker) hasOwnKey(path, key string) bool {
	if path == "dispatch" {
		return true
	}
	section, _, _ := strings.Cut(key, ".")
	return k.isGiven(joinKey(path, section))
}

func (k *checker) checkAdmin(a *Admin) {
	k.checkToken("admin.token", a.Token)
	k.checkToken("admin.viewer-token", a.ViewerToken)
	k.checkViewer(a)
	k.checkTokens(a)
	if a.Listen == "" || !k.hasNoProblem("admin.listen") {
		return
	}
	host, _, err := net.SplitHostPort(a.Listen)
	if err != nil {
		k.fail("admin.listen", "is %q, must be host:port such as 127.0.0.1:8090", a.Listen)
		return
	}
	if !store.Loopback(host) && a.Token == "" && k.hasNoProblem("admin.token") {
		k.fail("admin.listen", "is %s, which other machines can reach: set admin.token (or %s), or listen on 127.0.0.1", a.Listen, variableName("admin.token"))
	}
}

// checkViewer checks the token of viewers and the names of the relay.
func (k *checker) checkViewer(a *Admin) {
	switch {
	case a.ViewerToken == "" || !k.hasNoProblem("admin.viewer-token"):
	case a.Token == "" && k.hasNoProblem("admin.token"):
		k.fail("admin.viewer-token", "is set without admin.token, so that everybody may act: set admin.token, or remove it")
	case a.ViewerToken == a.Token && string(a.Token) != secretPlaceholder: // of a printed configuration
		k.fail("admin.viewer-token", "is the same as admin.token; choose another")
	}
	for i, host := range a.Hosts {
		if host == "" || strings.ContainsAny(host, "/:* ") {
			k.fail(fmt.Sprintf("admin.hosts[%d]", i), "is %q, must be a name or an IPv4 address, such as relay.example.com", host)
		}
	}
}

// checkTokens checks the named tokens. Their names are those of persons or programs alone: the log of
// actions has operator and viewer for the other two tokens, and local without any.
func (k *checker) checkTokens(a *Admin) {
	names := []string{"operator", "viewer", "local"}
	tokens := []sink.Secret{a.Token, a.ViewerToken}
	for i, t := range a.Tokens {
		path := fmt.Sprintf("admin.tokens[%d]", i)
		k.checkToken(path+".token", t.Token)
		k.requireValue(path+".role", t.Role, "write operator or viewer")
		if k.requireValue(path+".token", string(t.Token), "write a reference such as ${env:NAME}") {
			switch {
			case a.Token == "" && k.hasNoProblem("admin.token"):
				k.fail(path, "is set without admin.token, so that everybody may act: set admin.token, or remove it")
			case slices.Contains(tokens, t.Token) && string(t.Token) != secretPlaceholder: // of a printed configuration
				k.fail(path+".token", "is the same as another token; choose another")
			}
		}
		switch {
		case !tokenName.MatchString(t.Name):
			k.fail(path+".name", "is %q, must be 1 to 60 letters, digits and . _ @ -", t.Name)
		case slices.Contains(names, t.Name):
			k.fail(path+".name", "is %q, which another token has, or one of operator, viewer and local; choose another", t.Name)
		}
		names, tokens = append(names, t.Name), append(tokens, t.Token)
	}
}

// checkToken refuses characters that an HTTP header cannot contain.
func (k *checker) checkToken(path string, token sink.Secret) {
	if strings.ContainsFunc(string(token), func(r rune) bool { return unicode.IsControl(r) || r > unicode.MaxASCII || r == ' ' }) {
		k.fail(path, "holds a blank, a line break or another character that a bearer token cannot have")
	}
}
