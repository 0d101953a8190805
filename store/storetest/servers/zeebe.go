package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// ZeebeEngine is an engine of Camunda 8 of one test. It keeps everything in memory.
type ZeebeEngine struct {
	// URL is the address of its gRPC gateway.
	URL string

	private
}

// Zeebe starts an engine, which takes some seconds. It ends with the test. The test is skipped if
// the program is not there, as with make test.
func Zeebe(tb testing.TB) *ZeebeEngine {
	tb.Helper()
	bin := os.Getenv("SLUICEBOX_TEST_ZEEBE_BIN")
	if bin == "" {
		tb.Skip("SLUICEBOX_TEST_ZEEBE_BIN is not set; name zeebe to servers.sh")
	}
	e := &ZeebeEngine{private: private{
		tb: tb, name: "Zeebe", bin: bin, base: tempDir(tb), env: environment("SLUICEBOX_TEST_ZEEBE_LIB"),
		signals: map[string]os.Signal{"fast": syscall.SIGTERM, "immediate": syscall.SIGKILL},
	}}
	e.command = func() (cmd *exec.Cmd, ready string) {
		return e.program("jdk/bin/java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
			"--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
			"-cp", bin+"/lib/*:"+bin, "Engine", strconv.Itoa(e.port)), "engine started"
	}
	e.launchAnywhere()
	e.URL = fmt.Sprintf("grpc://127.0.0.1:%d", e.port)
	return e
}

// call calls a method of the gateway (gateway.proto of Camunda), and take with each of its answers.
func (e *ZeebeEngine) call(method string, request []byte, take func(answer []byte)) {
	e.tb.Helper()
	conn, err := grpc.NewClient(fmt.Sprintf("127.0.0.1:%d", e.port), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(encoded{}), grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		e.tb.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/gateway_protocol.Gateway/"+method)
	if err == nil {
		err = errors.Join(stream.SendMsg(request), stream.CloseSend())
	}
	for err == nil {
		var answer []byte
		if err = stream.RecvMsg(&answer); err == nil {
			take(answer)
		}
	}
	if !errors.Is(err, io.EOF) {
		e.tb.Fatalf("%s: %v", method, err)
	}
}

// encoded is a codec of messages that are encoded already.
type encoded struct{}

func (encoded) Name() string { return "proto" }

func (encoded) Marshal(v any) (mem.BufferSlice, error) {
	b, _ := v.([]byte)
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}

func (encoded) Unmarshal(data mem.BufferSlice, v any) error {
	to, ok := v.(*[]byte)
	if ok {
		*to = data.Materialize()
	}
	return nil
}

// Deploy deploys a process (BPMN).
func (e *ZeebeEngine) Deploy(name, bpmn string) {
	e.tb.Helper()
	resource := appendField(appendField(nil, 1, name), 2, bpmn)
	e.call("DeployResource", appendField(nil, 1, string(resource)), func([]byte) {})
}

// Jobs returns the variables, as JSON, of the jobs of a type that wait for a worker. It takes them, so
// the next call does not return them.
func (e *ZeebeEngine) Jobs(typ string) (variables []string) {
	e.tb.Helper()
	request := appendField(appendField(nil, 1, typ), 2, "test") // type, worker
	appendNumber := func(number protowire.Number, value int64) {
		request = protowire.AppendVarint(protowire.AppendTag(request, number, protowire.VarintType), uint64(value))
	}
	appendNumber(3, time.Hour.Milliseconds()) // timeout
	appendNumber(4, 10_000)                   // maxJobsToActivate
	appendNumber(6, -1)                       // requestTimeout: answer at once
	e.call("ActivateJobs", request, func(answer []byte) {
		for _, job := range fieldsOf(answer, 1) {
			variables = append(variables, fieldsOf([]byte(job), 13)...)
		}
	})
	return variables
}

// appendField appends a text to an encoded message.
func appendField(b []byte, number protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), text)
}

// fieldsOf returns the values of a field with a length in an encoded message.
func fieldsOf(b []byte, field protowire.Number) (values []string) {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return values
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
			return values
		}
		if number == field {
			value, _ := protowire.ConsumeString(b[:n])
			values = append(values, value)
		}
		b = b[n:]
	}
	return values
}
