package explain

import "github.com/external-backend/operator/api/v1alpha1"

// hints say what a person can do, by the reason of a link.
var hints = map[string]string{
	v1alpha1.ReasonPending:     "Wait for the manager. If it takes more than a minute, see whether it runs.",
	v1alpha1.ReasonInvalidSpec: "Correct the field of spec that the message names.",

	v1alpha1.ReasonRefNotFound: "Create the Secret or ConfigMap that the message names, or correct the reference.",
	v1alpha1.ReasonRefNotPermitted: "Bind the ClusterRole external-backend-reference-reader to the manager's " +
		"ServiceAccount in this namespace.",
	v1alpha1.ReasonInvalidRef: "Correct the content of the Secret or ConfigMap that the message names.",

	v1alpha1.ReasonTargetDenied: "Ask whoever owns the ExternalBackendPolicies to allow it, or choose another target.",
	v1alpha1.ReasonWouldDeny:    "Nothing is refused yet. A policy in mode Audit announces that it would be.",

	v1alpha1.ReasonResolutionFailed: "See whether the nameservers answer: the manager's own, or those of " +
		"spec.dns.nameservers.",
	v1alpha1.ReasonServingStale: "See whether the nameservers answer. The last good answer serves for spec.dns.staleSeconds.",
	v1alpha1.TargetReasonNameNotFound: "Create the name in DNS, or correct hostname or srvName. Search lists are " +
		"not used.",

	v1alpha1.ReasonServiceConflict: "Choose another spec.service.name, or remove what the message names.",
	v1alpha1.ReasonServiceNotFound: "Create the Service that spec.serviceRef names.",
	v1alpha1.ReasonPortMismatch:    "Give the Service the port that the message names, by name and protocol.",
	v1alpha1.ReasonApplyFailed:     "The API server refuses a write. The message says why; it is tried again.",

	v1alpha1.ReasonDraining: "Set adminState to Active when the target shall get traffic again.",
	disabled:                "Set adminState to Active when the target shall get traffic again.",

	v1alpha1.TargetReasonConnectionRefused: "Nothing listens on that port: start the server, or correct the port.",
	v1alpha1.TargetReasonConnectionReset:   "The server closes the connection: see its log, and whether it wants TLS.",
	v1alpha1.TargetReasonTimeout: "See whether a firewall drops the packets, and whether the server answers within " +
		"timeoutSeconds.",
	v1alpha1.TargetReasonUnreachable: "See the route from the cluster's nodes to that address.",
	v1alpha1.TargetReasonTLSUnknownAuthority: "Name the authority of the certificate in " +
		"spec.healthCheck.tls.caCertificateRefs.",
	v1alpha1.TargetReasonTLSNameMismatch:       "Set spec.healthCheck.tls.serverName to a name of the certificate.",
	v1alpha1.TargetReasonTLSCertificateExpired: "Renew the target's certificate.",
	v1alpha1.TargetReasonTLSClientCertificateRequired: "Name a client certificate in " +
		"spec.healthCheck.tls.clientCertificateRef.",
	v1alpha1.TargetReasonTLSVerificationFailed: "See the target's certificate and the authorities that it chains to.",
	v1alpha1.TargetReasonTLSHandshakeFailed:    "See whether the port speaks TLS, and which versions.",
	v1alpha1.TargetReasonUnexpectedStatus: "Correct spec.healthCheck.httpGet: its path, its headers or its " +
		"expectedStatuses.",
	v1alpha1.TargetReasonUnexpectedResponse: "Compare what the check expects with what the target answers.",
	v1alpha1.TargetReasonGRPCNotServing:     "See the target's own health, and the name in spec.healthCheck.grpc.service.",

	v1alpha1.TargetReasonDuplicateAddress: "Remove one of the two targets, or give them different ports.",
	v1alpha1.TargetReasonFamilyNotServed:  "Set spec.service.ipFamilyPolicy and ipFamilies, or use another address.",
	v1alpha1.TargetReasonTruncated: "Use fewer addresses, or raise --max-endpoints-per-backend or " +
		"--max-addresses-per-name.",
}

// disabled is the state of a target whose adminState is Disabled.
const disabled = string(v1alpha1.TargetStateDisabled)
