// Package outbox writes rows into outbox tables, as the layout of the table says.
package outbox
