package controllers

import (
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// refusedRetry is the longest pause between two attempts of a write that was refused. A node port may
// have become free, a quota may have been raised, a webhook corrected.
const refusedRetry = 30 * time.Second

// refused reports whether the API server refuses a write because of its content or its author. Only
// a change by somebody can help, so the write is not repeated at once.
func refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err)
}

// refusal is what the API server said, without the name of the object in front.
func refusal(err error) string {
	status, ok := err.(apierrors.APIStatus)
	if ok && status.Status().Details != nil && len(status.Status().Details.Causes) > 0 {
		var texts []string
		for _, c := range status.Status().Details.Causes {
			texts = append(texts, strings.TrimPrefix(c.Field+": "+c.Message, ": "))
		}
		return strings.Join(texts[:min(len(texts), 3)], "; ")
	}
	if apierrors.ReasonForError(err) == metav1.StatusReasonUnknown {
		return "the API server can't be reached"
	}
	return err.Error()
}
