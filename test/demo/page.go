package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/external-backend/operator/internal/read"
	"github.com/external-backend/operator/internal/ui"
	"github.com/external-backend/operator/test/harness/lab"
)

// listenOutside opens the socket of the page on the loopback interface of the user's machine. Call
// it before devcluster.Enter, which hands it over.
func listenOutside() (*os.File, error) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("the live page: %w", err)
	}
	defer listener.Close() // the file is a copy
	return listener.(*net.TCPListener).File()
}

// servePage serves the live page of the kubectl plugin on a socket until stop is called.
func servePage(ctx context.Context, l *lab.Lab, socket *os.File) (url string, stop func() error, err error) {
	listener, err := net.FileListener(socket)
	if err != nil {
		return "", nil, fmt.Errorf("the live page: %w", err)
	}
	socket.Close()
	ctx, cancel := context.WithCancel(ctx)
	source := pageSource{read.NewSource(l.Client, namespace)}
	server := ui.New(source, "the demonstration", time.Now)
	end := source.Start(ctx, server.Changed)
	var serving sync.WaitGroup
	var served error
	serving.Go(func() { served = server.Serve(ctx, listener) })
	return server.URL(listener), func() error {
		cancel()
		serving.Wait()
		end()
		return served
	}, nil
}

// pageSource is what the page shows.
type pageSource struct{ *read.Source }

// Plan refuses to move traffic. The demo measures how its own faults move it.
func (pageSource) Plan(context.Context, *ui.Move) (*ui.Change, error) {
	return nil, errors.New("this page only watches, because the demonstration moves the traffic itself: " +
		"kubectl external-backend ui can pin, drain and disable")
}
