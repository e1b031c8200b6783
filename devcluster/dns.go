package devcluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// serialName is a name in every zone. Its TXT record has the serial number of the served records.
const serialName = "serial.devcluster"

// Nameserver is a CoreDNS with authoritative zones, which can change while it runs. It serves UDP
// and TCP on port 53 of all addresses of its namespace.
type Nameserver struct {
	// Log is the path of the log. CoreDNS's log plugin writes a line per query.
	Log string

	ns      *Namespace
	dir     string
	process *process

	mu     sync.Mutex
	serial uint32
}

// StartDNS starts a nameserver in the namespace. zones maps origins to records as in
// [Nameserver.SetZone]. corefile has further server blocks, in which the plugins template, erratic,
// tls, forward and cache can give answers that a zone file can't give.
func (ns *Namespace) StartDNS(ctx context.Context, zones map[string]string, corefile string) (*Nameserver, error) {
	s, err := ns.newNameserver(zones, corefile)
	if err != nil {
		return nil, fmt.Errorf("devcluster: nameserver in %s: %w", ns.name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	ready := func(ctx context.Context) error { return probe(ctx, ns.client(), readyURL) }
	if err := s.process.await(ctx, ready); err != nil {
		return nil, errors.Join(fmt.Errorf("devcluster: nameserver in %s: %w", ns.name, err), s.Close())
	}
	return s, nil
}

// newNameserver writes the files and starts the process.
func (ns *Namespace) newNameserver(zones map[string]string, corefile string) (*Nameserver, error) {
	cache, err := cacheDir()
	if err != nil {
		return nil, err
	}
	version, err := orSelected("")
	if err != nil {
		return nil, err
	}
	binaries, missing := locate(cache, edition{kubernetes: version}, []string{string(CoreDNS)})
	if len(missing) > 0 {
		return nil, fmt.Errorf("not built: %v", missing)
	}
	dir, err := os.MkdirTemp(ns.network.dir, "dns-")
	if err != nil {
		return nil, err
	}
	s := &Nameserver{ns: ns, dir: dir, Log: filepath.Join(dir, "log"), serial: 1}
	var config strings.Builder
	config.WriteString("devcluster.invalid {\n\tready\n}\n" + corefile)
	for _, zone := range slices.Sorted(maps.Keys(zones)) {
		if err := s.writeZone(zone, zones[zone], s.serial); err != nil {
			return nil, err
		}
		fmt.Fprintf(&config, "\n%s {\n\terrors\n\tlog\n\tfile %s {\n\t\treload 20ms\n\t}\n}\n", zone, s.zoneFile(zone))
	}
	file := filepath.Join(dir, "Corefile")
	if err := os.WriteFile(file, []byte(config.String()), 0o600); err != nil {
		return nil, err
	}
	cmd := ns.Command(context.Background(), binaries[string(CoreDNS)], "-conf", file)
	s.process, err = startProcess("coredns", s.Log, cmd)
	return s, err
}

// SetZone replaces the records of a zone, and returns once they are served. Records are lines of a
// zone file (RFC 1035, section 5.1) without SOA and NS. Names are relative to the zone. The default
// TTL is 1 s, also for negative answers. Records that CoreDNS can't parse are an error and change
// nothing.
func (s *Nameserver) SetZone(ctx context.Context, zone, records string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serial++
	if err := s.writeZone(zone, records, s.serial); err != nil {
		return fmt.Errorf("devcluster: zone %s: %w", zone, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	// [Namespace.Drop] has no effect on loopback.
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return s.ns.Dial(ctx, network, "127.0.0.1:53")
	}}
	return s.process.await(ctx, func(ctx context.Context) error {
		served, err := resolver.LookupTXT(ctx, serialName+"."+strings.TrimSuffix(zone, ".")+".")
		if err == nil && !slices.Equal(served, []string{fmt.Sprint(s.serial)}) {
			err = fmt.Errorf("serial %s of zone %s is served, not %d", served, zone, s.serial)
		}
		return err
	})
}

func (s *Nameserver) writeZone(zone, records string, serial uint32) error {
	text := fmt.Sprintf("$ORIGIN %s.\n$TTL 1\n@ SOA ns hostmaster %d 3600 600 86400 1\n@ NS ns\n%s TXT \"%[2]d\"\n%[4]s\n",
		strings.TrimSuffix(zone, "."), serial, serialName, records)
	whole := s.zoneFile(zone) + ".new"
	if err := os.WriteFile(whole, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(whole, s.zoneFile(zone))
}

func (s *Nameserver) zoneFile(zone string) string {
	return filepath.Join(s.dir, filepath.Base(zone)+".zone")
}

// Close kills the nameserver.
func (s *Nameserver) Close() error {
	s.process.kill()
	return os.RemoveAll(s.dir)
}
