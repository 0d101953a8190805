// Package postgres implements the store on PostgreSQL.
package postgres
