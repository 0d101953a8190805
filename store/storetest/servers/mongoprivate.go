package servers

import (
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// MongoSet is a private MongoDB replica set of one test.
type MongoSet struct {
	// URL is the URL of the set, without a database. Its user has all privileges. It does
	// not change when members restart.
	URL string
	// Members are the set's servers, in no order.
	Members []*MongoMember

	tb         testing.TB
	user       *url.Userinfo // of the set's own sessions; nil without access control
	standalone bool          // a standalone server, not a replica set
}

// MongoMember is one server of a set.
type MongoMember struct {
	// Address is host:port. It does not change when the member restarts.
	Address string
	// Dir is the data directory.
	Dir string

	private
	// single is the only member of its set, and elects itself after the set's initiation.
	single bool
	frozen bool
}

// mongoSet is the name of each set.
const mongoSet = "rs0"

// mongoSettings returns production settings, so with a journal, but with a small oplog,
// cache and journal files. The shutdown timeout is short because a server otherwise lets
// its clients continue for 15 s.
func mongoSettings() map[string]string {
	return map[string]string{
		"bind_ip":                      "127.0.0.1",
		"nounixsocket":                 "",
		"quiet":                        "",
		"replSet":                      mongoSet,
		"oplogSize":                    "64",
		"wiredTigerCacheSizeGB":        "0.25",
		"wiredTigerEngineConfigString": "log=(prealloc=false,file_max=16MB)",
		parameter + "diagnosticDataCollectionEnabled":          "false",
		parameter + "shutdownTimeoutMillisForSignaledShutdown": "100",
	}
}

// parameter is the prefix of settings that are server parameters instead of options.
const parameter = "setParameter "

// StartMongo creates and starts a replica set, and returns when it has a primary that all
// other members follow. A primary that is silent for 1 s is replaced. The set ends with the
// test.
//
// Settings replace the defaults of this package. Their keys are:
//
//   - a server option without dashes, for example oplogSize in MB; the value "" means an
//     option without a value,
//   - "setParameter NAME", a server parameter.
func StartMongo(tb testing.TB, members int, settings map[string]string) *MongoSet {
	tb.Helper()
	s := &MongoSet{tb: tb}
	for range members {
		s.Members = append(s.Members, startMember(tb, settings))
	}
	s.setURL()
	s.initiate()
	s.awaitHealth()
	return s
}

// StandaloneMongo starts a server that is not a replica set: it has no oplog, and so
// neither change streams nor transactions. ConvertToReplicaSet converts it.
func StandaloneMongo(tb testing.TB, settings map[string]string) *MongoSet {
	tb.Helper()
	settings = maps.Clone(settings)
	if settings == nil {
		settings = map[string]string{}
	}
	settings["replSet"] = removedSetting
	s := &MongoSet{tb: tb, standalone: true, Members: []*MongoMember{startMember(tb, settings)}}
	s.setURL()
	return s
}

// ConvertToReplicaSet restarts the server of a StandaloneMongo as a replica set of one
// member. Clients of the old URL continue to work, and see a set.
func (s *MongoSet) ConvertToReplicaSet() {
	s.tb.Helper()
	m := s.Members[0]
	m.Restart(map[string]string{"replSet": mongoSet})
	s.standalone = false
	s.initiate()
	s.awaitHealth()
}

// setURL sets the URL from all members and the user.
func (s *MongoSet) setURL() {
	addresses := make([]string, len(s.Members))
	for i, m := range s.Members {
		addresses[i] = m.Address
	}

	query := url.Values{"replicaSet": {mongoSet}}
	if s.standalone {
		query.Del("replicaSet")
	}
	if s.user != nil {
		query.Set("authSource", "admin")
	}

	at := url.URL{Scheme: "mongodb", User: s.user, Host: strings.Join(addresses, ","), Path: "/", RawQuery: query.Encode()}
	s.URL = at.String()
}

func startMember(tb testing.TB, settings map[string]string) *MongoMember {
	tb.Helper()
	base := tempDir(tb)
	m := &MongoMember{Dir: filepath.Join(base, "data"), private: private{
		tb: tb, name: mongoName, base: base, settings: mongoSettings(),
		bin: requireEnv(tb, mongoVariable("BIN"), mongoName), env: append(environment(mongoVariable("LIB")), "TZ=UTC"),
		signals: map[string]os.Signal{"fast": syscall.SIGTERM, "immediate": syscall.SIGKILL},
	}}
	m.command = m.serve
	maps.Copy(m.settings, settings)
	maps.DeleteFunc(m.settings, func(_, value string) bool { return value == removedSetting })
	if err := os.Mkdir(m.Dir, 0o700); err != nil {
		tb.Fatal(err)
	}

	chown(tb, m.Dir)
	m.launchAnywhere()
	m.Address = net.JoinHostPort("127.0.0.1", strconv.Itoa(m.port))
	return m
}

// serve returns the server command with the settings, and its ready message.
func (m *MongoMember) serve() (cmd *exec.Cmd, ready string) {
	args := []string{"--dbpath=" + m.Dir, "--port=" + strconv.Itoa(m.port)}
	for _, name := range slices.Sorted(maps.Keys(m.settings)) {
		value := m.settings[name]
		if parameter, is := strings.CutPrefix(name, parameter); is {
			args = append(args, "--setParameter", parameter+"="+value)
			continue
		}
		option := "--" + name
		if value != "" {
			option += "=" + value
		}
		args = append(args, option)
	}

	ready = "Waiting for connections"
	if m.single {
		ready = "Transition to primary complete"
	}

	return m.program("mongod", args...), ready
}

// Freeze stops the member's process, like a frozen host, until Thaw.
func (m *MongoMember) Freeze() {
	m.tb.Helper()
	m.frozen = true
	m.Signal(syscall.SIGSTOP)
	for range 1000 { // without /proc it does not wait
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.process.os.Pid))
		if err != nil || strings.Contains(string(stat), ") T ") {
			return
		}
		<-time.After(time.Millisecond)
	}
	m.tb.Error("the server does not stop")
}

