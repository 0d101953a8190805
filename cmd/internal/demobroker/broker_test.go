package demobroker_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicebox/sluicebox/cmd/internal/demobroker"
	"github.com/sluicebox/sluicebox/dispatch/sink/sinktest"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// An address is checked before anything is created. No error shows a password.
func TestCheck(t *testing.T) {
	for address, want := range map[string]string{
		"kafka://k1:9092,k2:9092": "",
		"kafka://relay:canary@k1:9093?mechanism=SCRAM-SHA-512&tls=true":                        "",
		"kafka://k1:9093?ca-file=/ca.pem&cert-file=/c.pem&key-file=/k.pem":                     "",
		"nats://relay:canary@n1:4222":                                                          "",
		"http://h":                                                                             "is not of the form amqp://host:port, kafka://host:port, nats://host:port",
		"kafka://relay:canary@k1:9093":                                                         "no mechanism for the user; add ?mechanism=scram-sha-512, scram-sha-256 or plain",
		"kafka://relay@k1:9093?mechanism=plain":                                                "sasl.password is not set",
		"kafka://relay:canary@k1:9093?mechanism=digest":                                        "sasl.mechanism is \"digest\"",
		"kafka://k1:9093?tls=maybe":                                                            "tls is \"maybe\", must be true or false",
		"kafka://relay:canary@k1:9093?mechanism=plain&cafile=/ca.pem":                          "unknown parameter cafile; there are mechanism, tls, ca-file, cert-file and key-file",
		"kafka://relay:canary@k1:9093?mechanism=plain&tls=true&cert-file=/only-one-of-two.pem": "key-file",
	} {
		err := demobroker.Check(address)
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "canary")) {
			t.Errorf("%s: %v, want %q", address, err, want)
		}
	}
}

// The topics that earlier programs left are found by their prefix, and removed.
func TestLeftovers(t *testing.T) {
	for name, start := range map[string]func() string{
		"nats":  func() string { return servers.NATS.Start(t, nil).URL },
		"kafka": func() string { return "kafka://" + servers.Kafka(t, 1, nil).Addresses()[0] },
	} {
		t.Run(name, func(t *testing.T) {
			address := start()
			for _, topic := range []string{"a_1", "a_2", "b_1"} {
				left, err := demobroker.Create(t.Context(), address, topic, false)
				if err != nil {
					t.Fatal(err)
				}
				left.Close()
			}
			expect := func(want ...string) {
				t.Helper()
				for deadline := time.Now().Add(30 * time.Second); ; { // a broker of Kafka learns later of a change
					got, err := demobroker.Leftovers(t.Context(), address, "a_")
					if slices.Sort(got); err == nil && slices.Equal(got, want) {
						return
					}
					if time.Now().After(deadline) {
						t.Fatalf("got %q and %v, want %q", got, err, want)
					}
				}
			}
			expect("a_1", "a_2")
			if err := demobroker.Remove(t.Context(), address, "a_1"); err != nil {
				t.Error(err)
			}
			expect("a_2")
			if got := demobroker.Removal(address, "a_2"); !strings.HasSuffix(got, " a_2") {
				t.Errorf("the command is %q", got)
			}
		})
	}
}

// A program that ends without a word leaves nothing on RabbitMQ, unless it was to be kept.
func TestNothingIsLeftOnRabbitMQ(t *testing.T) {
	server := servers.RabbitMQ(t, nil)
	for keep, want := range map[bool]string{false: "[false,false]", true: "[true,true]"} {
		name := fmt.Sprintf("t%t", keep)
		left, err := demobroker.Create(t.Context(), server.URL, name, keep)
		if err != nil {
			t.Fatal(err)
		}
		left.Close()
		got := server.Control(fmt.Sprintf(`[rabbit_amqqueue:exists(rabbit_misc:r(<<"/">>, queue, <<%q>>)), element(1, rabbit_exchange:lookup(rabbit_misc:r(<<"/">>, exchange, <<%q>>))) =:= ok].`, name, name))
		if !strings.Contains(strings.ReplaceAll(got, " ", ""), want) {
			t.Errorf("with keep %t there are %s, want %s", keep, got, want)
		}
	}
}

// A broker that refuses the login may echo it: no error shows a password.
func TestEchoedPassword(t *testing.T) {
	for scheme, serve := range map[string]func(net.Conn){"kafka": sinktest.EchoKafka, "nats": sinktest.EchoNATS, "amqp": sinktest.EchoAMQP} {
		t.Run(scheme, func(t *testing.T) {
			at := sinktest.Echo(t, serve)
			address := scheme + "://relay:canary4711@" + at
			if scheme == "kafka" {
				address += "?mechanism=plain"
			}
			// A client repeats a refused login until its context ends, which must not end the first one.
			var errs, all []error
			for limit := 2 * time.Second; limit < time.Minute; limit *= 4 {
				errs = echoedErrors(t, limit, address, scheme != "amqp")
				all = append(all, errs...)
				if strings.Contains(errs[0].Error(), "you sent") {
					break
				}
			}
			for _, err := range all {
				if err == nil || strings.Contains(err.Error(), "canary") {
					t.Errorf("error %v, want one without the password", err)
				}
			}
			if got := errs[0].Error(); !strings.Contains(got, "you sent") || !strings.Contains(got, "[redacted]") {
				t.Errorf("error %s, want the broker's words without the password", got)
			}
		})
	}
}

// echoedErrors returns the errors of all calls, first that of Create.
func echoedErrors(t *testing.T, limit time.Duration, address string, removes bool) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	_, err := demobroker.Create(ctx, address, "t", false)
	if err == nil {
		t.Fatal("an echo took the login")
	}
	errs := []error{err}
	if producer, err := demobroker.Produce(address, "t"); err == nil {
		errs = append(errs, producer.Send(ctx, []demobroker.Row{{Key: []byte("k"), Payload: []byte("p")}}))
		producer.Close()
	} else {
		errs = append(errs, err)
	}
	if removes {
		_, err = demobroker.Leftovers(ctx, address, "t")
		errs = append(errs, err, demobroker.Remove(ctx, address, "t"))
	}
	return errs
}
