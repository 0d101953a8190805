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
	// thorough says that advice is wanted too, and what may pass by itself.
	thorough bool
	now      func() time.Time // of this machine; for a thorough one
	relay    string           // its name; for a thorough one
	role     string           // quoted
}
