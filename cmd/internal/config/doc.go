// Package config reads the relay's configuration: one YAML file, overridden by
// SLUICEBOX_* variables, with secrets out of files or variables.
//
// # One description
//
// [Settings] is the only description of the configuration. Its struct tags name
// the keys and say what they mean, its values in [Default] are the defaults. The
// reader, the names of the variables, the JSON Schema and the printed
// configuration all come from it by reflection.
//
// # Strictness
//
// A key that is unknown, a value of the wrong type, a key written twice, a second
// document and an unknown SLUICEBOX_* variable are errors; the variables that
// Kubernetes makes for a Service of that name are let pass. All faults are
// reported together in one [*Error], each with its file and line, or the
// variable that it came from.
//
// # Secrets
//
// Text values may hold ${env:NAME} and ${file:/path}. What they are replaced
// with is not read again for references. [Secret] and [URL] never print what
// they hide: only Reveal gives it.
package config
