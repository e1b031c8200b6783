package controllers

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// requestTimeout bounds one request to the API server. It is longer than a webhook may take (30 s),
// so that a slow one still lets a write through. It is shorter than the API server's own bound of a
// minute.
const requestTimeout = 40 * time.Second

// withTimeout runs one request to the API server.
func withTimeout(ctx context.Context, request func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	defer awaiting(ctx)()
	return request(ctx)
}

// boundedClient gives each write its own timeout, so that one that hangs leaves the others theirs.
// It refuses writes while this replica must not write. Reads go to the cache and need no timeout.
type boundedClient struct {
	client.Client
	mayWrite func() error
}

func (b boundedClient) write(ctx context.Context, request func(context.Context) error) error {
	if err := b.mayWrite(); err != nil {
		return err
	}
	return withTimeout(ctx, request)
}

func (b boundedClient) Create(ctx context.Context, o client.Object, options ...client.CreateOption) error {
	return b.write(ctx, func(ctx context.Context) error { return b.Client.Create(ctx, o, options...) })
}

func (b boundedClient) Update(ctx context.Context, o client.Object, options ...client.UpdateOption) error {
	return b.write(ctx, func(ctx context.Context) error { return b.Client.Update(ctx, o, options...) })
}

func (b boundedClient) Patch(
	ctx context.Context, o client.Object, p client.Patch, options ...client.PatchOption,
) error {
	return b.write(ctx, func(ctx context.Context) error { return b.Client.Patch(ctx, o, p, options...) })
}

func (b boundedClient) Delete(ctx context.Context, o client.Object, options ...client.DeleteOption) error {
	return b.write(ctx, func(ctx context.Context) error { return b.Client.Delete(ctx, o, options...) })
}

func (b boundedClient) Status() client.SubResourceWriter {
	return boundedStatusWriter{b.Client.Status(), b}
}

// boundedStatusWriter does the same for writes of status.
type boundedStatusWriter struct {
	client.SubResourceWriter
	client boundedClient
}

func (t boundedStatusWriter) Patch(
	ctx context.Context, o client.Object, p client.Patch, options ...client.SubResourcePatchOption,
) error {
	return t.client.write(ctx, func(ctx context.Context) error { return t.SubResourceWriter.Patch(ctx, o, p, options...) })
}

// timeoutReader does the same for reads that bypass the cache.
type timeoutReader struct{ client.Reader }

func (t timeoutReader) Get(
	ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption,
) error {
	return withTimeout(ctx, func(ctx context.Context) error { return t.Reader.Get(ctx, key, o, options...) })
}

func (t timeoutReader) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	return withTimeout(ctx, func(ctx context.Context) error { return t.Reader.List(ctx, list, options...) })
}
