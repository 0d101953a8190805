package servers

import (
	"os"
	"strings"
	"testing"
)

// TestComposeSettings compares the servers of compose.yaml with those of servers.sh and of
// this package: a setting that one lacks makes tests fail on other machines only.
func TestComposeSettings(t *testing.T) {
	sizes := []string{"max-connections=500", "max-binlog-size=16M"} // of the shared servers
	for name, settings := range map[string]map[string]string{
		"pg15":    postgresSettings(),
		"mysql":   MySQL.privateSettings(),
		"mariadb": MariaDB.privateSettings(),
		"mongo":   mongoSettings(),
	} {
		t.Run(name, func(t *testing.T) {
			have := composeCommand(t, name)
			want := map[string]bool{}
			for key, value := range settings {
				switch key {
				case "listen_addresses", "unix_socket_directories", "bind-address", "socket", "bind_ip", "nounixsocket", "quiet":
					continue // the container's own
				case "oplogSize":
					value = "512" // shared by all tests
				case "wiredTigerCacheSizeGB":
					value = "0.5"
				}
				want[option(name, key, value)] = true
			}
			if name == "mysql" || name == "mariadb" {
				for _, size := range sizes {
					want["--"+size] = true
				}
			}
			for text := range want {
				if !strings.Contains(have, " "+text+" ") {
					t.Errorf("compose.yaml lacks %q:\n%s", text, have)
				}
			}
		})
	}
}

// option returns a setting as the server's command line has it.
func option(server, key, value string) string {
	parameterName, isParameter := strings.CutPrefix(key, parameter)
	switch {
	case server == "pg15":
		return "-c " + key + "=" + value
	case isParameter:
		return "--setParameter " + parameterName + "=" + value
	case server == "mongo":
		return "--" + key + " " + value
	}
	return "--" + key + "=" + value
}

// composeCommand returns the command of a service, as one line without quotes.
func composeCommand(t *testing.T, service string) string {
	t.Helper()
	text, err := os.ReadFile("compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n  "+service+":")
	_, rest, _ = strings.Cut(rest, "    command:")
	command, _, found := strings.Cut(rest, "    ports:")
	if !found {
		t.Fatalf("compose.yaml has no command of %s with ports behind it", service)
	}
	return strings.Join(strings.Fields(strings.ReplaceAll(command, "'", "")), " ") + " "
}
