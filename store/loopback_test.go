package store_test

import (
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

func TestLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"127.0.0.1": true, "127.9.8.7": true, "::1": true, "[::1]": true, "::ffff:127.0.0.1": true, "localhost": true, "LocalHost": true,
		"/run/postgresql": true, "/tmp/mongodb-27017.sock": true,
		"": false, "0.0.0.0": false, "::": false, "10.0.0.1": false, "db": false, "localhost.example": false, "127.0.0.1.example": false,
	} {
		if got := store.Loopback(host); got != want {
			t.Errorf("%q: %t, want %t", host, got, want)
		}
	}
}
