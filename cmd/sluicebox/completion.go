package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// completionCommand is `sluicebox completion`.
type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Help is shown under `sluicebox completion --help`.
func (*completionCommand) Help() string {
	return `bash:  source <(sluicebox completion bash)
zsh:   source <(sluicebox completion zsh)
fish:  sluicebox completion fish | source

Put the line into ~/.bashrc, ~/.zshrc (behind compinit) or ~/.config/fish/config.fish.`
}

// Run prints the script.
func (c *completionCommand) Run(k *kong.Context, p *program) error {
	script := map[string]string{"bash": bashScript, "zsh": zshScript, "fish": fishScript}[c.Shell]
	_, err := fmt.Fprint(p.stdout, strings.ReplaceAll(script, "PROGRAM", k.Model.Name))
	return err
}

// completeCommand is what the scripts run to complete a word.
type completeCommand struct {
	Words []string `arg:"" optional:"" help:"The words of the command line up to the one to complete, without the program."`
}

// fileCandidate is printed alone if the word is the name of a file.
const fileCandidate = ":file"

// Run prints the words that may follow, each in a line with a tab and its help.
func (c *completeCommand) Run(k *kong.Context, p *program) error {
	var b strings.Builder
	for _, one := range candidates(k.Model.Node, c.Words) {
		b.WriteString(one + "\n")
	}
	_, err := fmt.Fprint(p.stdout, b.String())
	return err
}

// candidates returns the words that may be the last one of a command line.
func candidates(at *kong.Node, words []string) []string {
	before, current := splitWords(words)
	for _, word := range before {
		if i := slices.IndexFunc(at.Children, func(n *kong.Node) bool { return n.Name == word }); i >= 0 {
			at = at.Children[i]
		}
	}

	flags := flagsOf(at)
	if len(before) > 0 {
		for _, f := range flags {
			if slices.Contains(spellings(f), before[len(before)-1]) && !f.IsBool() {
				return valueCandidates(f)
			}
		}
	}

	var list []string
	if !strings.HasPrefix(current, "-") {
		list = wordCandidates(at)
	}
	if len(list) == 0 {
		for _, f := range flags {
			for _, word := range spellings(f) {
				list = append(list, candidate(word, f.Help))
			}
		}
	}
	return list
}

// splitWords returns the last word, and the words before it. The sign of --flag=value
// separates two words; bash makes it a word of its own.
func splitWords(words []string) (before []string, current string) {
	if n := len(words); n > 0 {
		before, current = words[:n-1], words[n-1]
	}
	if flag, value, cut := strings.Cut(current, "="); cut && flag != "" {
		return append(slices.Clone(before), flag), value
	}
	return slices.DeleteFunc(slices.Clone(before), func(word string) bool { return word == "=" }), strings.TrimPrefix(current, "=")
}

// flagsOf returns the flags of a command, or of its default command, whose word may be
// omitted.
func flagsOf(n *kong.Node) []*kong.Flag {
	if n.DefaultCmd != nil {
		n = n.DefaultCmd
	}
	return slices.Concat(n.AllFlags(true)...)
}

// spellings returns the forms of a flag.
func spellings(f *kong.Flag) []string {
	if f.Short != 0 {
		return []string{"--" + f.Name, "-" + string(f.Short)}
	}
	return []string{"--" + f.Name}
}

// valueCandidates returns the values of a flag. Only the names of files are completed.
func valueCandidates(f *kong.Flag) []string {
	if f.PlaceHolder == "FILE" {
		return []string{fileCandidate}
	}
	return nil
}

// wordCandidates returns the subcommands and the arguments of a command. Ids cannot be
// completed.
func wordCandidates(n *kong.Node) (list []string) {
	for _, arg := range n.Positional {
		if arg.Enum != "" {
			list = append(list, arg.EnumSlice()...)
		}
	}
	for _, child := range n.Children {
		if !child.Hidden {
			list = append(list, candidate(child.Name, child.Help))
		}
	}
	return list
}

// candidate returns a word with the start of its help.
func candidate(word, help string) string {
	first, _, _ := strings.Cut(help, ". ")
	return word + "\t" + strings.TrimSuffix(first, ".")
}

const bashScript = `# bash completion of PROGRAM; print it with "PROGRAM completion bash"
_PROGRAM() {
    local cur=${COMP_WORDS[COMP_CWORD]} list IFS=$'\n'
    list=$("${COMP_WORDS[0]}" complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f1)
    if [[ $cur == "=" ]]; then cur=; fi
    if [[ $list == ":file" ]]; then
        compopt -o filenames 2>/dev/null
        COMPREPLY=($(compgen -f -- "$cur"))
    else
        COMPREPLY=($(compgen -W "$list" -- "$cur"))
    fi
}
complete -F _PROGRAM PROGRAM
`

const zshScript = `#compdef PROGRAM
# zsh completion of PROGRAM; print it with "PROGRAM completion zsh"
_PROGRAM() {
    local -a list
    list=("${(@f)$($words[1] complete -- "${(@)words[2,CURRENT-1]}" "$PREFIX" 2>/dev/null)}")
    list=("${(@)${(@)list:#}/$'\t'/:}")
    if [[ $PREFIX == --*=* ]]; then compset -P '*='; fi
    if [[ $list == ":file" ]]; then
        _files
    elif [[ -z $list ]]; then
        _message value
    else
        _describe command list
    fi
}
if [[ $funcstack[1] == _PROGRAM ]]; then _PROGRAM "$@"; else compdef _PROGRAM PROGRAM; fi
`

const fishScript = `# fish completion of PROGRAM; print it with "PROGRAM completion fish"
function __PROGRAM_complete
    set -l words (commandline -opc)
    $words[1] complete -- $words[2..-1] (commandline -ct) 2>/dev/null
end
complete -c PROGRAM -n '__PROGRAM_complete | string match -q :file' -F
complete -c PROGRAM -f -a '(__PROGRAM_complete | string match -v :file)'
`
