package v1alpha1

// Labels, annotations and names that the operator puts on the objects it writes.
const (
	// ManagedBy is the value of the label endpointslice.kubernetes.io/managed-by
	// on every EndpointSlice of the operator, and the field manager of all that it writes.
	ManagedBy = "external-backend.io"

	// LabelName is the label, on Services and EndpointSlices, that holds the
	// ExternalBackend's name.
	LabelName = "external-backend.io/name"
)

// Bounds of status. The schema refuses more.
const (
	// MaxStatusTargets is the most entries that status.targets may have.
	MaxStatusTargets = 64
	// MaxTargetMessage is the most characters that the message of one of these may have.
	MaxTargetMessage = 256
	// MaxStatusAddresses is the most addresses that one entry of status.targets may have.
	MaxStatusAddresses = 8
)

// ReasonPending is the reason of every condition whose status is Unknown because something that it
// depends on is not known yet.
const ReasonPending = "Pending"

// Condition Accepted, of both kinds: the spec can be acted on.
const (
	// ConditionAccepted is True when the spec can be acted on.
	ConditionAccepted = "Accepted"
	// ReasonAccepted means that the spec can be acted on.
	ReasonAccepted = "Accepted"
	// ReasonInvalidSpec means that the spec breaks a rule that the schema could not check. What an
	// ExternalBackend had published stays as it was. Of a policy, what can't be read allows nothing.
	ReasonInvalidSpec = "InvalidSpec"
)

// Condition ResolvedRefs: every Secret and ConfigMap that the spec names can be used. While it is
// False, the probes or queries that need one don't run, and endpoints keep their conditions.
const (
	// ConditionResolvedRefs is True when every Secret and ConfigMap that the spec
	// names can be used, and where it names none.
	ConditionResolvedRefs = "ResolvedRefs"
	// ReasonResolvedRefs means that all of them can be used.
	ReasonResolvedRefs = "ResolvedRefs"
	// ReasonRefNotFound means that a Secret or ConfigMap does not exist.
	ReasonRefNotFound = "RefNotFound"
	// ReasonRefNotPermitted means that the manager may not read a Secret or ConfigMap.
	ReasonRefNotPermitted = "RefNotPermitted"
	// ReasonInvalidRef means that a Secret or ConfigMap lacks the key, is of another type, or
	// holds no valid PEM.
	ReasonInvalidRef = "InvalidRef"
)

// Condition Permitted: no target or nameserver is refused by policy.
const (
	// ConditionPermitted is True when no target or nameserver is refused by policy.
	ConditionPermitted = "Permitted"
	// ReasonPermitted means that nothing is refused.
	ReasonPermitted = "Permitted"
	// ReasonTargetDenied means that at least one target or nameserver is refused. It is also the
	// reason of such a target.
	ReasonTargetDenied = "TargetDenied"
	// ReasonWouldDeny means that nothing is refused, but a policy in mode Audit would refuse
	// something. The condition is True.
	ReasonWouldDeny = "WouldDeny"
)

// Condition NamesResolved: every name has a current answer.
const (
	// ConditionNamesResolved is True when every name has a current answer, and where
	// there are no names.
	ConditionNamesResolved = "NamesResolved"
	// ReasonNamesResolved means that every name has a current answer.
	ReasonNamesResolved = "NamesResolved"
	// ReasonResolutionFailed means that a name was never resolved, or its last good answer
	// may not serve any longer. It is also the reason of such a target.
	ReasonResolutionFailed = "ResolutionFailed"
	// ReasonServingStale means that a name's resolution fails and its last good answer
	// serves (RFC 8767). It is also the reason of such a target.
	ReasonServingStale = "ServingStale"
)

// Condition Programmed: the Service and its EndpointSlices are as planned.
const (
	// ConditionProgrammed is True when Service and EndpointSlices are as planned.
	ConditionProgrammed = "Programmed"
	// ReasonProgrammed means that Service and EndpointSlices are as planned.
	ReasonProgrammed = "Programmed"
	// ReasonServiceConflict means that a Service, Endpoints or EndpointSlices of that name
	// belong to someone else, or the Service is protected or has a selector.
	ReasonServiceConflict = "ServiceConflict"
	// ReasonServiceNotFound means that the Service that serviceRef names does not exist.
	ReasonServiceNotFound = "ServiceNotFound"
	// ReasonPortMismatch means that the Service that serviceRef names lacks a port of
	// spec.ports by name and protocol; that port alone is left out.
	ReasonPortMismatch = "PortMismatch"
	// ReasonApplyFailed means that the API server refused a write.
	ReasonApplyFailed = "ApplyFailed"
)

// Condition Healthy: every probed endpoint is healthy.
const (
	// ConditionHealthy is True when every probed endpoint is healthy, and without
	// healthCheck; Unknown while a verdict is missing, or nothing is published.
	ConditionHealthy = "Healthy"
	// ReasonHealthy means that every probed endpoint is healthy.
	ReasonHealthy = "Healthy"
	// ReasonNotProbed means that there is no healthCheck. The condition is True.
	ReasonNotProbed = "NotProbed"
	// ReasonNoEndpoints means that there is a healthCheck, and no endpoint to probe. The
	// condition is Unknown.
	ReasonNoEndpoints = "NoEndpoints"
	// ReasonSomeUnhealthy means that some probed endpoints are unhealthy.
	ReasonSomeUnhealthy = "SomeUnhealthy"
	// ReasonAllUnhealthy means that every probed endpoint is unhealthy. It is also the reason of Ready
	// where no endpoint is ready because of that.
	ReasonAllUnhealthy = "AllUnhealthy"
)

