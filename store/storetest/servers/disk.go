package servers

import (
	"errors"
	"fmt"
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
	dir := filepath.Join(p.base, "data")
	before := filepath.Join(p.base, "before")
	if err := os.Rename(dir, before); err != nil {
		p.tb.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		p.tb.Fatal(err)
	}
	d, err := MountDisk(p.tb, dir, size)
	if err != nil {
		p.tb.Skip(err)
	}
	chown(p.tb, dir)
	if out, err := exec.Command("cp", "-a", before+"/.", dir).CombinedOutput(); err != nil {
		p.tb.Fatalf("%v: %s", err, out)
	}
	p.Restart(nil)
	return d
}

// MountDisk mounts a file system of a size in bytes on an empty directory, until the end of the test.
func MountDisk(tb testing.TB, dir string, size int64) (*Disk, error) {
	tb.Helper()
	if err := mountMemory(dir, size); err != nil {
		return nil, fmt.Errorf("mount a small disk: %w; it needs root and CAP_SYS_ADMIN", err)
	}
	tb.Cleanup(func() { // a server is killed afterwards
		if err := detach(dir); err != nil {
			tb.Error(err)
		}
	})
	return &Disk{tb, dir}, nil
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
