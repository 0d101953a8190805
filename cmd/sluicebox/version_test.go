package main

import (
	"encoding/json"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
)

func TestVersionCommand(t *testing.T) {
	got := try(t, backend{}, nil, "version")
	if got.code != 0 || !regexp.MustCompile(`^sluicebox \S+ \(commit .+, go1\..+\)\n$`).MatchString(got.stdout) {
		t.Errorf("exit %d, %q", got.code, got.stdout)
	}
	for _, args := range [][]string{{"version"}, {"version", "--json"}} {
		flag := slices.Clone(args)
		flag[0] = "--version"
		if want, got := try(t, backend{}, nil, args...), try(t, backend{}, nil, flag...); got != want {
			t.Errorf("%v: exit %d, %q, want %q", flag, got.code, got.stdout, want.stdout)
		}
	}
	got = try(t, backend{}, nil, "version", "--json")
	var v versionInfo
	if err := json.Unmarshal([]byte(got.stdout), &v); err != nil || v.Version == "" || v.Commit == "" || v.Go != runtime.Version() {
		t.Errorf("%q is %+v, %v", got.stdout, v, err)
	}
}

func TestDescribe(t *testing.T) {
	built := &debug.BuildInfo{
		Main: debug.Module{Version: "v1.4.0"},
		Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"},
		},
	}
	for _, tt := range []struct {
		linked          string
		info            *debug.BuildInfo
		version, commit string
	}{
		{"1.2.3", built, "1.2.3", "abc with changes"},
		{"", built, "v1.4.0", "abc with changes"},
		{"", &debug.BuildInfo{}, "(devel)", "unknown"},
		{"", nil, "(devel)", "unknown"},
	} {
		if got := describe(tt.linked, tt.info); got.Version != tt.version || got.Commit != tt.commit {
			t.Errorf("describe(%q) is %+v, want %s, %s", tt.linked, got, tt.version, tt.commit)
		}
	}
}
