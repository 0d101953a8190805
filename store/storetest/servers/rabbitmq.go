package servers

import (
	"bytes"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// rabbitCookie lets the tools of a server talk to it.
const rabbitCookie = "SLUICEBOX"

// RabbitMQServer is a private RabbitMQ server of one test, with the user guest, who may do
// everything in the virtual host /.
type RabbitMQServer struct {
	// URL is its address, which does not change when it restarts.
	URL  string
	epmd int // port on which the Erlang nodes of this server find each other
	dist int // port of its node for tools
	private
}

// RabbitMQ starts a server, which takes some seconds. It ends with the test. Settings are those of
// its configuration file, for example max_message_size; The test is
// skipped if the program is not there.
func RabbitMQ(tb testing.TB, settings map[string]string) *RabbitMQServer {
	tb.Helper()
	bin := requireEnv(tb, "SLUICEBOX_TEST_RABBITMQ_BIN", "RabbitMQ")
	base := tempDir(tb)
	s := &RabbitMQServer{epmd: freePort(tb), dist: freePort(tb), private: private{
		tb: tb, name: "RabbitMQ", base: base, bin: bin,
		settings: map[string]string{"log.file": "false", "log.console": "true"},
		signals:  map[string]os.Signal{"fast": syscall.SIGTERM, "immediate": syscall.SIGKILL},
	}}
	write(tb, filepath.Join(base, ".erlang.cookie"), rabbitCookie)
	s.env = s.environment()
	s.command = s.serve
	maps.Copy(s.settings, settings)
	names, err := run(s.program("epmd", "-d"), "epmd running")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if _, err := names.end(syscall.SIGKILL); err != nil {
			tb.Error(err)
		}
	})
	s.launchAnywhere()
	s.URL = fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d", s.port)
	return s
}

// environment returns the environment of the programs. Nothing of an installed server is used.
func (s *RabbitMQServer) environment() []string {
	file := func(name string) string { return filepath.Join(s.base, name) }
	return append(os.Environ(),
		"HOME="+s.base, "PATH="+s.bin+":"+os.Getenv("PATH"), "LC_ALL=C.UTF-8",
		fmt.Sprintf("ERL_EPMD_PORT=%d", s.epmd), "ERL_EPMD_ADDRESS=127.0.0.1",
		fmt.Sprintf("RABBITMQ_DIST_PORT=%d", s.dist), "RABBITMQ_NODENAME=rabbit@localhost",
		"RABBITMQ_CONF_ENV_FILE=/dev/null", "RABBITMQ_CONFIG_FILE="+file("rabbitmq.conf"),
		"RABBITMQ_ADVANCED_CONFIG_FILE="+file("advanced.config"),
		"RABBITMQ_ENABLED_PLUGINS_FILE="+file("plugins"), "RABBITMQ_PID_FILE="+file("pid"),
		"RABBITMQ_MNESIA_BASE="+file("data"), "RABBITMQ_LOG_BASE="+file("log"), "RABBITMQ_LOGS=-",
		// One scheduler that does not spin starts fastest beside others.
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}",
		"RUNNING_UNDER_SYSTEMD=true", // the script becomes the server
	)
}

// serve returns the command that serves on the server's port.
func (s *RabbitMQServer) serve() (*exec.Cmd, string) {
	s.tb.Helper()
	listener := "listeners.tcp.1"
	if s.settings["ssl_options.certfile"] != "" {
		listener = "listeners.tcp = none\nlisteners.ssl.1"
	}
	text := fmt.Sprintf("%s = 127.0.0.1:%d\n", listener, s.port)
	for _, name := range slices.Sorted(maps.Keys(s.settings)) {
		text += name + " = " + s.settings[name] + "\n"
	}
	write(s.tb, filepath.Join(s.base, "rabbitmq.conf"), text)
	cmd := s.program("rabbitmq-server")
	cmd.SysProcAttr = killedAttributes()
	return cmd, "Server startup complete"
}

// Enable makes the server use plugins after its next start.
func (s *RabbitMQServer) Enable(plugins ...string) {
	s.tb.Helper()
	write(s.tb, filepath.Join(s.base, "plugins"), "["+strings.Join(plugins, ",")+"].\n")
}

// Control evaluates Erlang expressions in the server, as rabbitmqctl does a second later, for
// example "rabbit_alarm:get_alarms()." It returns the result of the last one.
func (s *RabbitMQServer) Control(code string) string {
	s.tb.Helper()
	cmd := s.program("erl_call", "-sname", "rabbit@localhost", "-c", rabbitCookie, "-e")
	cmd.Stdin = strings.NewReader(code + "\n")
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.HasPrefix(out, []byte("{ok, ")) {
		s.tb.Fatalf("%s: %v %s", code, err, out)
	}
	return string(out)
}

// Block raises the alarm of the memory, which blocks those who publish, and Unblock ends it.
func (s *RabbitMQServer) Block() { s.setWatermark("0.00001") }

// Unblock ends Block.
func (s *RabbitMQServer) Unblock() { s.setWatermark("0.9") }

func (s *RabbitMQServer) setWatermark(of string) {
	s.tb.Helper()
	s.Control("vm_memory_monitor:set_vm_memory_high_watermark(" + of + ").")
}

// TLS restarts the server with a certificate for localhost and 127.0.0.1, and returns the file of
// the CA that signed it. It asks clients for a certificate of that CA too, for example the
// server's own, whose files it returns.
func (s *RabbitMQServer) TLS() (caFile, certFile, keyFile string) {
	s.tb.Helper()
	caFile, certFile, keyFile = s.certify()
	s.Restart(map[string]string{
		"ssl_options.cacertfile": caFile, "ssl_options.certfile": certFile, "ssl_options.keyfile": keyFile,
		"ssl_options.verify": "verify_peer", "ssl_options.fail_if_no_peer_cert": "true",
	})
	s.URL = strings.Replace(s.URL, "amqp:", "amqps:", 1)
	return caFile, certFile, keyFile
}

// freePort returns a port that nobody listens on.
func freePort(tb testing.TB) (free int) {
	tb.Helper()
	err := onFreePort(func(port int) error {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return errPortTaken
		}
		free = port
		return l.Close()
	})
	if err != nil {
		tb.Fatal(err)
	}
	return free
}
