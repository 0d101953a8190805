package blackbox

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// language is a language of deploy/writers and deploy/inbox. Its service is a program that
// uses all of its writers and its inbox; see testdata/services.
type language struct {
	name    string
	writers []writer
	// command returns the service's command, built in dir from the files of sources.
	command func(t *testing.T, dir string) *exec.Cmd
	sources []string
}

// writer is a file of deploy/writers. url returns the URL that its library takes for a database, or
// "" if it has no such databases. inbox: a file of deploy/inbox has the same library.
type writer struct {
	name  string
	url   func(database *url.URL) string
	inbox bool
}

func languages() []*language {
	return []*language{
		{
			name: "java", command: javaService, sources: []string{"writers/java/*.java", "inbox/*.java"},
			writers: []writer{{"jdbc", jdbcURL, true}, {"spring", jdbcURL, false}, {"mongo", urlOf("mongodb", ""), true}},
		},
		{
			name: "python", command: pythonService, sources: []string{"writers/python/*.py", "inbox/*.py"},
			writers: []writer{{"psycopg", urlOf("postgres", ""), true}, {"sqlalchemy", alchemyURL, true}, {"pymongo", urlOf("mongodb", ""), true}},
		},
		{
			name: "typescript", command: typescriptService, sources: []string{"writers/typescript/*.ts", "writers/typescript/tsconfig.json", "writers/typescript/package.json", "inbox/*.ts"},
			writers: []writer{{"pg", urlOf("postgres", ""), true}, {"mysql2", urlOf("mysql", "mysql"), true}, {"mongodb", urlOf("mongodb", ""), true}},
		},
	}
}

// urlOf is for libraries that take URLs. A database of MySQL or MariaDB has the scheme mysql for it,
// and none of the relay's options.
func urlOf(kind, scheme string) func(*url.URL) string {
	return func(database *url.URL) string {
		at := *database
		if at.Scheme == "mariadb" {
			at.Scheme = "mysql"
		}
		if at.Scheme == "postgresql" {
			at.Scheme = "postgres"
		}
		if at.Scheme != kind {
			return ""
		}
		if scheme != "" {
			at.Scheme, at.RawQuery = scheme, ""
		}
		return at.String()
	}
}

func alchemyURL(database *url.URL) string {
	if at := urlOf("mysql", "mysql+pymysql")(database); at != "" {
		return at
	}
	return urlOf("postgres", "postgresql+psycopg")(database)
}

func jdbcURL(database *url.URL) string {
	scheme := database.Scheme
	switch scheme {
	case "mongodb":
		return ""
	case "postgres":
		scheme = "postgresql"
	}
	password, _ := database.User.Password()
	query := url.Values{"user": {database.User.Username()}, "password": {password}}
	return fmt.Sprintf("jdbc:%s://%s%s?%s", scheme, database.Host, database.Path, query.Encode())
}

func javaService(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	classpath := servers.Libraries(t, "java") + "/*"
	// As the file says: no casts on MySQL and MariaDB.
	spring := readFile(t, filepath.Join(dir, "OutboxSpring.java"))
	mysql := strings.NewReplacer("OutboxSpring", "OutboxSpringMySQL", "::uuid", "", "::jsonb", "").Replace(spring)
	writeFile(t, filepath.Join(dir, "OutboxSpringMySQL.java"), mysql)
	files, err := filepath.Glob(filepath.Join(dir, "*.java"))
	if err != nil {
		t.Fatal(err)
	}
	build(t, exec.Command("javac", append([]string{"-Xlint:all", "-Werror", "-implicit:none", "-cp", classpath, "-d", dir}, files...)...))
	return exec.Command("java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", dir+":"+classpath, "Service")
}

func pythonService(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	cmd := servers.PyMongo(t, filepath.Join(dir, "service.py"))
	for i, e := range cmd.Env {
		if strings.HasPrefix(e, "PYTHONPATH=") {
			cmd.Env[i] = e + ":" + servers.Libraries(t, "python")
		}
	}
	return cmd
}

func typescriptService(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	modules := servers.Libraries(t, "node")
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	build(t, exec.Command("node", filepath.Join(modules, "typescript", "bin", "tsc"), "-p", dir))
	return exec.Command("node", filepath.Join(dir, "service.js"))
}

func build(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd.Args[0], err, out)
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// deployFile is the path of a file in deploy.
func deployFile(name string) string { return filepath.Join("..", "..", "..", "deploy", name) }

// fences returns the code blocks of a language in a page of deploy.
func fences(t *testing.T, page, language string) (all []string) {
	t.Helper()
	for _, found := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(readFile(t, deployFile(page)), -1) {
		all = append(all, found[1])
	}
	return all
}

// service is a running service of a language.
type service struct {
	t        *testing.T
	address  string
	client   http.Client
	receipts string // the file that POST /receipt appends to
}

// startService builds and starts a service. It ends with the test.
func startService(t *testing.T, l *language) *service {
	t.Helper()
	dir := t.TempDir()
	sources := []string{filepath.Join("testdata", "services", "[sS]ervice."+map[string]string{"java": "java", "python": "py", "typescript": "ts"}[l.name])}
	for _, pattern := range l.sources {
		sources = append(sources, deployFile(pattern))
	}
	for _, pattern := range sources {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no files, %v", pattern, err)
		}
		for _, file := range files {
			writeFile(t, filepath.Join(dir, filepath.Base(file)), readFile(t, file))
		}
	}

	cmd := l.command(t, dir)
	receipts := filepath.Join(dir, "receipts.jsonl")
	cmd.Env = append(cmd.Environ(), "RECEIPTS="+receipts)
	cmd.Stderr = &strings.Builder{}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &service{t: t, receipts: receipts, client: http.Client{Timeout: time.Minute, Transport: &http.Transport{}}}
	port, err := bufio.NewReader(out).ReadString('\n')
	t.Cleanup(func() {
		s.client.CloseIdleConnections()
		_ = in.Close() // it ends with its input
		killed := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		err := cmd.Wait()
		killed.Stop()
		if err != nil || t.Failed() {
			t.Errorf("the service of %s ended: %v\n%s", l.name, err, cmd.Stderr)
		}
	})
	if err != nil {
		t.Fatalf("the service of %s has no address: %v", l.name, err)
	}
	s.address = "http://127.0.0.1:" + strings.TrimSpace(port)
	return s
}

// post sends a form and returns the answer: 200, or 409 if the service's transaction was rolled back.
func (s *service) post(path string, form url.Values) (status int, text string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.address+path, strings.NewReader(form.Encode()))
	if err != nil {
		return 0, "", err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}
