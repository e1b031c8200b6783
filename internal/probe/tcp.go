package probe

import (
	"bytes"
	"errors"
	"os"
)

// textExchange sends a text and waits for another one.
type textExchange struct {
	*TCPSocket
	got []byte // the answer so far, at most maxBody
}

func (x *textExchange) begin(dst []byte) (out []byte, enough bool) {
	x.got = x.got[:0]
	return append(dst, x.Send...), x.Expect == ""
}

// unexpectedText is the answer to a text without TCPSocket.Expect.
var unexpectedText = done(failedWith(ReasonUnexpectedResponse, "the answer lacks the expected text"))

func (x *textExchange) feed(in []byte) answer {
	x.got = append(x.got, in[:min(len(in), maxBody-len(x.got))]...)
	switch {
	case bytes.Contains(x.got, []byte(x.Expect)):
		return done(succeeded)
	case len(x.got) == maxBody:
		return unexpectedText
	default:
		return answer{}
	}
}

func (x *textExchange) cut(err error) answer {
	if errors.Is(err, os.ErrDeadlineExceeded) && len(x.got) > 0 {
		return unexpectedText
	}
	return done(cutOutcome(err))
}
