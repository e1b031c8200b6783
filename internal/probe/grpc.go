package probe

import (
	"bytes"
	"encoding/binary"
	"net"
	"strconv"

	"golang.org/x/net/http2/hpack"
)

// The few things that a unary call needs of HTTP/2 (RFC 9113).
const (
	h2Preface     = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	h2FrameHead   = 9
	h2MaxFrame    = 16 << 10 // what a peer may send without being told otherwise
	h2Data        = 0x0
	h2Headers     = 0x1
	h2Reset       = 0x3
	h2Settings    = 0x4
	h2Push        = 0x5
	h2Ping        = 0x6
	h2GoAway      = 0x7
	h2Cont        = 0x9
	h2Ack         = 0x1
	h2EndStream   = 0x1
	h2EndHeaders  = 0x4
	h2Padded      = 0x8
	h2Priority    = 0x20
	h2EnablePush  = 2
	h2HeaderTable = 4096 // size of the peer's compression table, unless it is told otherwise
)

// maxIdle is how many bytes a peer may send between two calls. An unfinished frame or header block
// stays in memory for as long as the connection is kept.
const maxIdle = 4 << 10

// gRPC statuses (google.golang.org/grpc/codes).
const (
	grpcOK       = 0
	grpcNotFound = 5
	grpcServing  = 1 // grpc.health.v1 ServingStatus
)

// authority is the :authority of a call to e.
func authority(e Endpoint) string {
	if e.Host == "" {
		return e.Dial.String()
	}
	return net.JoinHostPort(e.Host, strconv.Itoa(int(e.Dial.Port())))
}

// grpcExchange calls grpc.health.v1.Health/Check over HTTP/2, one call after the other on one
// connection. It is written by hand, over x/net's HPACK alone: a call is five frames, and the
// client of google.golang.org/grpc keeps three goroutines and more than 64 KiB of buffers per
// connection, which would be most of what a kept endpoint costs.
type grpcExchange struct {
	headers []byte // the encoded request headers, the same for each call
	message []byte // the request with its gRPC prefix
	decoder *hpack.Decoder

	stream  uint32 // of the current or last call; 0: none yet
	open    bool   // the call has no end yet
	leaving bool   // the peer takes no further call
	began   bool   // something of this call has come
	partial []byte // an unfinished frame
	block   []byte // an unfinished header block
	flags   byte   // of the HEADERS frame that began the block
	in      uint32 // the stream that the block belongs to

	fields  grpcFields
	payload []byte // the response, with its prefix
	budget  int    // bytes of headers and control frames that may still come in this call, or after it
}

type grpcFields struct{ http, grpc string }

func newGRPCExchange(service, authority string, secure bool) *grpcExchange {
	scheme := "http"
	if secure {
		scheme = "https"
	}
	var headers bytes.Buffer
	encoder := hpack.NewEncoder(&headers)
	encoder.SetMaxDynamicTableSize(0) // every call's headers are encoded alike
	for _, field := range [][2]string{
		{":method", "POST"}, {":scheme", scheme}, {":path", "/grpc.health.v1.Health/Check"}, {":authority", authority},
		{"content-type", "application/grpc"}, {"user-agent", userAgent}, {"te", "trailers"},
	} {
		// Writing to a buffer never fails.
		_ = encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]})
	}

	var request []byte // message HealthCheckRequest { string service = 1; }
	if service != "" {
		request = append(request, 1<<3|2)
		request = binary.AppendUvarint(request, uint64(len(service)))
		request = append(request, service...)
	}
	message := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(request)))

	x := &grpcExchange{headers: headers.Bytes(), message: append(message, request...)}
	x.decoder = hpack.NewDecoder(h2HeaderTable, x.field)
	x.decoder.SetMaxStringLength(maxHead)
	return x
}

