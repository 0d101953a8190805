package servers

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// KafkaCluster is a private Kafka cluster of one test, in KRaft mode.
//
// Its clients are User:ANONYMOUS, a superuser, at the plain addresses. At the others they are
// the user of their credentials, without any grant.
type KafkaCluster struct {
	Brokers []*KafkaBroker

	// CAFile is the PEM file of the CA that signed the certificate of the last broker. CertFile
	// and KeyFile are its own, which clients can use: they are User:CN=localhost.
	CAFile, CertFile, KeyFile string
}

// KafkaBroker is one broker of a cluster, which is a controller too. Its addresses, host:port,
// do not change when it restarts.
type KafkaBroker struct {
	Address string // without TLS and credentials
	SASL    string // with SASL; see kafkaSettings
	TLS     string // with TLS

	private
	id     int
	voters string
}

// KafkaPassword is the password of the user relay, by PLAIN.
const KafkaPassword = "kafka-secret"

// kafkaPorts is the number of ports of a broker.
const kafkaPorts = 4

// kafkaSettings returns production settings, but for small internal topics and short timeouts:
// a broker that is silent for 3 s loses its partitions.
func kafkaSettings() map[string]string {
	const module = "org.apache.kafka.common.security."
	return map[string]string{
		"process.roles":                         "broker,controller",
		"controller.listener.names":             "CONTROLLER",
		"inter.broker.listener.name":            "PLAIN",
		"listener.security.protocol.map":        "CONTROLLER:PLAINTEXT,PLAIN:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL",
		"auto.create.topics.enable":             "false",
		"offsets.topic.num.partitions":          "1",
		"group.initial.rebalance.delay.ms":      "0",
		"broker.session.timeout.ms":             "3000",
		"broker.heartbeat.interval.ms":          "300",
		"controller.quorum.fetch.timeout.ms":    "1000",
		"controller.quorum.election.timeout.ms": "500",
		"replica.lag.time.max.ms":               "5000",
		"log.cleaner.dedupe.buffer.size":        "2097152",

		"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"super.users":           "User:ANONYMOUS",

		"listener.name.sasl.sasl.enabled.mechanisms":        "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
		"listener.name.sasl.plain.sasl.jaas.config":         module + `plain.PlainLoginModule required user_relay="` + KafkaPassword + `";`,
		"listener.name.sasl.scram-sha-256.sasl.jaas.config": module + "scram.ScramLoginModule required;",
		"listener.name.sasl.scram-sha-512.sasl.jaas.config": module + "scram.ScramLoginModule required;",
		"listener.name.sasl.oauthbearer.sasl.jaas.config":   module + `oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="relay";`,
		"listener.name.tls.ssl.keystore.type":               "PEM",
		"listener.name.tls.ssl.truststore.type":             "PEM",
		"listener.name.tls.ssl.client.auth":                 "requested",
	}
}

// RequireKafka returns the directory of Kafka's jars. It skips the test if there is none.
func RequireKafka(tb testing.TB) (jars string) {
	tb.Helper()
	return requireEnv(tb, "SLUICEBOX_TEST_KAFKA_BIN", "Kafka")
}

// Kafka creates and starts a cluster of one or three brokers, and returns when all have
// started. Settings replace the defaults of this package. The cluster ends with the test.
func Kafka(tb testing.TB, brokers int, settings map[string]string) *KafkaCluster {
	tb.Helper()
	jars := RequireKafka(tb)
	c := &KafkaCluster{}
	for i := range brokers {
		b := &KafkaBroker{id: i + 1, private: private{
			tb: tb, name: fmt.Sprintf("Kafka %d", i+1), bin: jars, base: tempDir(tb), settings: kafkaSettings(), env: environment("SLUICEBOX_TEST_KAFKA_LIB"),
			signals: map[string]os.Signal{"fast": syscall.SIGTERM, "immediate": syscall.SIGKILL},
		}}
		b.settings["offsets.topic.replication.factor"] = fmt.Sprint(brokers)
		maps.Copy(b.settings, settings)
		b.command = b.serve
		b.format()
		c.CAFile, c.CertFile, c.KeyFile = b.useTLS()
		c.Brokers = append(c.Brokers, b)
		tb.Cleanup(b.end)
	}
	if err := onFreePort(c.launch); err != nil {
		tb.Fatal(err)
	}
	return c
}

