package servers

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Disk is a small file system with the data of a server, for tests that fill it.
type Disk struct {
	tb   testing.TB
	dir  string
	size int64 // in bytes, unless it is full
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
	return &Disk{tb, dir, size}, nil
}

// Fill leaves room for so many bytes on the disk: it makes the disk as small as what is on it. Free ends that.
func (d *Disk) Fill(room int64) {
	d.tb.Helper()
	var err error
	for range 100 { // a process may write meanwhile, and no disk is smaller than what is on it
		var used int64
		if used, err = usedMemory(d.dir); err == nil {
			err = resizeMemory(d.dir, used+room)
		}
		if err == nil {
			return
		}
	}
	d.tb.Fatalf("fill %s: %v", d.dir, err)
}

// Free gives the disk its size again.
func (d *Disk) Free() {
	d.tb.Helper()
	if err := resizeMemory(d.dir, d.size); err != nil {
		d.tb.Fatalf("free %s: %v", d.dir, err)
	}
}
