package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// HealthPath is the path at which an HTTP server answers checks.
const HealthPath = "/healthz"

// Server is a real server on one port of all addresses of a machine. It answers every request with
// the machine's name.
type Server struct {
	machine *Machine
	network string
	port    int

	requests, checks atomic.Int64
	sick             atomic.Bool

	mu   sync.Mutex
	stop func() // nil while stopped
}

// Serve starts a server. The network is one of
//
//	http  a request for HealthPath is a check: it gets 200, or 503 while the server is sick
//	tcp   each line is a request; a connection without a line is a check
//	udp   each packet is a request
func (m *Machine) Serve(network string, port int) (*Server, error) {
	s := &Server{machine: m, network: network, port: port}
	return s, s.Start()
}

// Requests returns how many requests were answered so far, without checks.
func (s *Server) Requests() int64 { return s.requests.Load() }

// Checks returns how many health checks were answered so far.
func (s *Server) Checks() int64 { return s.checks.Load() }

// SetSick makes an HTTP server answer checks with 503. It continues to answer requests.
func (s *Server) SetSick(sick bool) { s.sick.Store(sick) }

// Start starts a server again after Stop.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop != nil {
		return nil
	}
	serve := map[string]func(addr string) (stop func(), err error){
		"http": s.serveHTTP, "tcp": s.serveTCP, "udp": s.serveUDP,
	}[s.network]
	stop, err := serve(fmt.Sprintf(":%d", s.port))
	if err != nil {
		return fmt.Errorf("lab: serve on %s: %w", s.machine, err)
	}
	s.stop = stop
	return nil
}

// Stop closes the server and its connections. From then on, connections are refused.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop != nil {
		s.stop()
		s.stop = nil
	}
}

func (s *Server) serveHTTP(addr string) (func(), error) {
	listener, err := s.machine.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path != HealthPath:
				s.requests.Add(1)
				fmt.Fprint(w, s.machine.Name())
				return
			case s.sick.Load():
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			s.checks.Add(1)
		}),
	}
	var done sync.WaitGroup
	done.Go(func() { _ = server.Serve(listener) }) // ends with Close
	return func() {
		server.Close()
		done.Wait()
	}, nil
}

func (s *Server) serveTCP(addr string) (func(), error) {
	listener, err := s.machine.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		for {
			conn, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				done.Go(func() {
					defer context.AfterFunc(ctx, func() { conn.Close() })()
					s.answerLines(conn)
					conn.Close()
				})
			}
		}
	})
	return func() {
		listener.Close()
		cancel()
		done.Wait()
	}, nil
}

func (s *Server) answerLines(conn net.Conn) {
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	lines := bufio.NewReader(io.LimitReader(conn, 1<<16))
	for asked := false; ; asked = true {
		if _, err := lines.ReadSlice('\n'); err != nil {
			if !asked {
				s.checks.Add(1)
			}
			return
		}
		s.requests.Add(1)
		fmt.Fprintln(conn, s.machine.Name())
	}
}

func (s *Server) serveUDP(addr string) (func(), error) {
	conn, err := s.machine.ListenPacket("udp", addr)
	if err != nil {
		return nil, err
	}
	var done sync.WaitGroup
	done.Go(func() {
		packet := make([]byte, 2048)
		for {
			_, from, err := conn.ReadFrom(packet)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				s.requests.Add(1)
				_, _ = conn.WriteTo([]byte(s.machine.Name()), from)
			}
		}
	})
	return func() {
		conn.Close()
		done.Wait()
	}, nil
}
