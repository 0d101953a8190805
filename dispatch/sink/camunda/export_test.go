package camunda

// RawCodec is the codec, for servers.
type RawCodec = rawCodec