// Condition Ready: Accepted, Programmed, and at least one endpoint is ready.
// When it is not, its reason is Accepted's, else Programmed's, else the cause that
// all targets share (ReasonTargetDenied, ReasonResolutionFailed,
// TargetReasonFamilyNotServed, ReasonAllUnhealthy or ReasonDraining), else
// ReasonNoReadyEndpoints.
const (
	// ConditionReady is True when Accepted and Programmed are True and at least
	// one endpoint is ready. For ExternalName it follows Programmed.
	ConditionReady = "Ready"
	// ReasonReady means that traffic can flow.
	ReasonReady = "Ready"
	// ReasonDraining means that every target is Draining, or Disabled.
	ReasonDraining = "Draining"
	// ReasonNoReadyEndpoints means that the spec is accepted and programmed, but no endpoint is ready.
	ReasonNoReadyEndpoints = "NoReadyEndpoints"
)

// ConditionStalled is the kstatus condition of both kinds. It is True, with the cause as its
// reason, when somebody has to change something, and absent otherwise. ReasonInvalidSpec is such a
// cause at once. ReasonServiceConflict, ReasonServiceNotFound, ReasonPortMismatch and the reasons
// of ResolvedRefs are such causes after two minutes, in which a change of another object may
// resolve them.
const ConditionStalled = "Stalled"

// Condition Applied of an ExternalBackendOverride: its ExternalBackend is subject to it.
const (
	// ConditionApplied is True while the ExternalBackend is subject to the override.
	ConditionApplied = "Applied"
	// ReasonApplied means that the ExternalBackend is subject to the override.
	ReasonApplied = "Applied"
	// ReasonExpired means that the override has ended.
	ReasonExpired = "Expired"
	// ReasonBackendNotFound means that there is no ExternalBackend of that name.
	ReasonBackendNotFound = "BackendNotFound"
	// ReasonTargetNotFound means that the ExternalBackend has no target of a name in
	// spec.targets. The whole override is not applied.
	ReasonTargetNotFound = "TargetNotFound"
	// ReasonTierNotFound means that no target of the ExternalBackend can be in
	// spec.pinnedTier. The whole override is not applied.
	ReasonTierNotFound = "TierNotFound"
	// ReasonSuperseded means that an older override of the same ExternalBackend is applied.
	ReasonSuperseded = "Superseded"
)

// Reasons of one target in status.targets, beside ReasonResolutionFailed,
// ReasonServingStale and ReasonTargetDenied.
const (
	// TargetReasonConnectionRefused means that the target answered the connect with a reset.
	TargetReasonConnectionRefused = "ConnectionRefused"
	// TargetReasonConnectionReset means that the target closed an open connection too early.
	TargetReasonConnectionReset = "ConnectionReset"
	// TargetReasonTimeout means that there was no answer within timeoutSeconds.
	TargetReasonTimeout = "Timeout"
	// TargetReasonUnreachable means that the network or the host can't be reached.
	TargetReasonUnreachable = "Unreachable"
	// TargetReasonTLSUnknownAuthority means that no trusted authority has signed the target's
	// certificate.
	TargetReasonTLSUnknownAuthority = "TLSUnknownAuthority"
	// TargetReasonTLSNameMismatch means that the target's certificate names other hosts.
	TargetReasonTLSNameMismatch = "TLSNameMismatch"
	// TargetReasonTLSCertificateExpired means that the target's certificate has expired.
	TargetReasonTLSCertificateExpired = "TLSCertificateExpired"
	// TargetReasonTLSClientCertificateRequired means that the target wants a client certificate and
	// got none.
	TargetReasonTLSClientCertificateRequired = "TLSClientCertificateRequired"
	// TargetReasonTLSVerificationFailed means that the target's certificate was refused for another
	// reason.
	TargetReasonTLSVerificationFailed = "TLSVerificationFailed"
	// TargetReasonTLSHandshakeFailed means that TLS failed for another reason.
	TargetReasonTLSHandshakeFailed = "TLSHandshakeFailed"
	// TargetReasonUnexpectedStatus means that the HTTP status is not in expectedStatuses.
	TargetReasonUnexpectedStatus = "UnexpectedStatus"
	// TargetReasonUnexpectedResponse means that the answer is not what the check expects.
	TargetReasonUnexpectedResponse = "UnexpectedResponse"
	// TargetReasonGRPCNotServing means that grpc.health.v1 says other than SERVING, or that it does
	// not know the service.
	TargetReasonGRPCNotServing = "GRPCNotServing"
	// TargetReasonNameNotFound means that the name does not exist (NXDOMAIN).
	TargetReasonNameNotFound = "NameNotFound"
	// TargetReasonDuplicateAddress means that another target or ExternalBackend publishes
	// the same address and port for the same Service port.
	TargetReasonDuplicateAddress = "DuplicateAddress"
	// TargetReasonFamilyNotServed means that the Service lacks the address's IP family.
	TargetReasonFamilyNotServed = "FamilyNotServed"
	// TargetReasonTruncated means that the backend or the name has too many addresses.
	TargetReasonTruncated = "Truncated"
)
