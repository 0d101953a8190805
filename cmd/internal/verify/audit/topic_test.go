package audit_test

import (
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/cmd/internal/verify"
	"github.com/sluicebox/sluicebox/cmd/internal/verify/audit"
	"github.com/sluicebox/sluicebox/dispatch/sink/kafka"
	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
)

// A broker that refuses the login may echo it: the error shows no password.
func TestTopicEchoesPassword(t *testing.T) {
	c := kafka.DefaultConfig()
	c.Brokers, c.Topic = []string{sinktest.Echo(t, sinktest.EchoKafka)}, "t"
	c.SASL.Mechanism, c.SASL.User, c.SASL.Password = kafka.MechanismPlain, "relay", "canary4711"
	options, err := kafka.ClientOptions(c)
	if err != nil {
		t.Fatal(err)
	}
	r, err := audit.OpenTopic(audit.Topic{Name: "t", Clean: func(err error) error { return kafka.Clean(c, err) }}, 0, options)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	err = r.Read(t.Context(), func(verify.Arrival) {})
	if err == nil || !strings.Contains(err.Error(), "you sent") || strings.Contains(err.Error(), "canary") {
		t.Errorf("error %v, want the broker's words without the password", err)
	}
}