func (x *grpcExchange) begin(dst []byte) (out []byte, enough bool) {
	if x.stream == 0 {
		dst = append(dst, h2Preface...)
		dst = appendFrame(dst, h2Settings, 0, 0, []byte{0, h2EnablePush, 0, 0, 0, 0})
		x.stream = 1
	} else {
		x.stream += 2
	}
	x.open, x.began = true, false
	x.fields, x.payload, x.budget = grpcFields{}, x.payload[:0], maxHead
	dst = appendFrame(dst, h2Headers, h2EndHeaders, x.stream, x.headers)
	return appendFrame(dst, h2Data, h2EndStream, x.stream, x.message), false
}

func appendFrame(dst []byte, kind, flags byte, stream uint32, payload []byte) []byte {
	n := len(payload)
	dst = append(dst, byte(n>>16), byte(n>>8), byte(n), kind, flags)
	dst = binary.BigEndian.AppendUint32(dst, stream)
	return append(dst, payload...)
}

func (x *grpcExchange) feed(in []byte) answer {
	if len(x.partial) > 0 {
		in = append(x.partial, in...)
		x.partial = nil
	}
	var reply []byte
	for len(in) >= h2FrameHead {
		size := int(in[0])<<16 | int(in[1])<<8 | int(in[2])
		if size > h2MaxFrame || !x.open && size > x.budget {
			return done(failed(ReasonUnexpectedResponse))
		}
		if len(in) < h2FrameHead+size {
			break
		}
		f := frame{kind: in[3], flags: in[4], stream: binary.BigEndian.Uint32(in[5:]) &^ (1 << 31), payload: in[h2FrameHead : h2FrameHead+size]}
		a := x.take(f)
		reply = append(reply, a.reply...)
		a.reply = reply
		in = in[h2FrameHead+size:]
		if a.done {
			a.keep = a.keep && len(in) == 0
			return a
		}
	}
	x.partial = bytes.Clone(in)
	return answer{reply: reply}
}

type frame struct {
	kind, flags byte
	stream      uint32
	payload     []byte
}

// take handles one frame.
func (x *grpcExchange) take(f frame) answer {
	broken := done(failed(ReasonUnexpectedResponse))
	if x.block != nil && f.kind != h2Cont {
		return broken
	}
	if f.kind != h2Data {
		if x.budget -= h2FrameHead + len(f.payload); x.budget < 0 {
			return broken
		}
	}
	if f.stream == x.stream && x.open {
		x.began = true
	}
	switch f.kind {
	case h2Data:
		return x.takeData(f)
	case h2Headers, h2Cont:
		return x.takeHeaders(f)
	case h2Reset:
		if f.stream == x.stream && x.open {
			return x.verdict(false)
		}
	case h2Settings:
		if f.flags&h2Ack == 0 {
			return answer{reply: appendFrame(nil, h2Settings, h2Ack, 0, nil)}
		}
	case h2Ping:
		if f.flags&h2Ack == 0 && len(f.payload) == 8 {
			return answer{reply: appendFrame(nil, h2Ping, h2Ack, 0, f.payload)}
		}
	case h2GoAway:
		return x.takeGoAway(f)
	case h2Push:
		return broken
	}
	return answer{}
}

func (x *grpcExchange) takeGoAway(f frame) answer {
	if len(f.payload) < 8 {
		return done(failed(ReasonUnexpectedResponse))
	}
	x.leaving = true
	last := binary.BigEndian.Uint32(f.payload) &^ (1 << 31)
	if x.open && last >= x.stream {
		return answer{} // this call still gets its answer
	}
	return answer{outcome: failed(ReasonUnexpectedResponse), done: true, ignored: x.open && !x.began}
}

func (x *grpcExchange) takeData(f frame) answer {
	payload, ok := unpad(f)
	if !ok || len(x.payload)+len(f.payload) > maxBody {
		return done(failed(ReasonUnexpectedResponse))
	}
	if f.stream != x.stream || !x.open {
		return answer{}
	}
	x.payload = append(x.payload, payload...)
	if f.flags&h2EndStream != 0 {
		return x.verdict(true)
	}
	return answer{}
}

