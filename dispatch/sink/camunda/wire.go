package camunda

import (
	"errors"
	"time"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Names of Camunda's gateway.proto (camunda/camunda, zeebe/gateway-protocol). The numbers of the
// fields below are from there too. Generated code would be longer than what two requests need.
const (
	publishMethod  = "/gateway_protocol.Gateway/PublishMessage"
	topologyMethod = "/gateway_protocol.Gateway/Topology"
)

// rawCodec hands encoded messages over as they are.
type rawCodec struct{}

var _ encoding.CodecV2 = rawCodec{}

// Name is that of the content type application/grpc+proto.
func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.([]byte)
	if !ok {
		return nil, errors.New("no encoded message")
	}
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return errors.New("no buffer for an encoded message")
	}
	*b = data.Materialize()
	return nil
}

// proto returns a PublishMessageRequest.
func (msg *message) proto(timeToLive time.Duration) (b []byte) {
	appendText := func(number protowire.Number, text string) {
		if text != "" {
			b = protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), text)
		}
	}
	appendText(1, msg.name)
	appendText(2, msg.correlationKey)
	b = protowire.AppendVarint(protowire.AppendTag(b, 3, protowire.VarintType), uint64(timeToLive.Milliseconds()))
	appendText(4, msg.id)
	if msg.variables != nil {
		b = protowire.AppendBytes(protowire.AppendTag(b, 5, protowire.BytesType), msg.variables)
	}
	appendText(6, msg.tenantID)
	return b
}

// readKey returns the key of a PublishMessageResponse, 0 for none.
func readKey(b []byte) (key int64, err error) {
	err = readFields(b, func(number protowire.Number, value uint64, _ []byte) error {
		if number == 1 {
			key = int64(value)
		}
		return nil
	})
	return key, err
}

// readTopology returns a TopologyResponse.
func readTopology(b []byte) (of topology, err error) {
	err = readFields(b, func(number protowire.Number, value uint64, data []byte) error {
		switch number {
		case 1:
			var one broker
			err := one.read(data)
			of.Brokers = append(of.Brokers, one)
			return err
		case 3:
			of.PartitionsCount = int(value)
		case 5:
			of.GatewayVersion = string(data)
		}
		return nil
	})
	return of, err
}

// read takes a BrokerInfo.
func (t *broker) read(b []byte) error {
	return readFields(b, func(number protowire.Number, _ uint64, data []byte) error {
		if number != 4 {
			return nil
		}
		p := partition{Role: "leader", Health: "healthy"} // both are 0, which is not sent
		err := readFields(data, func(number protowire.Number, value uint64, _ []byte) error {
			switch number {
			case 1:
				p.ID = int(value)
			case 2:
				p.Role = [...]string{"leader", "follower", "inactive"}[min(value, 2)]
			case 3:
				p.Health = [...]string{"healthy", "unhealthy", "dead"}[min(value, 2)]
			}
			return nil
		})
		t.Partitions = append(t.Partitions, p)
		return err
	})
}

// readFields calls take with each field of a message that is a number or has a length.
func readFields(b []byte, take func(number protowire.Number, value uint64, data []byte) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		var value uint64
		var data []byte
		switch kind {
		case protowire.VarintType:
			value, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			data, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(number, kind, b)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if kind != protowire.VarintType && kind != protowire.BytesType {
			continue
		}
		if err := take(number, value, data); err != nil {
			return err
		}
	}
	return nil
}
