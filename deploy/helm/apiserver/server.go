package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

const (
	startTimeout = 2 * time.Minute
	token        = "a-token-of-the-check"
)

// server is an API server with its etcd, in this process. It ends with the process.
type server struct {
	config     *rest.Config
	kubeconfig string // a file
}

// startServer starts a server that keeps its files in dir, and waits until it is ready.
func startServer(dir string) (*server, error) {
	store, err := startEtcd(filepath.Join(dir, "etcd"))
	if err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	key, tokens := filepath.Join(dir, "key.pem"), filepath.Join(dir, "tokens.csv")
	if err := writeKey(key); err != nil {
		return nil, err
	}
	if err := os.WriteFile(tokens, []byte(token+",admin,admin,system:masters\n"), 0o600); err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	logs, err := os.Create(filepath.Join(dir, "apiserver.log"))
	if err != nil {
		return nil, err
	}
	os.Stderr = logs // where the server's loggers write, which have no setting for it

	cmd := app.NewAPIServerCommand()
	cmd.SetArgs([]string{
		"--etcd-servers=" + store, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port), "--cert-dir=" + dir,
		"--service-account-issuer=https://sluicebox.example", "--service-account-key-file=" + key, "--service-account-signing-key-file=" + key,
		"--service-cluster-ip-range=10.0.0.0/24", "--authorization-mode=RBAC", "--token-auth-file=" + tokens,
	})
	ended := make(chan error, 1)
	go func() { ended <- cmd.Execute() }()

	s := &server{kubeconfig: filepath.Join(dir, "kubeconfig")}
	s.config = &rest.Config{Host: fmt.Sprintf("https://127.0.0.1:%d", port), BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(dir, "apiserver.crt")}}
	if err := s.await(ended); err != nil {
		text, _ := os.ReadFile(logs.Name())
		return nil, fmt.Errorf("start the API server: %w\n%s", err, text)
	}
	return s, clientcmd.WriteToFile(api.Config{
		Clusters:       map[string]*api.Cluster{"check": {Server: s.config.Host, CertificateAuthority: s.config.CAFile}},
		AuthInfos:      map[string]*api.AuthInfo{"admin": {Token: token}},
		Contexts:       map[string]*api.Context{"check": {Cluster: "check", AuthInfo: "admin"}},
		CurrentContext: "check",
	}, s.kubeconfig)
}

// await waits until the server is ready.
func (s *server) await(ended <-chan error) error {
	var last error
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); {
		select {
		case err := <-ended:
			return fmt.Errorf("it ended: %w", err)
		case <-time.After(200 * time.Millisecond):
		}
		c, err := kubernetes.NewForConfig(s.config) // fails until the server has written its certificate
		if err == nil {
			err = c.Discovery().RESTClient().Get().AbsPath("/readyz").Timeout(time.Second).Do(context.Background()).Error()
		}
		if last = err; err == nil {
			return nil
		}
	}
	return last
}

// startEtcd starts etcd on a socket and returns its address.
func startEtcd(dir string) (string, error) {
	cfg := embed.NewConfig()
	cfg.Dir, cfg.LogLevel = dir, "error"
	clients, peers := url.URL{Scheme: "unix", Path: dir + ".clients"}, url.URL{Scheme: "unix", Path: dir + ".peers"}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{clients}, []url.URL{clients}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peers}, []url.URL{peers}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return "", err
	}
	select {
	case <-e.Server.ReadyNotify():
		return clients.String(), nil
	case err := <-e.Err():
		return "", err
	case <-time.After(startTimeout):
		return "", fmt.Errorf("not ready after %s", startTimeout)
	}
}

// writeKey writes a key that signs the tokens of service accounts.
func writeKey(file string) error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}), 0o600)
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}
