package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// shells returns the commands that print a shell's completions. $SCRIPT is the completion
// script; the arguments are the words of the command line, and the last one is
// incomplete.
func shells() map[string]string {
	return map[string]string{
		"bash": `source "$SCRIPT"
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_sluicebox
printf '%s\n' "${COMPREPLY[@]}"`,
		// zsh completes only interactively, so print the words that the script would
		// pass.
		"zsh": `compdef() { }
_describe() { print -rl -- ${${(P)@[-1]}%%:*} }
_files() { print -rl -- *(N) }
_message() { }
source "$SCRIPT"
words=("$@"); CURRENT=$#; PREFIX=$words[-1]
_sluicebox`,
		"fish": `source $SCRIPT
complete -C (string join ' ' -- $argv) | string replace -r '\t.*' ''; true`,
	}
}

// offered returns the completions of a shell that start with the last word.
func offered(t *testing.T, shell string, words ...string) []string {
	t.Helper()
	path, err := exec.LookPath(shell)
	if err != nil {
		t.Skipf("%s is not there", shell)
	}
	got := try(t, backend{}, nil, "completion", shell)
	if got.code != 0 || got.stderr != "" {
		t.Fatalf("exit %d, %s", got.code, got.stderr)
	}
	dir := t.TempDir()
	script := filepath.Join(dir, "script")
	if err := os.WriteFile(script, []byte(got.stdout), 0o600); err != nil {
		t.Fatal(err)
	}
	files := filepath.Join(dir, "files")
	for _, name := range []string{"relay.yaml", "two words.yaml"} {
		if err := os.MkdirAll(files, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(files, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program := fmt.Sprintf("#!/bin/sh\n%s=clean exec %q \"$@\"\n", childVariable, os.Args[0])
	if err := os.WriteFile(filepath.Join(dir, "sluicebox"), []byte(program), 0o700); err != nil { //nolint:gosec // it is run
		t.Fatal(err)
	}
	args := map[string][]string{
		"bash": {"--norc", "-c", shells()[shell], "bash"}, "zsh": {"-f", "-c", shells()[shell], "zsh"},
		"fish": {"--no-config", "-c", shells()[shell]},
	}[shell]
	cmd := exec.CommandContext(t.Context(), path, append(args, words...)...)
	cmd.Dir = files
	cmd.Env = append(os.Environ(), "SCRIPT="+script, "HOME="+dir, "PATH="+dir+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	last := words[len(words)-1]
	list := slices.DeleteFunc(strings.Split(string(out), "\n"), func(word string) bool {
		return word == "" || !strings.HasPrefix(word, last) && last != "="
	})
	slices.Sort(list)
	return slices.Compact(list)
}

func TestCompletion(t *testing.T) {
	tests := []struct {
		words []string
		want  string // separated by commas; "…" stands for any others
	}{
		{[]string{""}, "actions,bench,checkpoint,completion,config,deadletters,doctor,explain,init,lanes,quickstart,reload,replay,routes,run,shadow,status,tap,verify,version"},
		{[]string{"con"}, "config"},
		{[]string{"config", ""}, "check,docs,schema,test"},
		{[]string{"config", "ch"}, "check"},
		{[]string{"completion", ""}, "bash,fish,zsh"},
		{[]string{"lanes", ""}, "list,pause,resume,retry-now,skip"},
		{[]string{"deadletters", ""}, "discard,list,requeue,show"},
		{[]string{"checkpoint", ""}, "create,delete,list"},
		{[]string{"checkpoint", "create", "--k"}, "--keep-log"},
		{[]string{"replay", ""}, "cancel,errors,list,pause,resume,start"},
		{[]string{"replay", "--d"}, "--detach,--dry-run"},
		{[]string{"replay", "start", "--s"}, "--since,--source,--source-name"},
		{[]string{"replay", "list", "--j"}, "--json"},
		{[]string{"lanes", "skip", "--r"}, "--reason,--row"},
		{[]string{"lanes", "list", "--state", ""}, ""},
		{[]string{"lanes", "pause", "--token-file", "re"}, "relay.yaml"},
		{[]string{"deadletters", "requeue", "--a"}, "--admin,--all,--all-outboxes"},
		{[]string{"quickstart", "--"}, "--fail-rate,--for,--groups,--help,--json,--keep,--rate,--sink,--source,--verbose"},
		{[]string{"quickstart", "--keep", "--f"}, "--fail-rate,--for"},
		{[]string{"config", "check", "--"}, "--config,--help,--json,--source-name"},
		{[]string{"init", "--pr"}, "--print"},
		{[]string{"quickstart", "--rate", ""}, ""},
		{[]string{"run", "-c", ""}, "relay.yaml,two words.yaml"},
		{[]string{"run", "--config", "re"}, "relay.yaml"},
		{[]string{"run", "-c", "relay.yaml", "--co"}, "--config"},
		{[]string{"bench", "--sc"}, "--scenario"},
	}
	for shell := range shells() {
		t.Run(shell, func(t *testing.T) {
			for _, tt := range tests {
				got := offered(t, shell, append([]string{"sluicebox"}, tt.words...)...)
				if text := strings.Join(got, ","); text != tt.want {
					t.Errorf("%q offers %q, want %q", tt.words, text, tt.want)
				}
			}
		})
	}
}

// TestCompletionBehindEquals checks --flag=value, where bash makes the sign a word of its
// own.
func TestCompletionBehindEquals(t *testing.T) {
	for _, words := range [][]string{{"sluicebox", "run", "--config", "=", "re"}, {"sluicebox", "run", "--config", "="}} {
		if got := offered(t, "bash", words...); !slices.Contains(got, "relay.yaml") {
			t.Errorf("%q offers %q", words, got)
		}
	}
}

// TestCandidatesAreWhole checks that all flags are offered, each with its help.
func TestCandidatesAreWhole(t *testing.T) {
	got := try(t, backend{}, nil, "complete", "--", "quickstart", "--")
	if got.code != 0 || !strings.Contains(got.stdout, "--keep\tKeep everything, and print where it is\n") {
		t.Errorf("exit %d, %q", got.code, got.stdout)
	}
	for _, word := range strings.Fields(try(t, backend{}, nil, "quickstart", "--help").stdout) {
		if flag, _, _ := strings.Cut(word, "="); strings.HasPrefix(flag, "--") && !strings.Contains(got.stdout, flag+"\t") {
			t.Errorf("no %s", flag)
		}
	}
	if got := try(t, backend{}, nil, "complete", "--", "run", "--config=sl"); got.stdout != ":file\n" {
		t.Errorf("a file is completed with %q", got.stdout)
	}
}

// TestCompletionNeedsAShell checks the errors and the help.
func TestCompletionNeedsAShell(t *testing.T) {
	for _, args := range [][]string{{"completion"}, {"completion", "tcsh"}, {"completion", "bash", "zsh"}} {
		if got := try(t, backend{}, nil, args...); got.code != 64 || got.stdout != "" {
			t.Errorf("%v: exit %d, %q", args, got.code, got.stdout)
		}
	}
	if got := try(t, backend{}, nil, "completion", "--help"); got.code != 0 || !strings.Contains(got.stdout, "source <(sluicebox completion bash)") {
		t.Errorf("its help: exit %d, %q", got.code, got.stdout)
	}
}