// takeHeaders collects a header block and decodes it when it is whole. Blocks of other streams are
// decoded too: they change the compression table.
func (x *grpcExchange) takeHeaders(f frame) answer {
	broken := done(failed(ReasonUnexpectedResponse))
	payload := f.payload
	if f.kind == h2Headers {
		var ok bool
		if payload, ok = unpad(f); !ok {
			return broken
		}
		if f.flags&h2Priority != 0 {
			if len(payload) < 5 {
				return broken
			}
			payload = payload[5:]
		}
		x.block, x.flags, x.in = append([]byte{}, payload...), f.flags, f.stream
	} else {
		if x.block == nil || f.stream != x.in {
			return broken
		}
		x.block = append(x.block, payload...) // the budget bounds it
	}
	if f.flags&h2EndHeaders == 0 {
		return answer{}
	}
	_, err := x.decoder.Write(x.block)
	x.block = nil
	if err != nil || x.decoder.Close() != nil {
		return broken
	}
	if x.in == x.stream && x.open && x.flags&h2EndStream != 0 {
		return x.verdict(true)
	}
	return answer{}
}

// field takes one decoded header field.
func (x *grpcExchange) field(f hpack.HeaderField) {
	if x.in != x.stream {
		return
	}
	switch f.Name {
	case ":status":
		x.fields.http = f.Value
	case "grpc-status":
		x.fields.grpc = f.Value
	}
}

// unpad returns the payload of a DATA or HEADERS frame without its padding.
func unpad(f frame) ([]byte, bool) {
	if f.flags&h2Padded == 0 {
		return f.payload, true
	}
	if len(f.payload) == 0 || int(f.payload[0]) > len(f.payload)-1 {
		return nil, false
	}
	return f.payload[1 : len(f.payload)-int(f.payload[0])], true
}

// verdict judges a call that has ended. ended: the peer ended it in order and did not reset it.
func (x *grpcExchange) verdict(ended bool) answer {
	x.open = false
	x.budget = maxIdle
	a := done(x.judge())
	a.keep = ended && !x.leaving
	return a
}

func (x *grpcExchange) judge() outcome {
	status, err := strconv.Atoi(x.fields.grpc)
	switch {
	case x.fields.http != "" && x.fields.http != "200":
		return failedWith(ReasonUnexpectedStatus, "HTTP status is not 200")
	case err != nil:
		return failed(ReasonUnexpectedResponse)
	case status == grpcNotFound:
		return failedWith(ReasonGRPCNotServing, "the server does not know the service")
	case status != grpcOK:
		return failedWith(ReasonUnexpectedStatus, "gRPC status "+strconv.Itoa(status)+", expected 0")
	}
	serving, ok := parseHealthResponse(x.payload)
	switch {
	case !ok:
		return failed(ReasonUnexpectedResponse)
	case serving != grpcServing:
		return failedWith(ReasonGRPCNotServing, "not serving, expected SERVING")
	default:
		return outcome{result: success}
	}
}

// parseHealthResponse reads message HealthCheckResponse { ServingStatus status = 1; } with its gRPC
// prefix.
func parseHealthResponse(b []byte) (status uint64, ok bool) {
	if len(b) < 5 || b[0] != 0 || int(binary.BigEndian.Uint32(b[1:])) != len(b)-5 {
		return 0, false
	}
	b = b[5:]
	for len(b) > 0 {
		tag, n := binary.Uvarint(b)
		if n <= 0 {
			return 0, false
		}
		b = b[n:]
		value, size, ok := protoField(b, tag&7)
		if !ok {
			return 0, false
		}
		if tag == 1<<3 {
			status = value
		}
		b = b[size:]
	}
	return status, true
}

// protoField returns the value of a protobuf field, where it is a number, and its size.
func protoField(b []byte, wire uint64) (value uint64, size int, ok bool) {
	switch wire {
	case 0:
		value, size = binary.Uvarint(b)
	case 1:
		size = 8
	case 2:
		length, n := binary.Uvarint(b)
		if n <= 0 || length > maxBody {
			return 0, 0, false
		}
		size = n + int(length)
	case 5:
		size = 4
	}
	return value, size, size > 0 && size <= len(b)
}

func (x *grpcExchange) cut(err error) answer {
	a := done(cutOutcome(err))
	a.ignored = !x.began
	return a
}
