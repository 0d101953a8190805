package blackbox

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/sluicebox/sluicebox/deploy/inbox"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// verified relays events to a receiver that writes receipts.
const verified = `
name: %s
source: {url: %q, mode: stream}
outboxes: [{table: outbox_events, layout: flowcatalyst, kind: EVENT, sink: out}]
sinks: {out: {%s}}
admin: {listen: %s}
`

// verification is the output of sluicebox verify --json.
type verification struct {
	Faulty  bool
	Targets []struct {
		Rows, Completed, Failed, Waiting, Arrived, Unknown, Lost, Duplicates int
		FalseCompleted                                                       int `json:"false_completed"`
		OutOfOrder                                                           int `json:"out_of_order"`
		BodyDiffers                                                          int `json:"body_differs"`
		Findings                                                             []verifyFinding
	}
}

type verifyFinding struct {
	Kind, ID, Lane, Behind string
	Arrivals               int
}

// add inserts rows from..to of two groups, in the order of their numbers. State is that of the rows.
func (s *scene) add(from, to int, state string) {
	s.t.Helper()
	for i := from; i <= to; i++ {
		_, err := s.conn.exec(`INSERT INTO outbox_events (id, type, message_group, payload, status, created_at) VALUES ($1, 'EVENT', $2, $3, $4, $5)`,
			fmt.Sprintf("%013d", i), fmt.Sprint("g", i%2), fmt.Sprintf(`{"n": %d}`, i), state, time.Now().UTC())
		if err != nil {
			s.t.Fatal(err)
		}
	}
}

// verify runs `sluicebox verify` and checks its exit code.
func (s *scene) verify(code int, args ...string) (v verification) {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "sluicebox.yaml")
	writeFile(s.t, file, strings.ReplaceAll(s.config, adminKey, "127.0.0.1:1"))
	stdout, stderr, got := command(s.t, nil, append([]string{"verify", "-c", file, "--json", "--settle", "1s"}, args...)...)
	if got != code {
		s.t.Fatalf("verify %q: exit code %d, want %d\n%s%s", args, got, code, stdout, stderr)
	}
	if err := json.Unmarshal([]byte(stdout), &v); err != nil {
		s.t.Fatalf("%s: %v", stdout, err)
	}
	return v
}

// What a receiver wrote down proves that nothing was lost and nothing was reordered. Each planted fault
// is found: a row that was never sent, two that were swapped, one that is COMPLETED and did not arrive,
// and a body that is not the row's.
func TestVerify(t *testing.T) {
	t.Parallel()
	eachKind(t, "", func(s *scene) {
		const rows = 40
		path := filepath.Join(s.t.TempDir(), "receipts")
		file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			s.t.Fatal(err)
		}
		defer func() { _ = file.Close() }()
		first := true
		receiver := httptest.NewServer(inbox.Receipts(file, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodHead {
				return
			}
			if _, err := io.Copy(io.Discard, r.Body); err != nil || first {
				w.WriteHeader(http.StatusServiceUnavailable) // without a receipt
			}
			first = false
		})))
		defer receiver.Close()
		healthy, err := http.Head(receiver.URL) // no message, so without a receipt
		if err != nil {
			s.t.Fatal(err)
		}
		_ = healthy.Body.Close()
		s.config = fmt.Sprintf(verified, nameFor(s.database), s.database,
			fmt.Sprintf("type: webhook, url: %q, metadata-headers: [group], max-concurrent-groups: 1, backoff: {initial: 50ms}", receiver.URL), adminKey)
		r := s.run()
		s.add(1, rows, "PENDING")
		s.untilCompleted("")
		expectStop(s.t, r)

		v := s.verify(0, "--receipts", path, "--sums")
		if got := v.Targets[0]; v.Faulty || got.Rows != rows || got.Completed != rows || got.Arrived != rows {
			s.t.Fatalf("got %+v, want %d rows without a fault", v, rows)
		}

		s.add(rows+1, rows+1, "PENDING") // no relay runs
		s.add(rows+2, rows+2, "COMPLETED")
		s.add(rows+3, rows+3, "FAILED")
		planted := filepath.Join(s.t.TempDir(), "planted")
		writeFile(s.t, planted, plant(s.t, readFile(s.t, path)))
		v = s.verify(1, "--receipts", planted, "--sums")
		got := v.Targets[0]
		for _, want := range []verifyFinding{
			{"lost", fmt.Sprintf("%013d", rows+1), "", "", 0},
			{"false_completed", fmt.Sprintf("%013d", rows+2), "outbox_events/EVENT/g0", "", 0},
			{"out_of_order", fmt.Sprintf("%013d", 5), "outbox_events/EVENT/g1", fmt.Sprintf("%013d", 7), 1},
			{"body_differs", fmt.Sprintf("%013d", 10), "outbox_events/EVENT/g0", "", 1},
			{"duplicate", fmt.Sprintf("%013d", 12), "outbox_events/EVENT/g0", "", 2},
		} {
			found := false
			for _, f := range got.Findings {
				found = found || f == want
			}
			if !found {
				s.t.Errorf("finding %+v is missing in %+v", want, got.Findings)
			}
		}
		if len(got.Findings) != 5 || got.Failed != 1 || got.Lost+got.FalseCompleted+got.OutOfOrder+got.BodyDiffers+got.Duplicates != 5 {
			s.t.Errorf("got %+v, want one of each finding and a FAILED row", got)
		}
		s.verifyFollows(planted)
	})
}

