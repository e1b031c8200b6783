package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/external-backend/operator/devcluster"
)

// server is what a machine runs on one of its ports.
type server struct {
	kind string
	port uint16
}

// start serves on the machine until ctx ends, and writes each request to out.
func (s server) start(ctx context.Context, ns *devcluster.Namespace, out io.Writer) error {
	listener, err := ns.Listen("tcp", net.JoinHostPort("", strconv.Itoa(int(s.port))))
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { listener.Close() })
	switch s.kind {
	case "http":
		go serveHTTP(listener, ns.Name(), http.StatusOK, out)
	case "failing":
		go serveHTTP(listener, ns.Name(), http.StatusServiceUnavailable, out)
	case "tcp":
		go serveTCP(listener, ns.Name(), out)
	}
	return nil
}

// serveHTTP answers every request with the machine's name.
func serveHTTP(listener net.Listener, name string, status int, out io.Writer) {
	s := &http.Server{ReadHeaderTimeout: 10 * time.Second}
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(out, "%s %s from %s: %d\n", r.Method, r.URL.Path, r.RemoteAddr, status)
		w.WriteHeader(status)
		fmt.Fprintln(w, name)
	})
	_ = s.Serve(listener) // ends with the listener
}

// serveTCP answers every connection with the machine's name and closes it.
func serveTCP(listener net.Listener, name string, out io.Writer) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		fmt.Fprintf(out, "connection from %s\n", conn.RemoteAddr())
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		fmt.Fprintln(conn, name)
		conn.Close()
	}
}

// parseMachine reads the arguments of the command machine. It has printed the error that it
// returns.
func parseMachine(args []string) (servers []server, name string, addresses []string, err error) {
	flags := flag.NewFlagSet("machine", flag.ContinueOnError)
	for kind, does := range map[string]string{
		"http":    "answer HTTP requests on `PORT` with 200",
		"tcp":     "accept connections on `PORT`",
		"failing": "answer HTTP requests on `PORT` with 503",
	} {
		flags.Func(kind, does, func(text string) error {
			port, err := strconv.ParseUint(text, 10, 16)
			servers = append(servers, server{kind, uint16(port)})
			return err
		})
	}
	if err := flags.Parse(args); err != nil {
		return nil, "", nil, err
	}
	if len(servers) == 0 || flags.NArg() < 2 {
		err := errors.New("machine needs one of --http, --tcp and --failing, then NAME and ADDRESS")
		fmt.Fprintln(flags.Output(), err)
		return nil, "", nil, err
	}
	return servers, flags.Arg(0), flags.Args()[1:], nil
}

// machine runs a machine with its servers in the cluster's network until ctx ends.
func machine(ctx context.Context, args []string, out io.Writer) (code int, err error) {
	servers, name, addresses, err := parseMachine(args)
	if err != nil {
		return 2, nil
	}

	ns, err := devcluster.JoinNamespace(name, addresses...)
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for _, s := range servers {
		if err := s.start(ctx, ns, out); err != nil {
			return 1, err
		}
		fmt.Fprintf(out, "%s serves %s on port %d of %v, until Ctrl-C\n", name, s.kind, s.port, addresses)
	}
	<-ctx.Done()
	return 0, nil
}