// Thaw continues a member that Freeze stopped.
func (m *MongoMember) Thaw() {
	m.tb.Helper()
	m.Signal(syscall.SIGCONT)
	m.frozen = false
}

// Stop stops all members in parallel, see MySQLServer.Stop, and returns the duration.
func (s *MongoSet) Stop(mode string) time.Duration {
	began := time.Now()
	var all sync.WaitGroup
	for _, m := range s.Members {
		all.Go(func() { m.Stop(mode) })
	}
	all.Wait()
	return time.Since(began)
}

// Restart restarts all members, after a fast stop if they run. It returns when the set has
// a primary that all other members follow. Settings are as for a server's Restart.
func (s *MongoSet) Restart(settings map[string]string) {
	s.tb.Helper()
	s.Stop("fast")
	for _, m := range s.Members {
		m.Restart(settings)
	}
	s.awaitHealth()
}

// Database returns the URL of a new database in the set.
func (s *MongoSet) Database() string {
	s.tb.Helper()
	at, _ := mongoDatabase(s.tb, s.URL)
	return at
}

// TLS restarts the set so that it also accepts TLS. It returns the file of the CA that
// signed its certificate for localhost and 127.0.0.1.
func (s *MongoSet) TLS() (caFile string) {
	s.tb.Helper()
	caFile, certFile, keyFile := s.Members[0].certify()
	both := filepath.Join(s.Members[0].base, "both.pem")
	var pem strings.Builder
	for _, file := range []string{certFile, keyFile} {
		text, err := os.ReadFile(file)
		if err != nil {
			s.tb.Fatal(err)
		}
		pem.Write(text)
	}

	write(s.tb, both, pem.String())
	s.Restart(map[string]string{
		"tlsMode": "allowTLS", "tlsCertificateKeyFile": both, "tlsCAFile": caFile, "tlsAllowConnectionsWithoutCertificates": "",
	})
	return caFile
}

// Auth restarts the set with access control. URL then has the user root with all
// privileges; Run can create other users.
func (s *MongoSet) Auth() {
	s.tb.Helper()
	const secret = "onlyamongourselves" // base64; shared by the members
	s.Run("admin", doc("createUser", "root", "pwd", "root", "roles", []string{"root"}))
	key := filepath.Join(s.Members[0].base, "key")
	write(s.tb, key, secret)
	s.user = url.UserPassword("root", "root")
	s.setURL()
	s.Restart(map[string]string{"keyFile": key})
}

func (m *MongoMember) String() string { return fmt.Sprintf("%s at %s", m.name, m.Address) }
