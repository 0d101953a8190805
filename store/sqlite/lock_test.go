package sqlite_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/sqlite"
)

func TestLock(t *testing.T) {
	r := newRig(t, flowTable, 0, flowBox())
	lock, err := r.store.Lock(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link.db") // another path to the same file
	if err := os.Symlink(r.path, link); err != nil {
		t.Fatal(err)
	}
	rival := openStore(t, link, "rig", 0, flowBox())
	for _, st := range []*sqlite.Store{rival, r.store} {
		_, err = st.Lock(ctx(t))
		var locked *store.LockedError
		if !errors.As(err, &locked) || !strings.Contains(err.Error(), fmt.Sprintf("process %d holds", os.Getpid())) || !strings.Contains(err.Error(), ".rig.sluicebox-lock") {
			t.Fatalf("a second relay: %v", err)
		}
	}
	lock.Release()
	if _, err := rival.Lock(ctx(t)); err != nil {
		t.Fatalf("after the release: %v", err)
	}
}

// TestKilledRelayReleasesLock: a killed relay leaves no lock, and its claims are taken over.
func TestKilledRelayReleasesLock(t *testing.T) {
	r := newRig(t, flowTable, 0, flowBox())
	r.exec(t, "INSERT INTO outbox_events (id) VALUES ('1')")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	relay := exec.Command(self, "-test.run=^TestLockHolder$")
	relay.Env = append(os.Environ(), "SLUICEBOX_TEST_LOCK="+r.path)
	relay.Stderr = os.Stderr
	out, err := relay.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := relay.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = relay.Wait() }() // it was killed
	line, err := bufio.NewReader(out).ReadString('\n')
	if strings.TrimSpace(line) != "claimed" {
		_ = relay.Process.Kill()
		t.Fatalf("the other process says %q, %v", line, err)
	}
	var locked *store.LockedError
	if _, err := r.store.Lock(ctx(t)); !errors.As(err, &locked) || !strings.Contains(locked.Holder, fmt.Sprintf("process %d holds", relay.Process.Pid)) {
		t.Errorf("while it lives: %v", err)
	}
	if err := relay.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_, _ = relay.Process.Wait()
	if _, err := r.store.Lock(ctx(t)); err != nil {
		t.Fatalf("after its death: %v", err)
	}
	if r.epoch, err = r.store.AcquireLeadership(ctx(t)); err != nil || r.epoch != 3 {
		t.Fatalf("epoch %d, %v", r.epoch, err)
	}
	if status := ask[string](t, r.db, "SELECT status FROM outbox_events"); status != "PROCESSING" {
		t.Errorf("the dead relay's claim is lost: %s", status)
	}
	if a := r.claim(t, row("1"))[0]; a.Result != store.Claimed {
		t.Errorf("its row is %s", a.Result)
	}
}

// TestLockHolder is the other process of TestKilledRelayReleasesLock. It claims and waits to be killed.
func TestLockHolder(t *testing.T) {
	path := os.Getenv("SLUICEBOX_TEST_LOCK")
	if path == "" {
		t.Skip("runs in a process of its own")
	}
	st := openStore(t, path, "rig", 0, flowBox())
	if _, err := st.Lock(ctx(t)); err != nil {
		t.Fatal(err)
	}
	epoch, err := st.AcquireLeadership(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	answers, err := st.Claim(ctx(t), epoch, time.Now(), []store.ClaimRow{row("1")})
	if err != nil || answers[0].Result != store.Claimed {
		t.Fatal(answers, err)
	}
	if _, err := os.Stdout.WriteString("claimed\n"); err != nil {
		t.Fatal(err)
	}
	select {}
}
