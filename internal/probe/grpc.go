package probe

import (
	"bytes"
	"encoding/binary"
	"net"
	"strconv"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
)

const (
	// The sizes that HTTP/2 begins with, for a frame that a peer may send and for its compression
	// table (RFC 9113, section 6.5.2).
	h2MaxFrame    = 16 << 10
	h2HeaderTable = 4096

	h2FrameHeader = 9

	// maxIdle is how many bytes a peer may send between two calls. An unfinished frame or header
	// block stays in memory for as long as the connection is kept.
	maxIdle = 4 << 10
)

// authority returns the :authority of a call to e.
func authority(e Endpoint) string {
	if e.Host == "" {
		return e.Dial.String()
	}
	return net.JoinHostPort(e.Host, strconv.Itoa(int(e.Dial.Port())))
}

// grpcExchange calls grpc.health.v1.Health/Check over HTTP/2. One connection carries one call
// after the other. The client of google.golang.org/grpc would keep three goroutines and more than
// 64 KiB of buffers for each connection.
type grpcExchange struct {
	headers []byte         // the encoded request headers, the same for each call
	message []byte         // the request with its gRPC prefix
	decoder *hpack.Decoder // for as long as the connection lives
	framing *framing       // nil while nothing is under way

	stream   uint32 // of the current or last call; 0 before the first call
	open     bool   // the call has not ended
	goneAway bool   // the peer takes no further call
	began    bool   // something of this call has come

	block      []byte // an unfinished header block
	blockOf    uint32 // the stream of the header block that is read
	endsStream bool   // the block ends its stream

	httpStatus, grpcStatus string // header fields of the answer
	payload                []byte // the answer with its gRPC prefix
	budget                 int    // bytes of headers and control frames that may still come
}

func newGRPCExchange(service, authority string, secure bool) *grpcExchange {
	scheme := "http"
	if secure {
		scheme = "https"
	}
	var headers bytes.Buffer
	encoder := hpack.NewEncoder(&headers)
	encoder.SetMaxDynamicTableSize(0) // without a table, the headers of every call have one encoding
	for _, field := range [][2]string{
		{":method", "POST"}, {":scheme", scheme}, {":path", grpc_health_v1.Health_Check_FullMethodName},
		{":authority", authority}, {"content-type", "application/grpc"}, {"user-agent", userAgent}, {"te", "trailers"},
	} {
		// Writing to a buffer never fails.
		_ = encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]})
	}

	// It fails for a name that is not UTF-8. Then the call asks for the server as a whole.
	request, _ := proto.Marshal(&grpc_health_v1.HealthCheckRequest{Service: service})
	message := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(request)))

	x := &grpcExchange{headers: headers.Bytes(), message: append(message, request...)}
	x.decoder = hpack.NewDecoder(h2HeaderTable, x.takeField)
	x.decoder.SetMaxStringLength(maxHead)
	return x
}

// framing reads and writes HTTP/2 frames. Its Framer keeps a buffer as large as the largest frame
// that has come, so it does not outlive a call.
type framing struct {
	*http2.Framer
	in        bytes.Reader
	out       bytes.Buffer
	header    http2.FrameHeader // of an unfinished frame, where hasHeader is true
	hasHeader bool
	partial   []byte // what else has come of an unfinished frame
}

func (x *grpcExchange) frames() *framing {
	if x.framing == nil {
		f := &framing{}
		f.Framer = http2.NewFramer(&f.out, &f.in)
		f.SetMaxReadFrameSize(h2MaxFrame)
		x.framing = f
	}
	return x.framing
}

func (x *grpcExchange) begin(dst []byte) (out []byte, enough bool) {
	f := x.frames()
	// Writing to a buffer never fails.
	if x.stream == 0 {
		dst = append(dst, http2.ClientPreface...)
		_ = f.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 0})
		x.stream = 1
	} else {
		x.stream += 2
	}
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: x.stream, BlockFragment: x.headers, EndHeaders: true})
	_ = f.WriteData(x.stream, true, x.message)

	x.open, x.began = true, false
	x.budget = maxHead
	return append(dst, f.takeOut()...), false
}

// takeOut returns what has been written. It is valid until the next write.
func (f *framing) takeOut() []byte {
	out := f.out.Bytes()
	f.out.Reset()
	return out
}

func (x *grpcExchange) feed(in []byte) answer {
	f := x.frames()
	if len(f.partial) > 0 {
		in = append(f.partial, in...)
	}
	f.in.Reset(in)
	a := x.readFrames(f)
	a.reply = f.takeOut()
	left := f.in.Len()
	a.keep = a.keep && left == 0
	f.in.Reset(nil)
	f.partial = bytes.Clone(in[len(in)-left:])
	if !x.open && x.block == nil && !f.hasHeader && left == 0 {
		x.framing = nil
	}
	return a
}

// readFrames takes all whole frames that have come, until one ends the probe.
func (x *grpcExchange) readFrames(f *framing) answer {
	for {
		if !f.hasHeader {
			if f.in.Len() < h2FrameHeader {
				return answer{}
			}
			var err error
			f.header, err = f.ReadFrameHeader()
			if err != nil || !x.open && int(f.header.Length) > x.budget {
				return malformed
			}
			f.hasHeader = true
		}

		if f.in.Len() < int(f.header.Length) {
			return answer{}
		}
		frame, err := f.ReadFrameForHeader(f.header)
		f.hasHeader = false
		if err != nil {
			return malformed
		}
		if a := x.take(frame); a.done {
			return a
		}
	}
}

