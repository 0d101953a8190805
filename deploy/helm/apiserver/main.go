// Apiserver installs what the chart renders on a real Kubernetes API server without nodes: with its
// defaults, validation and admission, in a namespace that enforces the restricted Pod Security Standard.
// It applies the files on the server's side, runs the command with KUBECONFIG, and then creates the pod
// of each Deployment, as the controllers of a cluster would. A warning of the server is a failure.
//
//	go run . [-apply FILE]… [COMMAND…]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	core "k8s.io/api/core/v1"
	scheduling "k8s.io/api/scheduling/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	v1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

const namespace = "sluicebox"

func main() {
	var files []string
	flag.Func("apply", "a file of manifests", func(name string) error { files = append(files, name); return nil })
	flag.Parse()
	stderr := os.Stderr
	dir, err := os.MkdirTemp("", "sluicebox-apiserver")
	if err == nil {
		err = run(dir, files, flag.Args())
		err = errors.Join(err, os.RemoveAll(dir)) // the server ends with the process
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		os.Exit(1)
	}
}

func run(dir string, files, command []string) error {
	ctx := context.Background()
	s, err := startServer(dir)
	if err != nil {
		return err
	}
	c, err := newClient(s.config)
	if err != nil {
		return err
	}
	if err := c.prepare(ctx); err != nil {
		return fmt.Errorf("prepare the namespace: %w", err)
	}
	for _, file := range files {
		if err := c.applyFile(ctx, file); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	if len(command) > 0 {
		cmd := exec.Command(command[0], command[1:]...) //nolint:gosec // the command that is checked
		cmd.Env = append(os.Environ(), "KUBECONFIG="+s.kubeconfig)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w", command[0], err)
		}
	}
	return c.createPods(ctx)
}

// client talks to the server.
type client struct {
	typed    kubernetes.Interface
	objects  dynamic.Interface
	config   *rest.Config
	warnings *warnings
}

// warnings are what the server answered beside its results.
type warnings []string

func (w *warnings) HandleWarningHeader(_ int, _ string, text string) { *w = append(*w, text) }

func newClient(config *rest.Config) (*client, error) {
	c := &client{config: rest.CopyConfig(config), warnings: &warnings{}}
	c.config.WarningHandler = c.warnings
	var err error
	if c.typed, err = kubernetes.NewForConfig(c.config); err != nil {
		return nil, err
	}
	c.objects, err = dynamic.NewForConfig(c.config)
	return c, err
}

// prepare creates what an administrator has: the namespace, and the priority class that all.yaml names.
func (c *client) prepare(ctx context.Context) error {
	labels := map[string]string{"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted"}
	_, err := c.typed.CoreV1().Namespaces().Create(ctx, &core.Namespace{ObjectMeta: v1.ObjectMeta{Name: namespace, Labels: labels}}, v1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = c.typed.SchedulingV1().PriorityClasses().Create(ctx, &scheduling.PriorityClass{ObjectMeta: v1.ObjectMeta{Name: "high"}, Value: 1000}, v1.CreateOptions{})
	return err
}

// applyFile applies each manifest, twice: the second time changes nothing.
func (c *client) applyFile(ctx context.Context, file string) error {
	text, err := os.ReadFile(file) //nolint:gosec // a file that the caller names
	if err != nil {
		return err
	}
	groups, err := restmapper.GetAPIGroupResources(discovery.NewDiscoveryClientForConfigOrDie(c.config))
	if err != nil {
		return err
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	applied := 0
	for doc := range strings.SplitSeq("\n"+string(text), "\n---") {
		var o unstructured.Unstructured
		if err := yaml.Unmarshal([]byte(doc), &o.Object); err != nil {
			return err
		}
		if o.Object == nil || o.GroupVersionKind().Group == "monitoring.coreos.com" { // the Prometheus Operator's own kinds
			continue
		}
		name := o.GetKind() + " " + o.GetName()
		if err := c.apply(ctx, mapper, &o); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		applied++
	}
	if len(*c.warnings) > 0 {
		return fmt.Errorf("the server warns: %s", strings.Join(*c.warnings, "; "))
	}
	fmt.Printf("%s: %d manifests are applied\n", filepath.Base(file), applied)
	return nil
}

func (c *client) apply(ctx context.Context, mapper meta.RESTMapper, o *unstructured.Unstructured) error {
	kind := o.GroupVersionKind()
	mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return err
	}
	to := c.objects.Resource(mapping.Resource).Namespace(o.GetNamespace())
	before := ""
	for range 2 {
		// Strict: an unknown or repeated field is an error.
		text, err := o.MarshalJSON()
		if err != nil {
			return err
		}
		got, err := to.Patch(ctx, o.GetName(), "application/apply-patch+yaml", text, v1.PatchOptions{FieldManager: "check", FieldValidation: v1.FieldValidationStrict})
		if err != nil {
			return err
		}
		if before != "" && before != got.GetResourceVersion() {
			return errors.New("the second apply changed it")
		}
		before = got.GetResourceVersion()
	}
	return nil
}

// createPods creates the pod of each Deployment, and proves that the server would refuse a worse one.
func (c *client) createPods(ctx context.Context) error {
	list, err := c.typed.AppsV1().Deployments(namespace).List(ctx, v1.ListOptions{})
	if err != nil {
		return err
	}
	if len(list.Items) == 0 {
		return errors.New("no Deployment was installed")
	}
	pods := c.typed.CoreV1().Pods(namespace)
	for i := range list.Items {
		of := &list.Items[i].Spec.Template
		pod := &core.Pod{ObjectMeta: v1.ObjectMeta{GenerateName: list.Items[i].Name + "-", Labels: of.Labels, Annotations: of.Annotations}, Spec: of.Spec}
		made, err := pods.Create(ctx, pod, v1.CreateOptions{FieldValidation: v1.FieldValidationStrict})
		if err != nil {
			return fmt.Errorf("create the pod of %s: %w", list.Items[i].Name, err)
		}
		if made.Status.QOSClass == core.PodQOSBestEffort {
			return fmt.Errorf("the pod of %s requests no resources", list.Items[i].Name)
		}
		worse := pod.DeepCopy()
		worse.Spec.HostNetwork = true
		if _, err := pods.Create(ctx, worse, v1.CreateOptions{}); !kerrors.IsForbidden(err) {
			return fmt.Errorf("the server does not enforce the restricted standard: %w", err)
		}
		fmt.Printf("the pod of %s is admitted\n", list.Items[i].Name)
	}
	return nil
}
