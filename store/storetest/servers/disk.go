package servers

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// Disk is a small file system with the data of a server, for tests that fill it.
type Disk struct {
	tb  testing.TB
	dir string
}

// OnDisk moves the data of a server to a file system of a size in bytes, and restarts it. The test
// is skipped where a file system cannot be mounted.
func (p *private) OnDisk(size int64) *Disk {
	p.tb.Helper()
	p.Stop("fast")
	d := &Disk{p.tb, filepath.Join(p.base, "data")}
	before := filepath.Join(p.base, "before")
	if err := os.Rename(d.dir, before); err != nil {
		p.tb.Fatal(err)
	}
	if err := os.Mkdir(d.dir, 0o700); err != nil {
		p.tb.Fatal(err)
	}
	if err := mountMemory(d.dir, size); err != nil {
		p.tb.Skipf("no small disk can be mounted, which needs root and CAP_SYS_ADMIN: %v", err)
	}
	p.tb.Cleanup(func() { // the server is killed afterwards
		if err := detach(d.dir); err != nil {
			p.tb.Error(err)
		}
	})
	chown(p.tb, d.dir)
	if out, err := exec.Command("cp", "-a", before+"/.", d.dir).CombinedOutput(); err != nil {
		p.tb.Fatalf("%v: %s", err, out)
	}
	p.Restart(nil)
	return d
}

// Fill leaves room for so many bytes on the disk, or less. Free ends that.
func (d *Disk) Fill(room int64) {
	d.tb.Helper()
	f, err := os.Create(d.ballast())
	if err != nil {
		d.tb.Fatal(err)
	}
	for _, size := range []int{1 << 20, 4 << 10, 1} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			d.tb.Fatal(err)
		}
	}
	if at, err := f.Stat(); err != nil {
		d.tb.Fatal(err)
	} else if err := f.Truncate(max(0, at.Size()-room)); err != nil {
		d.tb.Fatal(err)
	}
	if err := f.Close(); err != nil {
		d.tb.Fatal(err)
	}
}

// Free removes what Fill has written.
func (d *Disk) Free() {
	d.tb.Helper()
	if err := os.Remove(d.ballast()); err != nil {
		d.tb.Fatal(err)
	}
}

func (d *Disk) ballast() string { return filepath.Join(d.dir, "ballast") }
