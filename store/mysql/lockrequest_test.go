package mysql

import (
	"testing"

	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// TestPingTakesOneRoundTrip checks that a ping is one statement.
func TestPingTakesOneRoundTrip(t *testing.T) {
	for _, f := range servers.Flavours() {
		t.Run(string(f), func(t *testing.T) {
			s, _, _ := leading(t, f)
			taken, err := s.Lock(rigs.Context(t))
			if err != nil {
				t.Fatal(err)
			}
			defer taken.Release()
			w := taken.(*lock).conn.wire
			wire := &counted{Conn: w.Conn}
			w.Conn = wire

			for want := range int64(2) {
				before := wire.sent.Load()
				for range 4 {
					rigs.WantRequestCount(t, "a ping", taken, want)
				}
				if n := wire.sent.Load() - before; n != 4 {
					t.Errorf("4 pings with %d wishes are %d commands", want, n)
				}
				if want > 0 {
					break
				}
				if err := s.RequestSavepoint(rigs.Context(t), "here", false); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
