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

// MongoSet is a replica set of MongoDB that one test has to itself.
type MongoSet struct {
	// URL leads to the set, and to no database in it. Its clients may do everything.
	// It stays the same when members are started again.
	URL string
	// Members are the set's servers, in no order of rank.
	Members []*MongoMember

	tb    testing.TB
	user  *url.Userinfo // who its own sessions are; nil where nobody is asked
	alone bool          // its server is no replica set
}

// MongoMember is one server of a set.
type MongoMember struct {
	// Address is host:port. It stays the same when the member is started again.
	Address string
	// Dir is the data folder.
	Dir string

	private
	// single is a member that is its set, once that is initiated: it elects itself.
	single bool
	frozen bool
}

// mongoSet is the name of each set.
const mongoSet = "rs0"

// mongoSettings are those of a user, so with a journal, and with an oplog, a cache and
// files of the journal that are small. A server that is asked to end would let its
// clients go on for 15 s before it does.
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

// parameter begins the names of settings that are parameters, and no options.
const parameter = "setParameter "

// StartMongo makes a new replica set of so many members, starts it, and returns when
// it has a primary and all others follow it. A primary that is silent for 1 s is
// replaced. Settings are options of the server without their dashes, such as
// oplogSize, in MB; a value of "" is an option without one; "setParameter NAME" is a
// parameter. They replace the defaults of this package. The set ends with the test.
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

// StandaloneMongo starts a server that is no replica set: it has no oplog, and so
// neither change streams nor transactions. Found makes a set of it.
func StandaloneMongo(tb testing.TB, settings map[string]string) *MongoSet {
	tb.Helper()
	settings = maps.Clone(settings)
	if settings == nil {
		settings = map[string]string{}
	}
	settings["replSet"] = removedSetting
	s := &MongoSet{tb: tb, alone: true, Members: []*MongoMember{startMember(tb, settings)}}
	s.setURL()
	return s
}

// ConvertToReplicaSet restarts the server of a StandaloneMongo as a replica set of one member.
// Clients of the URL that they have go on, and see a set.
func (s *MongoSet) ConvertToReplicaSet() {
	s.tb.Helper()
	m := s.Members[0]
	m.Restart(map[string]string{"replSet": mongoSet})
	s.alone = false
	s.initiate()
	s.awaitHealth()
}

// setURL names all members, and whom its sessions log in as.
func (s *MongoSet) setURL() {
	addresses := make([]string, len(s.Members))
	for i, m := range s.Members {
		addresses[i] = m.Address
	}
	query := url.Values{"replicaSet": {mongoSet}}
	if s.alone {
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
	base := folder(tb)
	m := &MongoMember{Dir: filepath.Join(base, "data"), private: private{
		tb: tb, name: mongoName, base: base, settings: mongoSettings(),
		bin: demand(tb, mongoVariable("BIN"), mongoName), env: append(environment(mongoVariable("LIB")), "TZ=UTC"),
		signals: map[string]os.Signal{"fast": syscall.SIGTERM, "immediate": syscall.SIGKILL},
	}}
	m.command = m.serve
	maps.Copy(m.settings, settings)
	maps.DeleteFunc(m.settings, func(_, value string) bool { return value == removedSetting })
	if err := os.Mkdir(m.Dir, 0o700); err != nil {
		tb.Fatal(err)
	}
	own(tb, m.Dir)
	m.launchAnywhere()
	m.Address = net.JoinHostPort("127.0.0.1", strconv.Itoa(m.port))
	return m
}

// serve returns the program that serves by the settings.
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

// Freeze stops the member where it is, as its host may be; Thaw lets it go on.
func (m *MongoMember) Freeze() {
	m.tb.Helper()
	m.frozen = true
	m.Signal(syscall.SIGSTOP)
	for range 1000 { // where nobody can tell, not at all
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.process.os.Pid))
		if err != nil || strings.Contains(string(stat), ") T ") {
			return
		}
		<-time.After(time.Millisecond)
	}
	m.tb.Error("the server does not stop")
}

// Thaw lets a member go on that Freeze stopped.
func (m *MongoMember) Thaw() {
	m.tb.Helper()
	m.Signal(syscall.SIGCONT)
	m.frozen = false
}

// Stop ends all members at once, as a server's Stop does, and tells how long that took.
func (s *MongoSet) Stop(mode string) time.Duration {
	began := time.Now()
	var all sync.WaitGroup
	for _, m := range s.Members {
		all.Go(func() { m.Stop(mode) })
	}
	all.Wait()
	return time.Since(began)
}

// Restart starts all members, those that run after a fast stop, and returns when the
// set has a primary and all others follow it. Settings are as for a server's Restart.
func (s *MongoSet) Restart(settings map[string]string) {
	s.tb.Helper()
	s.Stop("fast")
	for _, m := range s.Members {
		m.Restart(settings)
	}
	s.awaitHealth()
}

// Database names a new database in the set and returns its URL.
func (s *MongoSet) Database() string {
	s.tb.Helper()
	at, _ := mongoDatabase(s.tb, s.URL)
	return at
}

// TLS restarts the set so that it also takes sessions with TLS, and returns the file
// of the authority that signed its certificates, for localhost and 127.0.0.1.
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

// Auth restarts the set so that it asks who its clients are. URL is that of the user
// root from then on, who may do everything; Run makes others.
func (s *MongoSet) Auth() {
	s.tb.Helper()
	const secret = "onlyamongourselves" // of base64, by which the members know each other
	s.Run("admin", doc("createUser", "root", "pwd", "root", "roles", []string{"root"}))
	key := filepath.Join(s.Members[0].base, "key")
	write(s.tb, key, secret)
	s.user = url.UserPassword("root", "root")
	s.setURL()
	s.Restart(map[string]string{"keyFile": key})
}

func (m *MongoMember) String() string { return fmt.Sprintf("%s at %s", m.name, m.Address) }
