package postgres

import (
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicebox/sluicebox/store/internal/finding"
)

// checker gathers findings.
type checker struct {
	finding.List
	conn *pgx.Conn
	// thorough also reports advice, and faults that may resolve without a fix.
	thorough bool
	now      func() time.Time // this machine's clock; set if thorough
	relay    string           // the relay's name; set if thorough
	role     string           // quoted
}
