// Package fleet shares the work among the replicas of the manager. Each replica has a Lease, which
// it renews. Every replica sees the Leases of all, and computes from them who works for what. The
// replicas exchange nothing else. The rules are in docs/design/fleet.md.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Labels of the Lease of a replica.
const (
	labelReplica = "external-backend.io/replica"
	leasePrefix  = "external-backend-"
)

const (
	// lookPeriod is how often a replica looks at what time alone changes.
	lookPeriod = 250 * time.Millisecond
	// renewTimeout bounds one request for the own Lease. It leaves time for another one before the
	// replica has to stop writing.
	renewTimeout = 4 * time.Second
)

var errNotRenewed = errors.New(
	"this replica has not renewed its Lease for 10 s, so others may take over, and it writes nothing")

// Options are what a Replica needs.
type Options struct {
	// Name is that of the replica, as of its Pod. No other replica has it.
	Name string
	// Namespace is that of the Leases.
	Namespace string
	// LeaderLease is the name of the Lease by which one manager works alone.
	LeaderLease string
	// Pod is the UID of the replica's Pod, with which its Lease goes; "" where there is none.
	Pod types.UID
	// Contact is how others reach this replica.
	Contact Contact
	// Writer writes, and Live reads from the API server itself.
	Writer client.Writer
	Live   client.Reader
	// Cache shows the Leases.
	Cache cache.Cache
	Log   logr.Logger
}

// Replica is this process as a member of the fleet. Its methods may be called from any goroutine.
type Replica struct {
	options Options
	changed func(mayWriteAgain bool)
	wake    chan struct{}

	renewing sync.WaitGroup        // one renewal at most
	lease    *coordinationv1.Lease // the renewal's own: what it wrote last; nil before that

	mu         sync.Mutex
	roster     *roster
	couldWrite bool // when Start looked last
	share      atomic.Pointer[Share]
}

// LeaseName returns the name of the Lease of a replica.
func LeaseName(replica string) string { return leasePrefix + replica }

// New returns a replica, which is not yet a member.
func New(options Options) *Replica {
	lease := LeaseName(options.Name)
	r := &Replica{
		options: options,
		changed: func(bool) {},
		wake:    make(chan struct{}, 1),
		roster:  newRoster(lease, options.Name+"_"+string(uuid.NewUUID())),
	}
	r.share.Store(newShare(lease, false, 0, nil))
	return r
}

// Share returns who works for what now.
func (r *Replica) Share() *Share { return r.share.Load() }

// OnChange sets what is called, once at a time, when the share has changed, and when the replica
// may write again. It is set before Start.
func (r *Replica) OnChange(changed func(mayWriteAgain bool)) { r.changed = changed }

// MayWrite returns an error if the replica must not write, because others may take over its share.
func (r *Replica) MayWrite() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.roster.mayWrite(time.Now()) {
		return errNotRenewed
	}
	return nil
}

// Start is a member of the fleet until ctx ends. It returns an error if another process uses the
// same name.
func (r *Replica) Start(ctx context.Context) error {
	informer, err := r.options.Cache.GetInformer(ctx, &coordinationv1.Lease{})
	if err != nil {
		return fmt.Errorf("watch the Leases of the replicas: %w", err)
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    r.see,
		UpdateFunc: func(_, lease any) { r.see(lease) },
		DeleteFunc: r.lose,
	})
	if err != nil {
		return fmt.Errorf("watch the Leases of the replicas: %w", err)
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return nil
	}

	ticker := time.NewTicker(lookPeriod)
	defer ticker.Stop()
	renewed := make(chan error, 1)
	defer r.leave()
	for {
		r.look(func() {
			r.renewing.Go(func() { renewed <- r.renew(ctx) })
		})
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-r.wake:
		case err := <-renewed:
			if errors.Is(err, errTaken) {
				return err
			}
			r.endRenewal(ctx, err)
		}
	}
}

// look begins a renewal if one is due, and finds out what has changed.
func (r *Replica) look(renew func()) {
	r.mu.Lock()
	now, before := time.Now(), r.share.Load()
	due := r.roster.beginRenewal(now)
	share, mayWrite := r.roster.share(now), r.roster.mayWrite(now)
	r.share.Store(share)
	mayWriteAgain := mayWrite && !r.couldWrite
	r.couldWrite = mayWrite
	r.mu.Unlock()

	if due {
		renew()
	}
	if moved := !share.equal(before); moved || mayWriteAgain {
		if moved {
			r.options.Log.Info("The fleet has changed", "works", share.works, "replicas", len(share.members))
		}
		r.changed(mayWriteAgain)
	}
}

// endRenewal notes how a renewal has ended.
func (r *Replica) endRenewal(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		r.options.Log.Error(err, "Can't renew the Lease of this replica")
	}
	r.mu.Lock()
	r.roster.endRenewal(err == nil, time.Now())
	r.mu.Unlock()
}

