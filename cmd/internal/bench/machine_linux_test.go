package bench

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestTreeCPUCountsEndedChildren: the processes of PostgreSQL's sessions end before the server.
func TestTreeCPUCountsEndedChildren(t *testing.T) {
	before := treeCPU(os.Getpid())
	child := exec.CommandContext(t.Context(), "sh", "-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done")
	if err := child.Run(); err != nil {
		t.Fatal(err)
	}
	used := child.ProcessState.UserTime() + child.ProcessState.SystemTime()
	if got := treeCPU(os.Getpid()) - before; used < 5*clockTick || got < used-2*clockTick || got > used+time.Second {
		t.Errorf("got %s, want at least the %s of the child", got, used)
	}
	if got := treeCPU(1 << 30); got != 0 {
		t.Errorf("a process that does not exist used %s", got)
	}
}

func TestOnlyAServerOnThisMachineHasAProcess(t *testing.T) {
	self := filepath.Base(os.Args[0])
	for _, tc := range []struct {
		host, name string
		want       int
	}{
		{"127.0.0.1:5432", self, os.Getpid()},
		{"/var/run/postgresql", self, os.Getpid()},
		{"shop.example", self, 0},
		{"127.0.0.1", "postgres", 0}, // another program, for example because the server is in a container
	} {
		if got := localProcess(tc.host, os.Getpid(), tc.name); got != tc.want {
			t.Errorf("%s at %s: process %d, want %d", tc.name, tc.host, got, tc.want)
		}
	}
}
