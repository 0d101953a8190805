// Package config reads the relay's configuration: one YAML file with overrides from
// SLUICEBOX_* variables, and secrets from files or variables.
//
// # Single description
//
// [Settings] is the only description of the configuration. Its struct tags name and
// document the keys, and [Default] holds the default values. The decoder, the variable
// names, the JSON Schema and the printed configuration are derived from it by reflection.
//
// # Strictness
//
// These are errors: an unknown key, a value of the wrong type, a duplicate key, a second
// document, and an unknown SLUICEBOX_* variable. Variables that Kubernetes sets for a
// Service named sluicebox are allowed. All errors are reported together in one [*Error],
// each with its file and line or its variable.
//
// # Secrets
//
// Text values may contain ${env:NAME} and ${file:/path}. Replaced text is not searched
// for further references. A [sink.Secret] and a [URL] never print their
// content.
package config
