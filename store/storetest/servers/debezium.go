package servers

import (
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// DebeziumEngine is Debezium's connector for PostgreSQL with the outbox event router, in its embedded
// engine. It writes to Kafka. It keeps its offsets when it restarts.
type DebeziumEngine struct {
	private
}

// RequireDebezium skips the test without the program, as with make test.
func RequireDebezium(tb testing.TB) (bin string) {
	tb.Helper()
	if bin = os.Getenv("SLUICEBOX_TEST_DEBEZIUM_BIN"); bin == "" {
		tb.Skip("SLUICEBOX_TEST_DEBEZIUM_BIN is not set; name debezium to servers.sh")
	}
	return bin
}

// Debezium starts an engine that routes the rows of public.outbox of a database, and returns once it
// polls. Settings are added to its own. The engine ends with the test.
func Debezium(tb testing.TB, database string, kafka []string, settings map[string]string) *DebeziumEngine {
	tb.Helper()
	bin := RequireDebezium(tb)
	at, err := url.Parse(database)
	if err != nil {
		tb.Fatal(err)
	}
	password, _ := at.User.Password()
	e := &DebeziumEngine{private: private{
		tb: tb, name: "Debezium", bin: bin, base: tempDir(tb), env: environment("SLUICEBOX_TEST_DEBEZIUM_LIB"),
		signals: map[string]os.Signal{"fast": syscall.SIGTERM, "immediate": syscall.SIGKILL},
	}}
	e.settings = map[string]string{
		"name": "outbox", "topic.prefix": "outbox", "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
		"database.hostname": at.Hostname(), "database.port": at.Port(), "database.dbname": strings.TrimPrefix(at.Path, "/"),
		"database.user": at.User.Username(), "database.password": password, "plugin.name": "pgoutput",
		"publication.autocreate.mode": "filtered", "table.include.list": "public.outbox", "snapshot.mode": "no_data",
		"offset.storage":               "org.apache.kafka.connect.storage.FileOffsetBackingStore",
		"offset.storage.file.filename": filepath.Join(e.base, "offsets"),
		"transforms":                   "outbox", "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
		"converter.schemas.enable": "false",
		"kafka.bootstrap.servers":  strings.Join(kafka, ","), "kafka.acks": "all", "kafka.enable.idempotence": "true",
	}
	maps.Copy(e.settings, settings)
	e.command = e.serve
	tb.Cleanup(e.end)
	if err := e.launch(); err != nil {
		tb.Fatal(err)
	}
	return e
}

// serve writes the settings, and returns the command of the engine and its ready message.
func (e *DebeziumEngine) serve() (cmd *exec.Cmd, ready string) {
	e.tb.Helper()
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(e.settings)) {
		fmt.Fprintf(&text, "%s=%s\n", name, e.settings[name])
	}
	file := filepath.Join(e.base, "engine.properties")
	write(e.tb, file, text.String())
	return e.program("jdk/bin/java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		"-cp", e.bin+"/lib/*:"+e.bin, "Router", file), "engine started"
}

// Forget removes the offsets of a stopped engine, as a connector with a new name has none.
func (e *DebeziumEngine) Forget() {
	e.tb.Helper()
	if err := os.Remove(e.settings["offset.storage.file.filename"]); err != nil {
		e.tb.Fatal(err)
	}
}
