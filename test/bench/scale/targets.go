package main

import (
	"fmt"
	"strings"

	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/bench/meter"
	"github.com/external-backend/operator/test/harness/lab"
)

const (
	port = 5432
	zone = "scale.example"
)

// targets is a machine that answers at every address of [meter.Prefix].
type targets struct {
	*meter.Flippers
	machine *lab.Machine
	dns     *devcluster.Nameserver
}

// records returns the zone's names n0, n1 and so on, with perName addresses each, from address
// first on.
func records(names, perName, first int) string {
	var text strings.Builder
	for i := range names * perName {
		fmt.Fprintf(&text, "n%d 60 IN A %s\n", i/perName, meter.Address(first+i))
	}
	return text.String()
}
