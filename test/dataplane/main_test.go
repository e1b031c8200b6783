// Package dataplane sends requests through the real kube-proxy, and asks the real CoreDNS, while targets break, drain and move.
package dataplane

import (
	"testing"

	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m, devcluster.Options{}) }
