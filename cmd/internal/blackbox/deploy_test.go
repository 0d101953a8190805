package blackbox

import (
	"debug/elf"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// deployed returns the path of a file in deploy.
func deployed(name string) string { return filepath.Join("..", "..", "..", "deploy", name) }

// read reads a file in deploy.
func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(deployed(name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// manager is the notification socket of a fake service manager.
type manager struct {
	t    *testing.T
	conn *net.UnixConn
	said []string
}

// newManager opens a notification socket like systemd's.
func newManager(t *testing.T) *manager {
	t.Helper()
	dir, err := os.MkdirTemp("", "notify") // a socket path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "socket"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		_ = os.RemoveAll(dir)
	})
	return &manager{t: t, conn: conn}
}

// environment returns the variables that the manager sets for a service.
func (m *manager) environment(watchdog time.Duration) []string {
	return []string{"NOTIFY_SOCKET=" + m.conn.LocalAddr().String(), fmt.Sprintf("WATCHDOG_USEC=%d", watchdog.Microseconds())}
}

// await waits for a matching notification and returns all notifications up to it.
func (m *manager) await(pattern string) (before []string) {
	m.t.Helper()
	want, buffer := regexp.MustCompile("^"+pattern+"$"), make([]byte, 4096)
	if err := m.conn.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		m.t.Fatal(err)
	}
	for {
		for i, line := range m.said {
			if want.MatchString(line) {
				before, m.said = m.said[:i], m.said[i+1:]
				return before
			}
		}
		n, err := m.conn.Read(buffer)
		if err != nil {
			m.t.Fatalf("the service did not say %s, but %q: %v", pattern, m.said, err)
		}
		m.said = append(m.said, strings.Split(string(buffer[:n]), "\n")...)
	}
}

// underManager starts a relay under a manager.
func underManager(t *testing.T, config string, watchdog time.Duration) (*relay, *manager) {
	t.Helper()
	m := newManager(t)
	return launch(t, configFile(t, config), "", m.environment(watchdog)...), m
}

// The relay notifies the service manager that it is ready once it leads and reads, or stands
// by, and not earlier. It sends keep-alives even while it drains, and reports its stop.
func TestUnderAServiceManager(t *testing.T) {
	t.Parallel()
	aScene(t, "", func(s *scene) {
		way := servers.NewProxy(s.t, s.database)
		way.Disconnect()
		r, m := underManager(s.t, strings.Replace(s.config, s.database, way.URL(s.database), 1), 2*time.Second)
		for range 2 {
			if before := m.await("WATCHDOG=1"); contains(before, "READY=1") {
				s.t.Error("ready without a database")
			}
		}
		way.Reconnect()
		m.await("READY=1")
		m.await("STATUS=leading, epoch 1; reading the log")
		hold := make(chan struct{})
		s.to.Script(func(*sinktest.Request) sinktest.Answer { return sinktest.Answer{Release: hold} })
		s.number(1, 1, "1")
		within(s.t, testTimeout, func() string {
			return none(s.t, s.conn, "are not under way", "SELECT count(*) FROM outbox_events WHERE status <> 'PROCESSING'")
		})

		standby, of := underManager(s.t, s.config, 2*time.Second)
		if before := of.await("READY=1"); contains(before, "STOPPING=1") {
			s.t.Error("STOPPING before READY")
		}
		of.await("STATUS=standing by; .* leads")

		m.said = nil
		if err := r.cmd.Process.Signal(os.Interrupt); err != nil {
			s.t.Fatal(err)
		}
		m.await("STOPPING=1")
		m.await("WATCHDOG=1")
		m.await("WATCHDOG=1")
		close(hold)
		if code := r.exitCode(); code != 0 {
			s.t.Errorf("exit code %d, want 0", code)
		}
		of.await("STATUS=leading, epoch 2; reading the log")
		s.expectNumbered(1)
		expectStop(s.t, standby)
	})
}

func contains(list []string, line string) bool {
	return strings.Contains("\n"+strings.Join(list, "\n")+"\n", "\n"+line+"\n")
}

// systemd accepts the unit file. The unit does not restart the relay after errors that a
// restart cannot fix.
func TestSystemdUnit(t *testing.T) {
	t.Parallel()
	unit := read(t, "sluicebox.service")
	set := map[string]string{}
	for line := range strings.Lines(unit) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(line, "#") {
			set[key] = value
		}
	}
	if set["Type"] != "notify" || set["WatchdogSec"] == "" || set["Restart"] != "on-failure" {
		t.Errorf("the unit has unexpected settings %v", set)
	}
	_, _, usage := command(t, nil, "run", "--no-such-flag")
	_, _, config := command(t, nil, "run", "-c", configFile(t, "nothing: here\n"))
	if want := fmt.Sprint(usage, " ", config); set["RestartPreventExitStatus"] != want {
		t.Errorf("the exit codes that end it are %s, the program's are %s", set["RestartPreventExitStatus"], want)
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not there: systemd's own check of the unit is left out")
	}
	file := filepath.Join(t.TempDir(), "sluicebox.service")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(unit, "/usr/local/bin/sluicebox", binary)), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(analyze, "verify", "--man=no", file).CombinedOutput(); err != nil || strings.Contains(string(out), "sluicebox") {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

// instructions returns the instructions of the Dockerfile, by stage.
func instructions(t *testing.T) (stages [][]string) {
	t.Helper()
	for line := range strings.Lines(strings.ReplaceAll(read(t, "Dockerfile"), "\\\n", " ")) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case len(stages) == 0 && strings.HasPrefix(line, "ARG "): // arguments of the stages' FROM
		case strings.HasPrefix(line, "FROM "):
			stages = append(stages, []string{line})
		default:
			last := len(stages) - 1
			stages[last] = append(stages[last], line)
		}
	}
	return stages
}

