package finding_test

import (
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/internal/finding"
)

// A server elsewhere whose certificate nobody checks is worth an advice with the way out.
func TestAddEncryption(t *testing.T) {
	for want, e := range map[string]finding.Encryption{
		"ok: db with TLS":                                       {Encrypted: true, Verified: true},
		"ok: db with TLS.":                                      {Encrypted: true, Local: true},
		"ok: db without TLS, on this machine":                   {Local: true},
		"advice: db with TLS, but the certificate is not verif": {Encrypted: true},
		"advice: db without TLS: payloads are sent in clear":    {},
	} {
		var l finding.List
		l.AddEncryption("db", e, "verify it")
		f := l.Findings[0]
		if got := map[store.Grade]string{store.GradeOK: "ok: ", store.GradeAdvice: "advice: "}[f.Grade] + f.Text; !strings.HasPrefix(got, strings.TrimSuffix(want, ".")) || (f.Remedy == "verify it") != (f.Grade == store.GradeAdvice) {
			t.Errorf("%+v: got %q, %q, want %q", e, got, f.Remedy, want)
		}
	}
}
