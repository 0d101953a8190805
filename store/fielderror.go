package store

import (
	"errors"
	"fmt"
)

// FieldError reports an invalid value in a configuration.
type FieldError struct {
	// Key is the configuration key below the section that was validated, for example
	// "backoff.initial".
	Key string
	// Text continues a sentence that starts with the key, for example "is 0s, must be above
	// 0". It contains no secret.
	Text string
}

func (e *FieldError) Error() string { return e.Key + " " + e.Text }

// FieldErrors collects the invalid values of a configuration.
type FieldErrors []error

// Add adds an invalid value.
func (e *FieldErrors) Add(key, format string, args ...any) {
	*e = append(*e, &FieldError{Key: key, Text: fmt.Sprintf(format, args...)})
}

// AddErr adds the errors of a part, if there are any.
func (e *FieldErrors) AddErr(err error) { *e = append(*e, err) }

// Err returns all errors in one, or nil.
func (e FieldErrors) Err() error { return errors.Join(e...) }

// FieldErrorsOf returns the invalid values in an error of a Validate.
func FieldErrorsOf(err error) []*FieldError {
	switch e := err.(type) {
	case *FieldError:
		return []*FieldError{e}
	case interface{ Unwrap() []error }:
		var list []*FieldError
		for _, one := range e.Unwrap() {
			list = append(list, FieldErrorsOf(one)...)
		}
		return list
	case interface{ Unwrap() error }:
		return FieldErrorsOf(e.Unwrap())
	}
	return nil
}
