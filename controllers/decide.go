package controllers

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
)

// action is what a reconcile does about the slices of an ExternalBackend.
type action int

const (
	// keep leaves the slices as they are.
	keep action = iota
	// keepPermitted leaves the endpoints that are published, less those that policy refuses.
	keepPermitted
	// withdrawAll deletes all slices.
	withdrawAll
	// reportEmpty reports that nothing is published, if no slice is left. It deletes none.
	reportEmpty
	// publishName publishes the name of the target itself.
	publishName
	// publish publishes endpoints.
	publish
)

// serviceConflict is the reason why an ExternalBackend can't have its Service.
type serviceConflict int

const (
	noConflict serviceConflict = iota
	// unusableService is a Service that is protected, chooses its endpoints itself, or is somebody
	// else's.
	unusableService
	// predecessorsService is a Service of an earlier ExternalBackend of the same name, which the
	// garbage collector is about to delete.
	predecessorsService
	// otherConflict is any other: for example, the Service has lost our label and owner, or
	// somebody else publishes endpoints behind it.
	otherConflict
	// unsettledService is a Service that may still be restored, or in a conflict that a write
	// showed and the cache does not show yet.
	unsettledService
)

// situation is what decide goes by.
type situation struct {
	// backend is the ExternalBackend with the spec that is in force.
	backend *v1alpha1.ExternalBackend
	// specKnown reports whether that spec is valid. After a restart, the last valid one is not
	// known.
	specKnown bool
	conflict  serviceConflict
	// service is the Service after it was written; nil where it is missing.
	service   *corev1.Service
	hasSlices bool
}

// decision is one row of the table.
type decision struct {
	action action
	// programmed is the reason of the condition Programmed, unless a write fails; "" keeps the
	// condition as it is.
	programmed string
}

// decide returns the first row that matches.
//
//	spec          Service                       slices  action          Programmed
//	any           unusable                      any     withdrawAll     ServiceConflict
//	not known     any                           any     keepPermitted   as before
//	any           of a predecessor              any     keep            ApplyFailed
//	any           another conflict              none    reportEmpty     ServiceConflict
//	any           another conflict and missing  any     reportEmpty     ServiceConflict
//	any           unsettled                     any     keep            Programmed*
//	ExternalName  present, of another type      any     keepPermitted   Programmed*
//	ExternalName  ExternalName, or missing      any     withdrawAll     Programmed
//	managed       missing                       any     reportEmpty     Programmed*
//	managed       ExternalName: between types   any     keep            Programmed
//	serviceRef    missing                       none    reportEmpty     ServiceNotFound
//	Passthrough   any                           any     publishName     Programmed
//	any           any                           any     publish         Programmed
//
// For another conflict all later rows report ServiceConflict. In the rows with a star, the reason
// of a failed write of the Service usually replaces Programmed.
func decide(s situation) decision {
	programmed := v1alpha1.ReasonProgrammed
	if s.conflict == otherConflict {
		programmed = v1alpha1.ReasonServiceConflict
	}
	managed, missing := s.backend.Spec.ServiceRef == nil, s.service == nil
	wantsAlias := plan.ServiceType(s.backend) == v1alpha1.ServiceTypeExternalName
	isAlias := !missing && s.service.Spec.Type == corev1.ServiceTypeExternalName

	switch {
	case s.conflict == unusableService:
		return decision{withdrawAll, v1alpha1.ReasonServiceConflict}
	case !s.specKnown:
		return decision{keepPermitted, ""}
	case s.conflict == predecessorsService:
		return decision{keep, v1alpha1.ReasonApplyFailed}
	case s.conflict == otherConflict && !s.hasSlices, s.conflict == otherConflict && missing:
		return decision{reportEmpty, programmed}
	case s.conflict == unsettledService:
		return decision{keep, programmed}
	case wantsAlias && !missing && !isAlias:
		return decision{keepPermitted, programmed}
	case wantsAlias:
		return decision{withdrawAll, programmed}
	case managed && missing:
		return decision{reportEmpty, programmed}
	case managed && isAlias:
		return decision{keep, programmed}
	case missing && !s.hasSlices:
		return decision{reportEmpty, v1alpha1.ReasonServiceNotFound}
	case plan.Passthrough(s.backend):
		return decision{publishName, programmed}
	default:
		return decision{publish, programmed}
	}
}
