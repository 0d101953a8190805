package mysql_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/mysql"
)

// TestParseURL checks the address and the TLS mode of URLs.
func TestParseURL(t *testing.T) {
	for raw, want := range map[string]string{
		"mysql://u@h/db":                                              "u@tcp(h:3306)/db verify h",
		"mariadb://u:p%40%2Fw@h:3307/my%20db":                         "u:p@/w@tcp(h:3307)/my db verify h",
		"mysql://u@[fe80::1]:3307/db":                                 "u@tcp([fe80::1]:3307)/db verify fe80::1",
		"mysql://u@[::1]/db?tls=false":                                "u@tcp([::1]:3306)/db plain",
		"mysql://u@h/db?tls=skip-verify":                              "u@tcp(h:3306)/db encrypt",
		"mysql://u@h/db?tls=preferred":                                "u@tcp(h:3306)/db encrypt if",
		"mysql://u@h/db?tls=true&tls-server-name=db.example":          "u@tcp(h:3306)/db verify db.example",
		"mysql://u@/db?socket=%2Frun%2Fmysqld.sock":                   "u@unix(/run/mysqld.sock)/db plain",
		"mysql://u@h/db?allow-cleartext-passwords=true&tls=true":      "u@tcp(h:3306)/db verify h cleartext",
		"mariadb://u@h/db?allow-cleartext-passwords=false":            "u@tcp(h:3306)/db verify h",
		"mysql://u@/db?socket=/s&allow-cleartext-passwords=true":      "u@unix(/s)/db plain cleartext",
		"mysql://u@localhost/db":                                      "u@tcp(localhost:3306)/db encrypt if",
		"mysql://u@127.1.2.3/db":                                      "u@tcp(127.1.2.3:3306)/db encrypt if",
		"mysql://u@[::1]/db":                                          "u@tcp([::1]:3306)/db encrypt if",
		"mysql://u@localhost/db?tls=true":                             "u@tcp(localhost:3306)/db verify localhost",
		"mysql://u@localhost/db?tls-server-name=db.example":           "u@tcp(localhost:3306)/db verify db.example",
		"mysql://u@localhost/db?allow-cleartext-passwords=true":       "u@tcp(localhost:3306)/db encrypt if cleartext",
		"mysql://u@[::1]/db?tls=false&allow-cleartext-passwords=true": "u@tcp([::1]:3306)/db plain cleartext",
	} {
		cfg, err := mysql.ParseURL(raw, "test")
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}

		got := cfg.User
		if cfg.Passwd != "" {
			got += ":" + cfg.Passwd
		}

		got += fmt.Sprintf("@%s(%s)/%s", cfg.Net, cfg.Addr, cfg.DBName)
		switch {
		case cfg.TLS == nil:
			got += " plain"
		case cfg.TLS.InsecureSkipVerify:
			got += " encrypt"
		default:
			got += " verify " + cfg.TLS.ServerName
		}

		if cfg.AllowFallbackToPlaintext {
			got += " if"
		}
		if cfg.AllowCleartextPasswords {
			got += " cleartext"
		}

		if got != want {
			t.Errorf("%s: %s, want %s", raw, got, want)
		}
	}
}

// TestParseURLRefused checks that errors name the problem and no password.
func TestParseURLRefused(t *testing.T) {
	for raw, part := range map[string]string{
		"mysql://u:secret@h:port/db":                                     "not of the form",
		"postgres://u:secret@h/db":                                       "not of the form",
		"mysql:u:secret@h/db":                                            "not of the form",
		"mysql://u:secret@h/":                                            "names no database",
		"mysql://:secret@h/db":                                           "names no user",
		"mysql://u:secret@/db":                                           "names no host",
		"mysql://u:secret@h1,h2/db":                                      "several",
		"mysql://u:secret@h/db?tls=maybe":                                "tls=maybe",
		"mysql://u:secret@h/db?parseTime=true":                           `"parseTime"`,
		"mysql://u:secret@h/db?tls=":                                     "without a value",
		"mysql://u:secret@h/db?tls=true&tls=false":                       "twice",
		"mysql://u:secret@h/db?tls=%zz":                                  "invalid parameters",
		"mysql://u:secret@h/db?tls-ca=/no/such/file":                     "/no/such/file",
		"mysql://u:secret@h/db?tls-cert=/no/such/file":                   "only one of",
		"mysql://u:secret@h/db?tls=false&tls-ca=/x":                      "tls=false",
		"mysql://u:secret@h/db?tls=false&allow-cleartext-passwords=true": "cleartext",
		"mysql://u:secret@localhost.example/db?tls=preferred&allow-cleartext-passwords=true": "cleartext",
	} {
		_, err := mysql.ParseURL(raw, "test")
		var setup *store.SetupError
		if !errors.As(err, &setup) || setup.Remedy == "" || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v, want %q", raw, err, part)
		}
	}
}
