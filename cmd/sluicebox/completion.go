package main

import (
	"fmt"
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
	print := map[string]func(string, []commandCompletions) string{"bash": bashScript, "zsh": zshScript, "fish": fishScript}[c.Shell]
	_, err := fmt.Fprint(p.stdout, print(k.Model.Name, completions("", k.Model.Node)))
	return err
}

// commandCompletions is a command with the words that may follow it.
type commandCompletions struct {
	command string // the command's words, each after a blank; "" is the program
	words   []completion
	flags   []completion
}

// completion is one word that may follow.
type completion struct {
	word, shortFlag string // of a flag, with dashes
	help            string
	valueKind       string // of a flag: none (""), file, or text
}

// completions returns the completions of a command and its subcommands.
func completions(at string, n *kong.Node) []commandCompletions {
	own := commandCompletions{command: at}
	for _, arg := range n.Positional {
		if arg.Enum == "" {
			continue // ids cannot be completed
		}
		for _, word := range arg.EnumSlice() {
			own.words = append(own.words, completion{word: word})
		}
	}

	flagged := n
	if n.DefaultCmd != nil {
		flagged = n.DefaultCmd // the default command's word may be omitted
	}

	for _, group := range flagged.AllFlags(true) {
		for _, f := range group {
			own.flags = append(own.flags, flagCompletion(f))
		}
	}

	var below []commandCompletions
	for _, child := range n.Children {
		if !child.Hidden {
			own.words = append(own.words, completion{word: child.Name, help: sentence(child.Help)})
			below = append(below, completions(at+" "+child.Name, child)...)
		}
	}

	return append([]commandCompletions{own}, below...)
}

func flagCompletion(f *kong.Flag) completion {
	c := completion{word: "--" + f.Name, help: sentence(f.Help)}
	if f.Short != 0 {
		c.shortFlag = "-" + string(f.Short)
	}
	switch {
	case f.IsBool():
	case f.PlaceHolder == "FILE":
		c.valueKind = "file"
	default:
		c.valueKind = "text"
	}
	return c
}

// sentence returns the start of a help text, for display beside a word.
func sentence(help string) string {
	first, _, _ := strings.Cut(help, ". ")
	return strings.TrimSuffix(first, ".")
}

// The scripts walk the words before the cursor to find the command, which a variable
// holds in the form of commandCompletions.command. (In zsh, the name path is reserved.)

const bashText = `# bash completion of %[1]s; print it with "%[1]s completion bash"
_%[1]s() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} at= words= flags= i
    if [[ $cur == "=" ]]; then cur=; elif [[ $prev == "=" ]]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$at ${COMP_WORDS[i]}" in
        %[2]s) at="$at ${COMP_WORDS[i]}" ;;
        esac
    done
    COMPREPLY=()
    case "$at $prev" in
%[3]s    esac
    case "$at" in
%[4]s    esac
    if [[ $cur == -* || -z $words ]]; then words=$flags; fi
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -F _%[1]s %[1]s
`

func bashScript(name string, all []commandCompletions) string {
	var lists strings.Builder
	for _, c := range all {
		fmt.Fprintf(&lists, "    %q) words=%q flags=%q ;;\n", c.command, joined(c.words), joined(c.flags))
	}
	values := valueCases(all, `        local IFS=$'\n'; compopt -o filenames 2>/dev/null
        COMPREPLY=($(compgen -f -- "$cur")); return ;;`, "        return ;;")
	return fmt.Sprintf(bashText, name, commandPatterns(all), values, lists.String())
}

