package probe

import "strings"

// chunkReader reads a chunked body, byte by byte (RFC 9112, section 7.1).
type chunkReader struct {
	part     chunkPart
	size     int64 // of the chunk; in chunkBytes, how many bytes of it are missing
	hasDigit bool  // the size has a digit
	blank    bool  // the line of the trailer is empty so far
}

// chunkPart is the part of a chunked body that comes next.
type chunkPart uint8

const (
	chunkSize chunkPart = iota
	chunkExtension
	chunkBytes
	chunkLineEnd // after the bytes of a chunk
	chunkTrailer
)

// chunkByte is the kind of a byte in a chunked body.
type chunkByte uint8

const (
	chunkFrame chunkByte = iota
	chunkData
	chunkBad
	chunkEnd // the last byte
)

func (r *chunkReader) next(c byte) chunkByte {
	switch r.part {
	case chunkSize:
		return r.nextOfSize(c)
	case chunkExtension:
		if c == '\n' {
			r.endOfSize()
		}
	case chunkBytes:
		if r.size--; r.size == 0 {
			r.part = chunkLineEnd
		}
		return chunkData
	case chunkLineEnd:
		switch c {
		case '\n':
			r.part, r.hasDigit = chunkSize, false
		case '\r':
		default:
			return chunkBad
		}
	case chunkTrailer:
		switch {
		case c == '\n' && r.blank:
			return chunkEnd
		case c == '\n':
			r.blank = true
		case c != '\r':
			r.blank = false
		}
	}
	return chunkFrame
}

func (r *chunkReader) nextOfSize(c byte) chunkByte {
	n := strings.IndexByte("0123456789abcdef", c|0x20)
	switch {
	case n >= 0 && (c >= '0') && r.size < 1<<56:
		r.size, r.hasDigit = r.size<<4|int64(n), true
	case !r.hasDigit:
		return chunkBad
	case c == '\n':
		r.endOfSize()
	case c == '\r', c == ';', c == ' ', c == '\t':
		r.part = chunkExtension
	default:
		return chunkBad
	}
	return chunkFrame
}

func (r *chunkReader) endOfSize() {
	if r.part = chunkBytes; r.size == 0 {
		r.part, r.blank = chunkTrailer, true
	}
}