// plant returns receipts with row 5 behind row 7, another body of row 10, and row 12 twice.
func plant(t *testing.T, receipts string) string {
	t.Helper()
	lines := map[string]string{}
	var order []string
	for line := range strings.Lines(receipts) {
		var r struct{ ID string }
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		lines[r.ID] = line
		order = append(order, r.ID)
	}
	row := func(n int) string { return fmt.Sprintf("%013d", n) }
	var b strings.Builder
	for _, id := range order {
		switch id {
		case row(5):
		case row(7):
			b.WriteString(lines[id] + lines[row(5)])
		case row(10):
			b.WriteString(strings.Replace(lines[id], `"sum":"`, `"sum":"f`, 1))
		case row(12):
			b.WriteString(lines[id] + lines[id])
		default:
			b.WriteString(lines[id])
		}
	}
	return b.String()
}

// verifyFollows checks that a program that verifies continuously sees a receipt that is added, and
// ends with 1 because of the other faults.
func (s *scene) verifyFollows(receipts string) {
	s.t.Helper()
	config := filepath.Join(s.t.TempDir(), "sluicebox.yaml")
	writeFile(s.t, config, strings.ReplaceAll(s.config, adminKey, "127.0.0.1:1"))
	address := freeAddress(s.t)
	var out, log bytes.Buffer
	cmd := exec.Command(binary, "verify", "-c", config, "--receipts", receipts, "--every", "100ms", "--settle", "200ms", "--listen", address)
	cmd.Env, cmd.Stdout, cmd.Stderr = environment(), &out, &log
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	metric := func(want string) {
		s.t.Helper()
		within(s.t, testTimeout, func() string {
			resp, err := http.Get("http://" + address + "/metrics")
			if err != nil {
				return err.Error()
			}
			defer func() { _ = resp.Body.Close() }()
			text, err := io.ReadAll(resp.Body)
			if err != nil || !strings.Contains(string(text), want+"\n") {
				return fmt.Sprintf("no sample %s in\n%s", want, text)
			}
			return ""
		})
	}
	metric(`sluicebox_verify_lost_rows{target=""} 1`)
	file, err := os.OpenFile(receipts, os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = file.WriteString(`{"id":"` + fmt.Sprintf("%013d", 41) + "\"}\n")
		_ = file.Close()
	}
	if err != nil {
		s.t.Error(err)
	}
	metric(`sluicebox_verify_lost_rows{target=""} 0`)
	metric(`sluicebox_verify_false_completed_rows{target=""} 1`)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		s.t.Error(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 1 {
		s.t.Errorf("verify ended with %v, want exit code 1\n%s%s", err, out.String(), log.String())
	}
}

// The records of a topic are receipts, because a record has the id of its row in a header.
func TestVerifyTopic(t *testing.T) {
	t.Parallel()
	aPostgres(t, "", func(s *scene) {
		cluster := servers.Kafka(s.t, 1, nil)
		client, err := kgo.NewClient(kgo.SeedBrokers(cluster.Addresses()...))
		if err != nil {
			s.t.Fatal(err)
		}
		defer client.Close()
		if _, err := kadm.NewClient(client).CreateTopic(s.t.Context(), 3, 1, nil, "orders"); err != nil {
			s.t.Fatal(err)
		}
		s.config = fmt.Sprintf(verified, nameFor(s.database), s.database,
			fmt.Sprintf("type: kafka, brokers: [%s], topic: orders, format: cloudevents, cloudevents-source: /shop", strings.Join(cluster.Addresses(), ", ")), adminKey)
		r := s.run()
		s.add(1, 40, "PENDING")
		s.untilCompleted("")
		expectStop(s.t, r)
		if v := s.verify(0, "--receipts", "kafka:out", "--sums"); v.Targets[0].Arrived != 40 {
			s.t.Errorf("got %+v, want 40 rows", v)
		}
		s.add(41, 41, "COMPLETED")
		if v := s.verify(1, "--receipts", "kafka:out/orders"); v.Targets[0].FalseCompleted != 1 {
			s.t.Errorf("got %+v, want one COMPLETED row without a record", v)
		}
	})
}

// writesReceipts checks that a service of any language writes a receipt of a message that it accepts,
// and none of another.
func (s *service) writesReceipts() {
	s.t.Helper()
	const body = `{"n": "\u00e9 1"}`
	send := func(id, chain, body string) {
		s.t.Helper()
		req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.address+"/receipt", strings.NewReader(body))
		if err != nil {
			s.t.Fatal(err)
		}
		req.Header.Set("webhook-id", id)
		req.Header.Set("Sluicebox-Group", "g1")
		req.Header.Set("Sluicebox-Chain", chain)
		resp, err := s.client.Do(req)
		if err != nil {
			s.t.Fatal(err)
		}
		_ = resp.Body.Close()
		if want := map[bool]int{true: http.StatusConflict, false: http.StatusNoContent}[id == "refused"]; resp.StatusCode != want {
			s.t.Errorf("message %s: status %d, want %d", id, resp.StatusCode, want)
		}
	}
	send("refused", "c;0;0;7", "refuse")
	send(`a "quoted" id`, "c;0;0;1", body)
	var got struct {
		ID, Group, Chain, Sum string
		At                    time.Time
	}
	text := readFile(s.t, s.receipts)
	if err := json.Unmarshal([]byte(text), &got); err != nil { // also of two lines
		s.t.Fatalf("receipts %q: %v", text, err)
	}
	sum := sha256.Sum256([]byte(body))
	if got.ID != `a "quoted" id` || got.Group != "g1" || got.Chain != "c;0;0;1" || got.Sum != hex.EncodeToString(sum[:]) || time.Since(got.At) > time.Hour || !strings.HasSuffix(text, "\n") {
		s.t.Errorf("receipt %q", text)
	}
	for _, chain := range []string{
		"c;0;0;1", "c;0;1;2", "c;1;1;3", // a repeat, a run, a row that takes the place of one without an answer
		"c;0;0;1", "d;7;1;2", "d;7;5;6", "d;9;6;8", // a late copy; another chain, from its middle
		"e;5;e;f", "e;9;i;j", "e;9;j;k", // a late copy first
		"", "c;x;1;2", "c;\xb2;1;2", "c;4;9;10", "c;5;10;11", // the last but one has a gap before it
	} {
		send("id", chain, body)
	}
	if gaps := readFile(s.t, s.receipts+".gaps"); gaps != "id c;4;9;10\n" {
		s.t.Errorf("gaps %q, want one before c;4;9;10", gaps)
	}
}