const zshText = `#compdef %[1]s
# zsh completion of %[1]s; print it with "%[1]s completion zsh"
_%[1]s() {
    local prev=$words[CURRENT-1] at= i
    local -a list options
    for ((i = 2; i < CURRENT; i++)); do
        case "$at $words[i]" in
        %[2]s) at="$at $words[i]" ;;
        esac
    done
    case "$at $prev" in
%[3]s    esac
    case "$at" in
%[4]s    esac
    if [[ $PREFIX == -* || $#list == 0 ]]; then _describe -o flag options; else _describe command list; fi
}
if [[ $funcstack[1] == _%[1]s ]]; then _%[1]s "$@"; else compdef _%[1]s %[1]s; fi
`

func zshScript(name string, all []commandCompletions) string {
	described := func(list []completion) string {
		var b strings.Builder
		for _, c := range list {
			for _, word := range c.spellings() {
				b.WriteString(" " + singleQuoted(word+":"+strings.ReplaceAll(c.help, ":", `\:`)))
			}
		}
		return b.String()
	}
	var lists strings.Builder
	for _, c := range all {
		fmt.Fprintf(&lists, "    %q)\n        list=(%s )\n        options=(%s ) ;;\n", c.command, described(c.words), described(c.flags))
	}
	values := valueCases(all, "        _files; return ;;", "        _message value; return ;;")
	return fmt.Sprintf(zshText, name, commandPatterns(all), values, lists.String())
}

const fishText = `# fish completion of %[1]s; print it with "%[1]s completion fish"
function __%[1]s_at
    set -l at ''
    for word in (commandline -opc)[2..-1]
        switch "$at $word"
            case %[2]s
                set at "$at $word"
        end
    end
    test "$at" = "$argv[1]"
end
complete -c %[1]s -f
`

func fishScript(name string, all []commandCompletions) string {
	var b strings.Builder
	fmt.Fprintf(&b, fishText, name, strings.ReplaceAll(commandPatterns(all), "|", " "))
	for _, c := range all {
		begin := fmt.Sprintf("complete -c %s -n '__%s_at %q'", name, name, c.command)
		for _, w := range c.words {
			fmt.Fprintf(&b, "%s -a %s -d %s\n", begin, w.word, singleQuoted(w.help))
		}
		for _, f := range c.flags {
			line := begin + " -l " + strings.TrimPrefix(f.word, "--")
			if f.shortFlag != "" {
				line += " -s " + strings.TrimPrefix(f.shortFlag, "-")
			}
			line += map[string]string{"file": " -r -F", "text": " -x", "": ""}[f.valueKind]
			fmt.Fprintf(&b, "%s -d %s\n", line, singleQuoted(f.help))
		}
	}

	return b.String()
}

// spellings returns the forms of a word.
func (c *completion) spellings() []string {
	if c.shortFlag != "" {
		return []string{c.word, c.shortFlag}
	}
	return []string{c.word}
}

func joined(list []completion) string {
	var words []string
	for _, c := range list {
		words = append(words, c.spellings()...)
	}
	return strings.Join(words, " ")
}

// commandPatterns returns all commands as patterns of a case statement.
func commandPatterns(all []commandCompletions) string {
	var patterns []string
	for _, c := range all[1:] {
		patterns = append(patterns, fmt.Sprintf("%q", c.command))
	}
	return strings.Join(patterns, "|")
}

// valueCases returns the cases of flags with a value: file names are completed, text is
// not.
func valueCases(all []commandCompletions, file, text string) string {
	var b strings.Builder
	for _, c := range all {
		for _, f := range c.flags {
			if f.valueKind == "" {
				continue
			}
			var patterns []string
			for _, word := range f.spellings() {
				patterns = append(patterns, fmt.Sprintf("%q", c.command+" "+word))
			}
			then := text
			if f.valueKind == "file" {
				then = file
			}
			fmt.Fprintf(&b, "    %s)\n%s\n", strings.Join(patterns, "|"), then)
		}
	}

	return b.String()
}

// singleQuoted quotes a text. An apostrophe is replaced by the typographic one, because
// the three shells escape it differently.
func singleQuoted(text string) string { return "'" + strings.ReplaceAll(text, "'", "’") + "'" }