// see notes what a Lease says, and makes Start look.
func (r *Replica) see(object any) {
	lease, ok := object.(*coordinationv1.Lease)
	if !ok {
		return
	}
	is, now := recordOf(lease), time.Now()
	r.mu.Lock()
	switch {
	case lease.Name == r.options.LeaderLease:
		r.roster.seeLeader(is, now)
	case lease.Name == r.roster.self:
		r.roster.seeOwn(is, now)
	case lease.Labels[labelReplica] != "":
		r.roster.seeOther(lease.Name, is, now)
	}
	r.mu.Unlock()
	r.notify()
}

// lose notes that a Lease is gone, and makes Start look.
func (r *Replica) lose(object any) {
	if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	lease, ok := object.(*coordinationv1.Lease)
	if !ok {
		return
	}
	r.mu.Lock()
	if lease.Name == r.options.LeaderLease {
		r.roster.loseLeader()
	} else {
		r.roster.lose(lease.Name)
	}
	r.mu.Unlock()
	r.notify()
}

func (r *Replica) notify() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// recordOf returns what a Lease says.
func recordOf(lease *coordinationv1.Lease) record {
	r := record{
		duration: leaseDuration,
		aside:    lease.Annotations[annotationSetAside] == "true", contact: contactOf(lease.Annotations),
	}
	if spec := &lease.Spec; spec.HolderIdentity != nil && spec.RenewTime != nil {
		r.holder, r.renewed = *spec.HolderIdentity, spec.RenewTime.Time
		if spec.LeaseDurationSeconds != nil {
			r.duration = time.Duration(min(max(*spec.LeaseDurationSeconds, 1), 3600)) * time.Second
		}
	}
	return r
}

// errTaken ends a replica whose name another process uses.
var errTaken = errors.New("another process has taken the Lease of this replica")

// renew writes the own Lease. It makes one if there is none.
func (r *Replica) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	if r.lease == nil {
		return r.take(ctx, false)
	}
	next := r.lease.DeepCopy()
	next.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
	next.Annotations = r.options.Contact.annotations(r.aside())
	err := r.options.Writer.Update(ctx, next)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return r.take(ctx, true)
	}
	if err == nil {
		r.lease = next
	}
	return err
}

// take reads the own Lease and writes it. renewed reports whether this process has written it
// before, so that nobody else may have.
func (r *Replica) take(ctx context.Context, renewed bool) error {
	key := client.ObjectKey{Namespace: r.options.Namespace, Name: LeaseName(r.options.Name)}
	lease := &coordinationv1.Lease{}
	err := r.options.Live.Get(ctx, key, lease)
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return err
	}
	holder := lease.Spec.HolderIdentity
	if renewed && holder != nil && *holder != r.roster.holder {
		return fmt.Errorf("%w: %s is held by %s; give each replica a name of its own in POD_NAME", errTaken, key, *holder)
	}

	lease.Namespace, lease.Name = key.Namespace, key.Name
	metav1.SetMetaDataLabel(&lease.ObjectMeta, labelReplica, "true")
	lease.Annotations = r.options.Contact.annotations(r.aside())
	lease.OwnerReferences = r.podReference()
	lease.Spec.HolderIdentity = &r.roster.holder
	lease.Spec.LeaseDurationSeconds = new(int32(leaseDuration / time.Second))
	lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
	if missing {
		err = r.options.Writer.Create(ctx, lease)
	} else {
		err = r.options.Writer.Update(ctx, lease)
	}
	if err == nil {
		r.lease = lease
	}
	return err
}

// aside reports whether the renewal under way says that this replica is set aside.
func (r *Replica) aside() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.roster.telling
}

// podReference makes the garbage collector delete the Lease with the Pod.
func (r *Replica) podReference() []metav1.OwnerReference {
	if r.options.Pod == "" {
		return nil
	}
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: r.options.Name, UID: r.options.Pod}}
}

// leave stops the writes and then deletes the Lease, so that the others take over at once.
func (r *Replica) leave() {
	r.mu.Lock()
	r.roster.renewed = time.Time{}
	r.mu.Unlock()
	r.renewing.Wait()
	if r.lease == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), renewTimeout)
	defer cancel()
	err := r.options.Writer.Delete(ctx, r.lease, client.Preconditions{UID: &r.lease.UID})
	if client.IgnoreNotFound(err) != nil {
		r.options.Log.Error(err, "Can't delete the Lease of this replica, so others wait for its end")
	}
}

// ValidateName returns an error if a name is too long for a Lease.
func ValidateName(name string) error {
	if name == "" || len(LeaseName(name)) > 253 || strings.Contains(name, "/") {
		return fmt.Errorf("POD_NAME=%q: must have 1 to %d characters", name, 253-len(leasePrefix))
	}
	return nil
}
