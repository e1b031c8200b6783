package plugin

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/external-backend/operator/internal/resolve"
)

// resolveNames looks names up once. It returns the answers, and how long each took.
func resolveNames(
	ctx context.Context, config resolve.Config, wanted []resolve.Wanted,
) (map[resolve.Question]resolve.Answer, map[resolve.Question]time.Duration) {
	took := map[resolve.Question]time.Duration{}
	if len(wanted) == 0 {
		return nil, took
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTime)
	changed := make(chan struct{}, 1)
	engine := resolve.New(resolve.Options{Notify: func(types.NamespacedName) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}})
	key := types.NamespacedName{Name: "probe"}
	engine.Sync(key, config, wanted)
	started := time.Now()
	var group sync.WaitGroup
	group.Go(func() { _ = engine.Start(ctx) })
	defer func() {
		cancel()
		group.Wait()
	}()

	for {
		answers := engine.Snapshot(key)
		for question, answer := range answers {
			if _, known := took[question]; !known && answer.Status != resolve.Pending {
				took[question] = time.Since(started)
			}
		}
		if len(took) == len(answers) {
			return answers, took
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return answers, took
		}
	}
}
