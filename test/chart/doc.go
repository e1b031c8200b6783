// Package chart tests the Helm chart with Helm's own engine. It is a module by itself, so that
// nothing else depends on what Helm requires.
package chart
