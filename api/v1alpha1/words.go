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

// Bounds that whoever writes status must keep; the schema refuses more.
const (
	// MaxStatusTargets is the most entries status.targets may have.
	MaxStatusTargets = 64
	// MaxTargetMessage is the most characters the message of one of these may have.
	MaxTargetMessage = 256
	// MaxStatusAddresses is the most addresses one entry of status.targets may have.
	MaxStatusAddresses = 8
)

// ReasonPending is the reason of every condition whose status is Unknown: what
// it needs has not been seen yet.
const ReasonPending = "Pending"

// Condition Accepted: the spec can be acted on.
const (
	// ConditionAccepted is True when the spec can be acted on.
	ConditionAccepted = "Accepted"
	// ReasonAccepted: the spec can be acted on.
	ReasonAccepted = "Accepted"
	// ReasonInvalidSpec: the spec breaks a rule that the schema could not check.
	// What was published before stays as it was.
	ReasonInvalidSpec = "InvalidSpec"
)

// Condition ResolvedRefs: every Secret and ConfigMap that the spec names can be used.
// Where it is False the probes or queries that need one don't run, and endpoints keep
// the conditions that they have.
const (
	// ConditionResolvedRefs is True when every Secret and ConfigMap that the spec
	// names can be used, and where it names none.
	ConditionResolvedRefs = "ResolvedRefs"
	// ReasonResolvedRefs: all of them can be used.
	ReasonResolvedRefs = "ResolvedRefs"
	// ReasonRefNotFound: a Secret or ConfigMap does not exist.
	ReasonRefNotFound = "RefNotFound"
	// ReasonRefNotPermitted: the manager may not read a Secret or ConfigMap.
	ReasonRefNotPermitted = "RefNotPermitted"
	// ReasonInvalidRef: a Secret or ConfigMap lacks the key, is of another type, or
	// holds no good PEM.
	ReasonInvalidRef = "InvalidRef"
)

// Condition Permitted: no target or nameserver is refused by policy.
const (
	// ConditionPermitted is True when no target or nameserver is refused by policy.
	ConditionPermitted = "Permitted"
	// ReasonPermitted: nothing is refused.
	ReasonPermitted = "Permitted"
	// ReasonTargetDenied: at least one target or nameserver is refused. Also the
	// reason of such a target.
	ReasonTargetDenied = "TargetDenied"
	// ReasonWouldDeny: nothing is refused, but a policy in mode Audit would. The
	// condition is True.
	ReasonWouldDeny = "WouldDeny"
)

// Condition Resolved: every name has a current answer.
const (
	// ConditionNamesResolved is True when every name has a current answer, and where
	// there are no names.
	ConditionNamesResolved = "NamesResolved"
	// ReasonNamesResolved: every name has a current answer.
	ReasonNamesResolved = "NamesResolved"
	// ReasonResolutionFailed: a name was never resolved, or its last good answer
	// may not serve any longer. Also the reason of such a target.
	ReasonResolutionFailed = "ResolutionFailed"
	// ReasonServingStale: a name's resolution fails and its last good answer
	// serves (RFC 8767). Also the reason of such a target.
	ReasonServingStale = "ServingStale"
)

// Condition Programmed: the Service and its EndpointSlices are as planned.
const (
	// ConditionProgrammed is True when Service and EndpointSlices are as planned.
	ConditionProgrammed = "Programmed"
	// ReasonProgrammed: Service and EndpointSlices are as planned.
	ReasonProgrammed = "Programmed"
	// ReasonServiceConflict: a Service, Endpoints or EndpointSlices of that name
	// belong to someone else, or the Service is protected or has a selector.
	ReasonServiceConflict = "ServiceConflict"
	// ReasonServiceNotFound: the Service that serviceRef names does not exist.
	ReasonServiceNotFound = "ServiceNotFound"
	// ReasonPortMismatch: the Service that serviceRef names lacks a port of
	// spec.ports by name and protocol; that port alone is left out.
	ReasonPortMismatch = "PortMismatch"
	// ReasonApplyFailed: the API server refused a write.
	ReasonApplyFailed = "ApplyFailed"
)

