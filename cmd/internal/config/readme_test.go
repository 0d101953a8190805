package config_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
	"github.com/sluicebox/sluicebox/store"
)

// TestReadmeExamples loads every configuration in the README. One is for any table, one for
// the table that current SDKs write.
func TestReadmeExamples(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join("..", "..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("whsec_a2tra2tra2tra2tra2tra2tra2tra2tra2tra2s="), 0o600); err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(readme, -1)
	if len(examples) == 0 {
		t.Fatal("README.md has no example of a configuration")
	}
	layouts := map[string]bool{}
	for _, example := range examples {
		text := regexp.MustCompile(`\$\{file:[^}]*\}`).ReplaceAll(example[1], []byte("${file:"+secret+"}"))
		file := filepath.Join(t.TempDir(), "sluicebox.yaml")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Load(file, nil)
		if err != nil {
			t.Errorf("%v, in:\n%s", err, text)
			continue
		}
		for _, box := range cfg.Outboxes() {
			layouts[box.Layout.Name] = true
		}
	}
	for _, name := range []string{store.CustomLayout, store.OutboxMessages().Name} {
		if !layouts[name] {
			t.Errorf("README.md has no example for layout %s", name)
		}
	}
}
