package blackbox

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// nonroot is the user id of the image.
const nonroot = 65532

// emptyRoot starts a binary as nonroot in a root folder with nothing but the binary and its
// configuration, and without environment variables. At the end of the test it expects no
// other files there.
func emptyRoot(t *testing.T, built, config string) *relay {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root may give a process another root folder: that the binary runs in an empty one is not shown")
	}
	root := t.TempDir()
	put := func(name string, data []byte, mode os.FileMode) {
		if err := os.WriteFile(filepath.Join(root, name), data, mode); err != nil {
			t.Fatal(err)
		}
	}
	program, err := os.ReadFile(built)
	if err != nil {
		t.Fatal(err)
	}
	put("sluicebox", program, 0o755)
	put("sluicebox.yaml", []byte(strings.ReplaceAll(config, adminKey, "''")), 0o644)
	if err := os.Chmod(root, 0o555); err != nil {
		t.Fatal(err)
	}
	r := &relay{t: t, ended: make(chan struct{}), grown: make(chan struct{})}
	r.cmd = &exec.Cmd{
		Path: "/sluicebox", Args: []string{"/sluicebox", "run", "-c", "/sluicebox.yaml"}, Env: []string{}, Dir: "/",
		SysProcAttr: &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: nonroot, Gid: nonroot}},
	}
	pipe, err := r.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go r.watch(pipe)
	expectProcess(t, r.cmd.Process.Pid, root)
	t.Cleanup(func() {
		r.kill()
		expectOnly(t, root, "sluicebox", "sluicebox.yaml")
	})
	return r
}

// expectProcess expects a process of nonroot in a root folder of its own.
func expectProcess(t *testing.T, pid int, root string) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	id := fmt.Sprintf("%d\t%d\t%d\t%d", nonroot, nonroot, nonroot, nonroot)
	for _, line := range []string{"\nUid:\t" + id + "\n", "\nGid:\t" + id + "\n", "\nCapEff:\t0000000000000000\n"} {
		if !strings.Contains(string(status), line) {
			t.Errorf("the process lacks %q:\n%s", line, status)
		}
	}
	if at, err := os.Readlink(fmt.Sprintf("/proc/%d/root", pid)); err != nil || at != root {
		t.Errorf("the process has the root folder %s, want %s: %v", at, root, err)
	}
}

// expectOnly expects a folder to contain exactly these files.
func expectOnly(t *testing.T, root string, want ...string) {
	t.Helper()
	var have []string
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if path != root {
			have = append(have, strings.TrimPrefix(path, root+"/"))
		}
		return err
	})
	if err != nil || !slices.Equal(have, want) {
		t.Errorf("the root folder holds %q, want %q: %v", have, want, err)
	}
}