// imageBinary builds the image's binary with the command from the Dockerfile.
func imageBinary(t *testing.T, stages [][]string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "sluicebox")
	for _, line := range stages[0] {
		build, ok := strings.CutPrefix(line, "RUN ")
		if !ok || !strings.Contains(build, "go build") {
			continue
		}
		if !strings.Contains(build, " -o /sluicebox ") {
			t.Fatalf("the binary is not built at the path that COPY reads: %s", build)
		}
		cmd := exec.Command("sh", "-c", strings.Replace(build, "-o /sluicebox ", "-o "+out+" ", 1))
		cmd.Dir = filepath.Join("..", "..", "..")
		cmd.Env = append(environment(), "VERSION=v0.0.0-image")
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", build, err, text)
		}
		return out
	}
	t.Fatal("the Dockerfile builds nothing")
	return ""
}

// The image contains its static binary, the CA certificates and nothing else. The binary runs
// as the image's user in a read-only root folder with nothing but itself and a
// configuration, and delivers.
func TestImage(t *testing.T) {
	t.Parallel()
	stages := instructions(t)
	image := stages[len(stages)-1]
	want := []string{
		"FROM scratch",
		"COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt",
		"COPY --from=build /sluicebox /sluicebox",
		"USER 65532:65532", "EXPOSE 8090", `ENTRYPOINT ["/sluicebox"]`, `CMD ["run", "-c", "/etc/sluicebox/sluicebox.yaml"]`,
	}
	if strings.Join(image, "\n") != strings.Join(want, "\n") {
		t.Errorf("the image is\n%s", strings.Join(image, "\n"))
	}
	built := imageBinary(t, stages)
	expectStatic(t, built)
	if out, err := exec.Command(built, "version").Output(); err != nil || !strings.Contains(string(out), "v0.0.0-image") {
		t.Errorf("version: %v %s", err, out)
	}
	t.Run("runs", func(t *testing.T) {
		aScene(t, "", func(s *scene) {
			r := emptyRoot(s.t, built, s.config)
			r.waitFor("source connected")
			s.number(1, 100, "i % 9")
			s.expectNumbered(100)
			expectStop(s.t, r)
		})
	})
}

// The image is built from every folder that has a package of the program.
func TestImageHasThePackages(t *testing.T) {
	t.Parallel()
	list := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{if .Main}}{{$.ImportPath}}{{end}}{{end}}", "github.com/sluicebox/sluicebox/cmd/sluicebox")
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	copied := "\n" + read(t, "Dockerfile.dockerignore")
	for path := range strings.FieldsSeq(string(out)) {
		folder := strings.TrimPrefix(strings.TrimPrefix(path, "github.com/sluicebox/sluicebox"), "/")
		if folder == "" {
			folder = "*.go"
		}
		for parent := folder; !strings.Contains(copied, "\n!"+parent+"\n"); parent = filepath.Dir(parent) {
			if parent == "." {
				t.Errorf("Dockerfile.dockerignore leaves out %s, of package %s", folder, path)
				break
			}
		}
	}
}

// The compose file has a configuration that the program accepts, and the outbox as it creates it.
func TestComposeFile(t *testing.T) {
	t.Parallel()
	var file struct {
		Configs map[string]struct{ Content string }
	}
	if err := yaml.Unmarshal([]byte(read(t, "compose.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	if out, errs, code := command(t, nil, "config", "check", "-c", configFile(t, file.Configs["relay"].Content)); code != 0 {
		t.Errorf("config check: exit code %d, want 0\n%s%s", code, out, errs)
	}
	want, errs, code := command(t, nil, "init", "--outbox", "outbox-messages", "--database", "postgres")
	if outbox := file.Configs["outbox"].Content; code != 0 || outbox == "" || !strings.HasPrefix(want, outbox) {
		t.Errorf("the outbox is\n%s\nwant that of init --outbox:\n%s%s", outbox, want, errs)
	}
}

// expectStatic expects a statically linked binary.
func expectStatic(t *testing.T, file string) {
	t.Helper()
	f, err := elf.Open(file)
	var other *elf.FormatError
	if errors.As(err, &other) {
		t.Skip("the binary is none for Linux: " + other.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("the binary is linked dynamically (%s)", p.Type)
		}
	}
}
