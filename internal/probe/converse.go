package probe

import (
	"context"
	"net"
	"time"
)

// converse runs one probe over a new connection. It blocks. t gets the steps, and may be nil.
func converse(ctx context.Context, h *handler, e Endpoint, t *Trace) outcome {
	done := t.begin(StepConnect)
	connection, err := new(net.Dialer).DialContext(ctx, "tcp", e.Dial.String())
	done(err)
	if err != nil {
		return dialOutcome(err)
	}
	defer connection.Close()
	_ = connection.(*net.TCPConn).SetLinger(0) // no TIME_WAIT on either side
	defer context.AfterFunc(ctx, func() { _ = connection.SetDeadline(time.Unix(1, 0)) })()

	if h.tls != nil {
		done := t.begin(StepTLS)
		session := h.secure(connection, e)
		err := session.establish()
		t.secured(session, e, err)
		done(err)
		if err != nil {
			return session.outcome(err)
		}
		if h.waitsForNothing() {
			return succeeded
		}
		connection = session
	}
	return askOnce(connection, h.exchange(e), t)
}

// askOnce runs an exchange over a connection. Without one the connection alone is the success.
func askOnce(connection net.Conn, x exchange, t *Trace) outcome {
	if x == nil {
		return succeeded
	}
	done := t.begin(StepRequest)
	out, enough := x.begin(nil)
	_, err := connection.Write(out)
	done(err)
	if err != nil {
		return x.cut(err).outcome
	}
	if enough {
		return succeeded
	}

	done = t.begin(StepAnswer)
	for in := make([]byte, maxBody); ; {
		n, err := connection.Read(in)
		if n > 0 {
			t.answered(in[:n])
			a := x.feed(in[:n])
			if a.done {
				done(nil)
				return a.outcome
			}
			if len(a.reply) > 0 {
				_, err = connection.Write(a.reply)
			}
		}
		if err != nil {
			done(err)
			return x.cut(err).outcome
		}
	}
}
