// Package plan decides what an ExternalBackend publishes: specs, observations and what is published
// come in; endpoints with their conditions, a Service and status come out. It knows no clock, no
// client and no goroutine.
package plan
