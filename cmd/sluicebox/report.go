package main

import (
	"errors"
	"io"
	"strings"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store"
)

// fail reports an error and returns its exit code.
func (p *program) fail(err error) int {
	var faults *config.Error
	if errors.As(err, &faults) {
		p.printProblem(err.Error(), "")
		return exitConfig
	}

	code := exitFailed
	for _, one := range joinedErrors(err) {
		text, remedy := one.Error(), ""
		var setup *store.SetupError
		if errors.As(one, &setup) {
			code, remedy = exitConfig, setup.Remedy
			text = strings.TrimSuffix(text, "; "+remedy)
		}
		var own *commandError
		if errors.As(one, &own) {
			code, text, remedy = own.code, own.problem, own.remedy
		}
		p.printProblem(text, remedy)
	}

	return code
}

// joinedErrors returns the parts of a joined error.
func joinedErrors(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || strings.Count(err.Error(), "\n") == 0 {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, joinedErrors(e)...)
	}
	return all
}

// printProblem writes one block: the problem, then the remedy on its own line.
func (p *program) printProblem(problem, remedy string) {
	block := "sluicebox: " + problem + "\n"
	if remedy != "" {
		block += "  " + strings.ReplaceAll(remedy, "\n", "\n  ") + "\n"
	}
	_, _ = io.WriteString(p.stderr, block) // there is no other output for the error
}
