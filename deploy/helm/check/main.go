// Check validates what the chart renders: it decodes each manifest strictly into the types of
// Kubernetes, checks what these types leave open, and gives the configuration file of the
// ConfigMap to `sluicebox config check`.
//
//	helm template … | go run . PROGRAM
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/yaml"
	strict "sigs.k8s.io/yaml"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: check PROGRAM < MANIFESTS")
		os.Exit(64)
	}
	if err := check(os.Stdin, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// head is what each manifest has.
type head struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string            `json:"name"`
		Namespace string            `json:"namespace"`
		Labels    map[string]string `json:"labels"`
	} `json:"metadata"`
}

// kinds returns a new value for each kind that the chart renders.
func kinds() map[string]any {
	return map[string]any{
		"v1/ConfigMap": &core.ConfigMap{}, "v1/Service": &core.Service{}, "v1/ServiceAccount": &core.ServiceAccount{},
		"apps/v1/Deployment": &apps.Deployment{}, "policy/v1/PodDisruptionBudget": &policy.PodDisruptionBudget{},
		"networking.k8s.io/v1/NetworkPolicy":      &networking.NetworkPolicy{},
		"monitoring.coreos.com/v1/ServiceMonitor": &monitoring.ServiceMonitor{}, "monitoring.coreos.com/v1/PrometheusRule": &monitoring.PrometheusRule{},
	}
}

// check validates all manifests and prints their number.
func check(manifests io.Reader, program string) error {
	all, err := io.ReadAll(manifests)
	if err != nil {
		return err
	}
	var errs []error
	var config string
	var deployment *apps.Deployment
	n := 0
	for _, doc := range regexp.MustCompile(`(?m)^---\s*$`).Split(string(all), -1) {
		if text, err := yaml.ToJSON([]byte(doc)); err != nil || bytes.Equal(text, []byte("null")) {
			errs = append(errs, err)
			continue
		}
		n++
		var h head
		if err := strict.Unmarshal([]byte(doc), &h); err != nil {
			return err
		}
		where := h.APIVersion + "/" + h.Kind
		object, ok := kinds()[where]
		if !ok {
			errs = append(errs, fmt.Errorf("%s: unknown kind", where))
			continue
		}
		if err := strict.UnmarshalStrict([]byte(doc), object); err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", where, h.Metadata.Name, err))
		}
		errs = append(errs, checkHead(where, &h))
		switch o := object.(type) {
		case *core.ConfigMap:
			config = o.Data["sluicebox.yaml"]
		case *apps.Deployment:
			deployment = o
		}
	}
	if deployment == nil {
		return errors.Join(append(errs, errors.New("no Deployment"))...)
	}
	errs = append(errs, checkPod(deployment), checkConfig(config, program))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Printf("%d manifests and their configuration are valid\n", n)
	return nil
}

// checkHead checks names and labels, which the types leave open.
func checkHead(where string, h *head) error {
	var wrong []string
	wrong = append(wrong, validation.IsDNS1123Label(h.Metadata.Name)...)
	wrong = append(wrong, validation.IsDNS1123Label(h.Metadata.Namespace)...)
	for key, value := range h.Metadata.Labels {
		wrong = append(wrong, validation.IsQualifiedName(key)...)
		wrong = append(wrong, validation.IsValidLabelValue(value)...)
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%s %q: %s", where, h.Metadata.Name, strings.Join(wrong, "; "))
	}
	return nil
}

// checkPod checks that the pod may run on a cluster with the restricted Pod Security Standard,
// and that its parts name each other.
func checkPod(d *apps.Deployment) error {
	pod := d.Spec.Template.Spec
	c := pod.Containers[0]
	ports := map[string]bool{}
	for _, p := range c.Ports {
		ports[p.Name] = true
	}
	volumes := map[string]bool{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
	}
	rules := map[string]bool{
		"the selector matches the pod":        matches(d.Spec.Selector.MatchLabels, d.Spec.Template.Labels),
		"runAsNonRoot":                        *pod.SecurityContext.RunAsNonRoot,
		"seccomp RuntimeDefault":              pod.SecurityContext.SeccompProfile.Type == core.SeccompProfileTypeRuntimeDefault,
		"no privilege escalation":             !*c.SecurityContext.AllowPrivilegeEscalation,
		"read-only root":                      *c.SecurityContext.ReadOnlyRootFilesystem,
		"all capabilities dropped":            len(c.SecurityContext.Capabilities.Drop) == 1 && c.SecurityContext.Capabilities.Drop[0] == "ALL",
		"no token of the service account":     !*pod.AutomountServiceAccountToken,
		"probes ask a port of the container":  ports[c.LivenessProbe.HTTPGet.Port.StrVal] && ports[c.ReadinessProbe.HTTPGet.Port.StrVal],
		"a memory limit":                      !c.Resources.Limits.Memory().IsZero(),
		"grace longer than the longest drain": *pod.TerminationGracePeriodSeconds >= 45,
	}
	for _, m := range c.VolumeMounts {
		rules["the volume "+m.Name+" exists"] = volumes[m.Name]
	}
	var errs []error
	for rule, ok := range rules {
		if !ok {
			errs = append(errs, fmt.Errorf("deployment %s: not so: %s", d.Name, rule))
		}
	}
	return errors.Join(errs...)
}

func matches(selector, labels map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return len(selector) > 0
}

// checkConfig gives the configuration to the program, with secrets of its own.
func checkConfig(config, program string) error {
	const mounted = "/run/secrets/sluicebox/"
	dir, err := os.MkdirTemp("", "sluicebox")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for _, found := range regexp.MustCompile(mounted+`([\w.-]+)`).FindAllStringSubmatch(config, -1) {
		secret := "a-secret-of-the-check-" + found[1]
		if found[1] == "source-url" {
			secret = "postgres://relay:x@db.example:5432/shop"
		}
		if err := os.WriteFile(filepath.Join(dir, found[1]), []byte(secret), 0o600); err != nil {
			return err
		}
	}
	cmd := exec.Command(program, "config", "check", "-c", "-") //nolint:gosec // the program that is checked
	cmd.Stdin = strings.NewReader(strings.ReplaceAll(config, mounted, dir+"/"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("config check: %w\n%s", err, out)
	}
	return nil
}
