package logfile

import "os"

// BeforeSync calls before with the name of each file or folder that the sink waits for.
func (s *Sink) BeforeSync(before func(name string) error) {
	s.sync = func(f *os.File) error {
		if err := before(f.Name()); err != nil {
			return err
		}
		return f.Sync()
	}
}
