package config_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
)

// The reference of the configuration is the program's own.
func TestConfigurationPageIsCurrent(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", "configuration.md"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(page, config.Page()) {
		t.Error("deploy/configuration.md differs from what the program says; run make docs")
	}
}
