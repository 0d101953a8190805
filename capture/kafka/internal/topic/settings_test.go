package topic

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store"
)

// Each setting that loses records is a fault with the command that changes it, and a setting that only
// weakens the topic is advice.
func TestSettings(t *testing.T) {
	good := map[string]string{
		"unclean.leader.election.enable": "false", "min.insync.replicas": "2", "cleanup.policy": "delete", "max.message.bytes": "1048588",
		"retention.ms": "604800000", "retention.bytes": "-1",
	}
	for _, c := range []struct {
		replicas       int
		setting, value string
		want           store.Grade // 0: no finding
		better         string      // "" if no setting helps
	}{
		{3, "min.insync.replicas", "2", 0, ""},
		{3, "min.insync.replicas", "1", store.GradeFault, "2"},
		{3, "min.insync.replicas", "3", store.GradeAdvice, "2"},
		{3, "min.insync.replicas", "4", store.GradeFault, "2"},
		{2, "min.insync.replicas", "1", store.GradeFault, "2"},
		{2, "min.insync.replicas", "2", store.GradeAdvice, "1"},
		{1, "min.insync.replicas", "1", store.GradeAdvice, ""},
		{1, "min.insync.replicas", "2", store.GradeFault, "1"},
		{3, "unclean.leader.election.enable", "true", store.GradeFault, "false"},
		{3, "cleanup.policy", "compact", store.GradeFault, "delete"},
		{3, "cleanup.policy", "compact,delete", store.GradeFault, "delete"},
		{3, "cleanup.policy", "", store.GradeAdvice, "delete"},
		{3, "max.message.bytes", "1001023", store.GradeFault, "1001024"},
		{3, "max.message.bytes", "1001024", 0, ""},
		{3, "retention.ms", "-1", store.GradeAdvice, "604800000"},
		{3, "retention.ms", "599999", store.GradeFault, "604800000"},
		{3, "retention.ms", "3600000", store.GradeAdvice, "604800000"},
		{3, "retention.bytes", "1000000", store.GradeAdvice, "-1"},
	} {
		settings := maps.Clone(good)
		settings[c.setting] = c.value
		found := check(Spec{Name: "rows", RecordBytes: 1_000_000}, c.replicas, settings)
		if c.want == 0 && len(found) == 0 {
			continue
		}
		text := fmt.Sprintf("%s=%s", c.setting, c.value)
		if len(found) != 1 || found[0].Grade != c.want || c.better != "" &&
			(!strings.Contains(found[0].Text, text) || !strings.HasSuffix(found[0].Remedy, fmt.Sprintf(" rows --add-config %s=%s", c.setting, c.better))) {
			t.Errorf("%s with %d replicas: got %+v, want grade %v and %s", text, c.replicas, found, c.want, c.better)
		}
	}
	if found := check(Spec{Name: "rows", RecordBytes: 1}, 3, nil); len(found) > 0 {
		t.Errorf("a broker without these settings: got %+v", found)
	}
}
