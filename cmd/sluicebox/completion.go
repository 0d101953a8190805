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
