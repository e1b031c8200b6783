package controllers

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// requestTimeout bounds one request to the API server: longer than a webhook may take (30 s), so
// that a slow one still lets a write through, and shorter than the API server's own bound of a
// minute.
const requestTimeout = 40 * time.Second

// timed gives each write a time of its own, so that one that hangs takes none from those after it.
// Reads go to the cache.
type timed struct{ client.Client }

// within runs one request.
func within(ctx context.Context, request func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	defer awaiting(ctx)()
	return request(ctx)
}

func (t timed) Create(ctx context.Context, o client.Object, options ...client.CreateOption) error {
	return within(ctx, func(ctx context.Context) error { return t.Client.Create(ctx, o, options...) })
}

func (t timed) Update(ctx context.Context, o client.Object, options ...client.UpdateOption) error {
	return within(ctx, func(ctx context.Context) error { return t.Client.Update(ctx, o, options...) })
}

func (t timed) Patch(ctx context.Context, o client.Object, p client.Patch, options ...client.PatchOption) error {
	return within(ctx, func(ctx context.Context) error { return t.Client.Patch(ctx, o, p, options...) })
}

func (t timed) Delete(ctx context.Context, o client.Object, options ...client.DeleteOption) error {
	return within(ctx, func(ctx context.Context) error { return t.Client.Delete(ctx, o, options...) })
}

func (t timed) Status() client.SubResourceWriter { return timedStatus{t.Client.Status()} }

// timedStatus does so for writes of status.
type timedStatus struct{ client.SubResourceWriter }

func (t timedStatus) Patch(ctx context.Context, o client.Object, p client.Patch, options ...client.SubResourcePatchOption) error {
	return within(ctx, func(ctx context.Context) error { return t.SubResourceWriter.Patch(ctx, o, p, options...) })
}

// timedReader does so for reads from the API server itself.
type timedReader struct{ client.Reader }

func (t timedReader) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	return within(ctx, func(ctx context.Context) error { return t.Reader.Get(ctx, key, o, options...) })
}

func (t timedReader) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	return within(ctx, func(ctx context.Context) error { return t.Reader.List(ctx, list, options...) })
}
