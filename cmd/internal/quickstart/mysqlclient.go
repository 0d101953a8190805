package quickstart

import (
	"net/url"
	"strings"
)

// mysqlClient returns the client command for the server of a URL: mysql or mariadb,
// by the scheme. The client prompts for the password if the URL has one.
func mysqlClient(u *url.URL) string {
	q := u.Query()
	args := []string{u.Scheme}
	if socket := q.Get("socket"); socket != "" {
		args = append(args, "--socket="+socket)
	} else {
		args = append(args, "--host="+u.Hostname(), "--protocol=TCP") // else the clients use a socket for localhost
		if port := u.Port(); port != "" {
			args = append(args, "--port="+port)
		}
	}

	args = append(args, "--user="+u.User.Username())
	if _, has := u.User.Password(); has {
		args = append(args, "--password")
	}

	args = append(args, clientTLS(u.Scheme, q)...)
	for _, file := range []string{"ca", "cert", "key"} {
		if path := q.Get("tls-" + file); path != "" {
			args = append(args, "--ssl-"+file+"="+path)
		}
	}
	if u.Scheme == "mysql" && q.Get("allow-cleartext-passwords") == "true" {
		args = append(args, "--enable-cleartext-plugin") // on by default in MariaDB's client
	}
	return strings.Join(shellWords(args), " ")
}

// clientTLS translates the TLS parameters of a URL into client options; see
// https://dev.mysql.com/doc/refman/9.0/en/connection-options.html and
// https://mariadb.com/kb/en/mariadb-command-line-client/.
func clientTLS(scheme string, q url.Values) []string {
	mode := q.Get("tls")
	if mode == "" {
		mode = "true"
		if q.Get("socket") != "" {
			mode = "false"
		}
	}
	if scheme == "mariadb" {
		return map[string][]string{
			"false":       {"--skip-ssl"},
			"preferred":   {"--disable-ssl-verify-server-cert"},
			"skip-verify": {"--ssl", "--disable-ssl-verify-server-cert"},
			"true":        {"--ssl", "--ssl-verify-server-cert"},
		}[mode]
	}

	verify := "VERIFY_IDENTITY"
	switch {
	case q.Get("tls-ca") == "":
		verify = "REQUIRED" // mysql ignores the system's CAs and cannot verify without --ssl-ca
	case q.Get("tls-server-name") != "":
		verify = "VERIFY_CA" // mysql can verify the host's name only
	}
	return map[string][]string{
		"false": {"--ssl-mode=DISABLED"}, "preferred": {"--ssl-mode=PREFERRED"},
		"skip-verify": {"--ssl-mode=REQUIRED"}, "true": {"--ssl-mode=" + verify},
	}[mode]
}