// Condition Healthy: every probed endpoint is healthy.
const (
	// ConditionHealthy is True when every probed endpoint is healthy, and without
	// healthCheck; Unknown while a verdict is missing, or nothing is published.
	ConditionHealthy = "Healthy"
	// ReasonHealthy: every probed endpoint is healthy.
	ReasonHealthy = "Healthy"
	// ReasonNotProbed: there is no healthCheck. The condition is True.
	ReasonNotProbed = "NotProbed"
	// ReasonNoEndpoints: there is a healthCheck, and no endpoint to probe. The
	// condition is Unknown.
	ReasonNoEndpoints = "NoEndpoints"
	// ReasonSomeUnhealthy: some probed endpoints are unhealthy.
	ReasonSomeUnhealthy = "SomeUnhealthy"
	// ReasonAllUnhealthy: every probed endpoint is unhealthy. Also Ready's reason
	// where no endpoint is ready for it.
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
	// ReasonReady: traffic can flow.
	ReasonReady = "Ready"
	// ReasonDraining: every target is Draining, or Disabled.
	ReasonDraining = "Draining"
	// ReasonNoReadyEndpoints: accepted and programmed, but no endpoint is ready.
	ReasonNoReadyEndpoints = "NoReadyEndpoints"
)

// ConditionStalled is the kstatus condition: True, with the cause as its reason, when
// nothing gets better without a change by somebody; absent otherwise. ReasonInvalidSpec
// is such a cause at once. ReasonServiceConflict, ReasonServiceNotFound,
// ReasonPortMismatch and the reasons of ResolvedRefs are after two minutes, in which
// another object may mend them.
const ConditionStalled = "Stalled"

// Reasons of one target in status.targets, beside ReasonResolutionFailed,
// ReasonServingStale and ReasonTargetDenied.
const (
	// TargetReasonConnectionRefused: the target answered the connect with a reset.
	TargetReasonConnectionRefused = "ConnectionRefused"
	// TargetReasonConnectionReset: the target closed an open connection too early.
	TargetReasonConnectionReset = "ConnectionReset"
	// TargetReasonTimeout: no verdict within timeoutSeconds.
	TargetReasonTimeout = "Timeout"
	// TargetReasonUnreachable: the network or the host can't be reached.
	TargetReasonUnreachable = "Unreachable"
	// TargetReasonTLSUnknownAuthority: no trusted authority has signed the target's certificate.
	TargetReasonTLSUnknownAuthority = "TLSUnknownAuthority"
	// TargetReasonTLSNameMismatch: the target's certificate is for other names.
	TargetReasonTLSNameMismatch = "TLSNameMismatch"
	// TargetReasonTLSCertificateExpired: the target's certificate has expired.
	TargetReasonTLSCertificateExpired = "TLSCertificateExpired"
	// TargetReasonTLSClientCertificateRequired: the target wants a client certificate and was shown
	// none.
	TargetReasonTLSClientCertificateRequired = "TLSClientCertificateRequired"
	// TargetReasonTLSVerificationFailed: the target's certificate was refused for any other cause.
	TargetReasonTLSVerificationFailed = "TLSVerificationFailed"
	// TargetReasonTLSHandshakeFailed: TLS failed for another reason.
	TargetReasonTLSHandshakeFailed = "TLSHandshakeFailed"
	// TargetReasonUnexpectedStatus: the HTTP status is not in expectedStatuses.
	TargetReasonUnexpectedStatus = "UnexpectedStatus"
	// TargetReasonUnexpectedResponse: the answer is not what the check expects.
	TargetReasonUnexpectedResponse = "UnexpectedResponse"
	// TargetReasonGRPCNotServing: grpc.health.v1 says other than SERVING.
	TargetReasonGRPCNotServing = "GRPCNotServing"
	// TargetReasonNameNotFound: the name does not exist (NXDOMAIN).
	TargetReasonNameNotFound = "NameNotFound"
	// TargetReasonDuplicateAddress: another target or ExternalBackend publishes
	// the same address and port for the same Service port.
	TargetReasonDuplicateAddress = "DuplicateAddress"
	// TargetReasonFamilyNotServed: the Service lacks the address's IP family.
	TargetReasonFamilyNotServed = "FamilyNotServed"
	// TargetReasonTruncated: the backend or the name has too many addresses.
	TargetReasonTruncated = "Truncated"
)
