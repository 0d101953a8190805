package blackbox

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// mysqlScript returns a transaction for the mariadb client; client counts from 0.
func mysqlScript(s script, client int) string {
	if s.plain != "" {
		return s.plain + ";\n"
	}
	group, late := rand.IntN(s.groups)+1, 0
	if s.ownGroups {
		group += client * s.groups
	}
	if s.late {
		late = rand.IntN(41)
	}
	in := fmt.Sprintf("'group-%d'", group)
	if s.ungrouped {
		in = "NULL"
	}
	columns, rest := ", status, created_at", ", 'PENDING', @at"
	if s.outbox == "messages" {
		columns, rest = "", "" // they have defaults
	}
	return fmt.Sprintf(`BEGIN; SET @at = now(6); DO sleep(%g);
UPDATE truth SET n = last_insert_id(n + 1) WHERE outbox = '%[2]s' AND grp = %[3]d;
SET @id = concat(upper(left('%[2]s', 1)), lpad(%[3]d, 4, '0'), lpad(last_insert_id(), 8, '0'));
INSERT INTO %[4]s (id, type, message_group, payload%[5]s) VALUES (@id, '%[6]s', %[7]s, concat('{"id": "', @id, '", "type": "order.created", "n": ', last_insert_id(), '}')%[8]s);
COMMIT;
`, float64(late)/1000, s.outbox, group, s.table, columns, s.kind, in, rest)
}

// writers are client processes that write a load.
type writers struct {
	load
	ticks <-chan time.Time // nil: unlimited rate

	mu     sync.Mutex
	failed error
	work   sync.WaitGroup
}

// clients writes a load with the mariadb client, which connects to both flavours.
func clients(t testing.TB, database string, l load) (wait func()) {
	t.Helper()
	w := &writers{load: l}
	stop := func() {}
	if l.rate > 0 {
		ticker := time.NewTicker(time.Second / time.Duration(l.rate))
		w.ticks, stop = ticker.C, ticker.Stop
	}
	for i := range l.clients {
		cmd := servers.ClientMySQL(t, asRoot(t, database))
		var said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &said, &said
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		until := time.Now().Add(time.Duration(l.seconds) * time.Second)
		w.work.Go(func() {
			err := w.feed(in, i, until)
			if ended := cmd.Wait(); ended != nil {
				err = fmt.Errorf("%w: %s", ended, said.String())
			}
			w.fail(err)
		})
	}
	done := make(chan struct{})
	go func() { w.work.Wait(); stop(); close(done) }()
	return func() {
		t.Helper()
		select {
		case <-done:
			if (w.failed != nil) != l.broken {
				t.Fatalf("a client ended: %v", w.failed)
			}
		case <-time.After(l.most()):
			t.Fatal("the clients do not end")
		}
	}
}

func (w *writers) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failed = errors.Join(w.failed, err)
}

// feed sends one client its transactions, one at a time.
func (w *writers) feed(in io.WriteCloser, client int, until time.Time) error {
	defer func() { _ = in.Close() }()
	for n := 0; w.transactions == 0 || n < w.transactions/w.clients; n++ {
		if w.ticks != nil {
			<-w.ticks
		}
		if w.transactions == 0 && !time.Now().Before(until) {
			break
		}
		if _, err := io.WriteString(in, mysqlScript(w.scripts[rand.IntN(len(w.scripts))], client)); err != nil {
			return err
		}
	}
	return nil
}