// take handles one frame. The framer has checked its form and its place among the others.
func (x *grpcExchange) take(frame http2.Frame) answer {
	header := frame.Header()
	ours := x.open && header.StreamID == x.stream
	if header.Type != http2.FrameData {
		if x.budget -= h2FrameHeader + int(header.Length); x.budget < 0 {
			return malformed
		}
	}
	x.began = x.began || ours

	switch frame := frame.(type) {
	case *http2.DataFrame:
		return x.takeData(frame, ours)
	case *http2.HeadersFrame:
		x.blockOf, x.endsStream = header.StreamID, frame.StreamEnded()
		return x.takeBlock(frame.HeaderBlockFragment(), frame.HeadersEnded())
	case *http2.ContinuationFrame:
		return x.takeBlock(frame.HeaderBlockFragment(), frame.HeadersEnded())
	case *http2.RSTStreamFrame:
		if ours {
			return x.end(false)
		}
	case *http2.SettingsFrame:
		if !frame.IsAck() {
			_ = x.framing.WriteSettingsAck() // to a buffer
		}
	case *http2.PingFrame:
		if !frame.IsAck() {
			_ = x.framing.WritePing(true, frame.Data) // to a buffer
		}
	case *http2.GoAwayFrame:
		return x.takeGoAway(frame)
	case *http2.PushPromiseFrame:
		return malformed
	}
	return answer{}
}

func (x *grpcExchange) takeGoAway(frame *http2.GoAwayFrame) answer {
	x.goneAway = true
	if x.open && frame.LastStreamID >= x.stream {
		return answer{} // the peer still answers this call
	}
	return answer{outcome: failed(ReasonUnexpectedResponse), done: true, ignored: x.open && !x.began}
}

func (x *grpcExchange) takeData(frame *http2.DataFrame, ours bool) answer {
	if len(x.payload)+int(frame.Length) > maxBody {
		return malformed
	}
	if !ours {
		return answer{}
	}
	x.payload = append(x.payload, frame.Data()...)
	if frame.StreamEnded() {
		return x.end(true)
	}
	return answer{}
}

// takeBlock collects a header block and decodes it when it is whole. It decodes the blocks of
// other streams too, because they change the compression table.
func (x *grpcExchange) takeBlock(fragment []byte, whole bool) answer {
	if !whole || x.block != nil {
		x.block = append(x.block, fragment...) // the budget bounds it
		fragment = x.block
	}
	if !whole {
		return answer{}
	}
	x.block = nil
	if _, err := x.decoder.Write(fragment); err != nil || x.decoder.Close() != nil {
		return malformed
	}
	if x.open && x.blockOf == x.stream && x.endsStream {
		return x.end(true)
	}
	return answer{}
}

// takeField takes one decoded header field.
func (x *grpcExchange) takeField(f hpack.HeaderField) {
	if x.blockOf != x.stream {
		return
	}
	switch f.Name {
	case ":status":
		x.httpStatus = f.Value
	case "grpc-status":
		x.grpcStatus = f.Value
	}
}

// end judges a call that has ended. inOrder reports whether the peer has ended it, and not reset
// it.
func (x *grpcExchange) end(inOrder bool) answer {
	x.open = false
	x.budget = maxIdle
	a := done(x.judge())
	x.httpStatus, x.grpcStatus, x.payload = "", "", nil
	a.keep = inOrder && !x.goneAway
	return a
}

func (x *grpcExchange) judge() outcome {
	status, err := strconv.Atoi(x.grpcStatus)
	switch {
	case x.httpStatus != "" && x.httpStatus != "200":
		return failedWith(ReasonUnexpectedStatus, "HTTP status is not 200")
	case err != nil:
		return failed(ReasonUnexpectedResponse)
	case status == int(codes.NotFound):
		return failedWith(ReasonGRPCNotServing, "the server does not know the service")
	case status != int(codes.OK):
		return failedWith(ReasonUnexpectedStatus, "gRPC status "+strconv.Itoa(status)+", expected 0")
	}

	serving, ok := parseHealthResponse(x.payload)
	switch {
	case !ok:
		return failed(ReasonUnexpectedResponse)
	case serving != grpc_health_v1.HealthCheckResponse_SERVING:
		return failedWith(ReasonGRPCNotServing, "not serving, expected SERVING")
	default:
		return succeeded
	}
}

// parseHealthResponse reads a HealthCheckResponse with its gRPC prefix: a byte that says whether
// the message is compressed, and its length.
func parseHealthResponse(b []byte) (status grpc_health_v1.HealthCheckResponse_ServingStatus, ok bool) {
	const prefix = 5
	if len(b) < prefix || b[0] != 0 || int(binary.BigEndian.Uint32(b[1:])) != len(b)-prefix {
		return 0, false
	}
	var response grpc_health_v1.HealthCheckResponse
	err := proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b[prefix:], &response)
	return response.GetStatus(), err == nil
}

func (x *grpcExchange) cut(err error) answer {
	a := done(cutOutcome(err))
	a.ignored = !x.began
	return a
}