// Addresses returns the plain addresses of the brokers.
func (c *KafkaCluster) Addresses() (all []string) {
	for _, b := range c.Brokers {
		all = append(all, b.Address)
	}
	return all
}

// launch starts all brokers on ports from this one on.
func (c *KafkaCluster) launch(port int) error {
	var voters []string
	for i, b := range c.Brokers {
		b.port = port + i*kafkaPorts
		voters = append(voters, fmt.Sprintf("%d@127.0.0.1:%d", b.id, b.port))
	}
	errs := make([]error, len(c.Brokers))
	var all sync.WaitGroup
	for i, b := range c.Brokers {
		b.voters = strings.Join(voters, ",")
		b.Address, b.SASL, b.TLS = b.address(1), b.address(2), b.address(3)
		all.Go(func() { errs[i] = b.launch() })
	}
	all.Wait()
	if !slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
		return nil
	}
	for _, b := range c.Brokers {
		b.Stop("immediate")
	}
	if slices.ContainsFunc(errs, func(err error) bool { return errors.Is(err, errPortTaken) }) {
		return errPortTaken
	}
	return errors.Join(errs...)
}

func (b *KafkaBroker) address(n int) string { return fmt.Sprintf("127.0.0.1:%d", b.port+n) }

// format creates the data directory, as a copy of the one that was formatted for its id.
func (b *KafkaBroker) format() {
	b.tb.Helper()
	from := filepath.Join(b.bin, "data", fmt.Sprint(b.id))
	cmd := exec.Command("cp", "-R", from, filepath.Join(b.base, "data"))
	cmd.SysProcAttr = attributes()
	if out, err := cmd.CombinedOutput(); err != nil {
		b.tb.Fatalf("making a data folder: %v\n%s", err, out)
	}
}

// useTLS creates the certificate of the broker, and returns its files.
func (b *KafkaBroker) useTLS() (caFile, certFile, keyFile string) {
	b.tb.Helper()
	caFile, certFile, keyFile = b.certify()
	pair := filepath.Join(b.base, "server.pem")
	var text []byte
	for _, file := range []string{keyFile, certFile} {
		pem, err := os.ReadFile(file)
		if err != nil {
			b.tb.Fatal(err)
		}
		text = append(text, pem...)
	}
	write(b.tb, pair, string(text))
	b.settings["listener.name.tls.ssl.keystore.location"] = pair
	b.settings["listener.name.tls.ssl.truststore.location"] = caFile
	return caFile, certFile, keyFile
}

// serve writes the settings, and returns the command of the broker and its ready message.
func (b *KafkaBroker) serve() (cmd *exec.Cmd, ready string) {
	b.tb.Helper()
	settings := maps.Clone(b.settings)
	settings["node.id"] = fmt.Sprint(b.id)
	settings["controller.quorum.voters"] = b.voters
	settings["log.dirs"] = filepath.Join(b.base, "data")
	outside := fmt.Sprintf("PLAIN://%s,SASL://%s,TLS://%s", b.Address, b.SASL, b.TLS)
	settings["listeners"] = fmt.Sprintf("CONTROLLER://%s,%s", b.address(0), outside)
	settings["advertised.listeners"] = outside
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&text, "%s=%s\n", name, settings[name])
	}
	file := filepath.Join(b.base, "server.properties")
	write(b.tb, file, text.String())

	cmd = exec.Command("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:SharedArchiveFile=classes.jsa",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",
		"-cp", "lib/*", "kafka.Kafka", file) // as the archive was made
	cmd.Dir, cmd.Env = b.bin, b.env
	cmd.SysProcAttr = killedAttributes()
	return cmd, "Kafka Server started"
}
