package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
)

// versionCommand is `sluicebox version`.
type versionCommand struct {
	JSON bool `name:"json" help:"Print JSON."`
}

// Run prints the version.
func (c *versionCommand) Run(p *program) error {
	v := currentVersion()
	if c.JSON {
		return json.NewEncoder(p.stdout).Encode(v)
	}
	_, err := fmt.Fprintf(p.stdout, "sluicebox %s (commit %s, %s)\n", v.Version, v.Commit, v.Go)
	return err
}

// versionInfo describes the program.
type versionInfo struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Go      string `json:"go"`
}

// currentVersion returns the version set by the linker, else the version recorded by the
// build.
func currentVersion() versionInfo {
	info, _ := debug.ReadBuildInfo()
	return describe(version, info)
}

func describe(linked string, info *debug.BuildInfo) versionInfo {
	v := versionInfo{Version: linked, Commit: "unknown", Go: runtime.Version()}
	if info == nil {
		info = &debug.BuildInfo{}
	}

	if v.Version == "" {
		v.Version = info.Main.Version
	}
	if v.Version == "" {
		v.Version = "(devel)"
	}

	changed := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.modified":
			changed = s.Value == "true"
		}
	}

	if changed {
		v.Commit += " with changes"
	}
	return v
}
