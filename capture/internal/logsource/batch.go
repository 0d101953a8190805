package logsource

import "fmt"

// Defaults of the limits of a batch.
const (
	defaultBatchRows  = 500
	defaultBatchBytes = 4 << 20
)

// ValidateBatch rejects negative limits of a batch.
func ValidateBatch(rows, bytes int) error {
	if rows < 0 || bytes < 0 {
		return fmt.Errorf("batch limits of %d rows and %d bytes must not be negative", rows, bytes)
	}
	return nil
}

// SetBatchDefaults replaces limits of a batch that are 0 by 500 rows and 4 MiB.
func SetBatchDefaults(rows, bytes *int) {
	if *rows == 0 {
		*rows = defaultBatchRows
	}
	if *bytes == 0 {
		*bytes = defaultBatchBytes
	}
}
