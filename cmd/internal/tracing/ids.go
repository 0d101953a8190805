package tracing

import (
	"encoding/binary"
	"math/rand/v2"
	"strconv"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

func newTraceID() (id trace.TraceID) {
	for !id.IsValid() {
		binary.BigEndian.PutUint64(id[:8], rand.Uint64())
		binary.BigEndian.PutUint64(id[8:], rand.Uint64())
	}
	return id
}

func newSpanID() (id trace.SpanID) {
	for !id.IsValid() {
		binary.BigEndian.PutUint64(id[:], rand.Uint64())
	}
	return id
}

// samplerOf returns the sampler of a configuration, or that of OTEL_TRACES_SAMPLER if the configuration
// has no ratio. A name that OpenTelemetry does not define counts as none.
func samplerOf(c *Config, variable func(string) string) sdk.Sampler {
	ratio := float64(c.SampleRatio)
	if ratio == 0 {
		if ratio = 1; variable("OTEL_TRACES_SAMPLER_ARG") != "" {
			if r, err := strconv.ParseFloat(variable("OTEL_TRACES_SAMPLER_ARG"), 64); err == nil && r >= 0 && r <= 1 {
				ratio = r
			}
		}
		switch variable("OTEL_TRACES_SAMPLER") {
		case "always_on":
			return sdk.AlwaysSample()
		case "always_off":
			return sdk.NeverSample()
		case "traceidratio":
			return sdk.TraceIDRatioBased(ratio)
		case "parentbased_always_on":
			ratio = 1
		case "parentbased_traceidratio":
		default:
			ratio = 0
		}
	}
	return sdk.ParentBased(sdk.TraceIDRatioBased(ratio))
}
