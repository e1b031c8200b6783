package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"sync"

	"github.com/external-backend/operator/devcluster"
)

// Machine is a network namespace outside of the cluster with one address of each family. Drop makes
// the machine, or one of its ports, a black hole.
type Machine struct {
	*devcluster.Namespace
	V4, V6 netip.Addr

	pool   *addressPool
	number int
}

// addressPool hands out addresses, and reuses an address as late as possible.
type addressPool struct {
	mu   sync.Mutex
	used [maxMachine + 1]bool
	last int
}

// The bounds of the last octet of a machine's addresses. The cluster's own addresses, and those
// that a test assigns itself, are outside of them.
const (
	minMachine = 60
	maxMachine = 250
)

// AddMachine creates a machine with addresses that no other machine has. The name must be new.
func (l *Lab) AddMachine(name string) (*Machine, error) {
	number, err := l.addresses.take()
	if err != nil {
		return nil, err
	}
	m := &Machine{pool: &l.addresses, number: number}
	octets := devcluster.Link4.Addr().As4()
	octets[3] = byte(number)
	m.V4 = netip.AddrFrom4(octets)
	// 203.0.113.77 and 2001:db8:113::77 are one machine.
	m.V6 = netip.MustParseAddr(devcluster.Link6.Addr().String() + strconv.Itoa(number))
	if m.Namespace, err = l.AddNamespace(name, m.V4.String(), m.V6.String()); err != nil {
		l.addresses.free(number)
		return nil, err
	}
	return m, nil
}

// Close removes the machine. Nothing answers at its addresses any more.
func (m *Machine) Close() error {
	defer m.pool.free(m.number)
	return m.Namespace.Close()
}

// BlackHole drops every packet to and from the machine, until Undrop.
func (m *Machine) BlackHole() error {
	return m.Drop(m.At4(0), m.At6(0))
}

func (p *addressPool) take() (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range maxMachine - minMachine + 1 {
		number := minMachine + (p.last+i)%(maxMachine-minMachine+1)
		if !p.used[number] {
			p.used[number], p.last = true, number-minMachine+1
			return number, nil
		}
	}
	return 0, errors.New("lab: no address is left for a machine")
}

func (p *addressPool) free(number int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used[number] = false
}

// String returns the machine's name and addresses.
func (m *Machine) String() string { return fmt.Sprintf("%s (%s, %s)", m.Name(), m.V4, m.V6) }

// At4 returns a port at the machine's IPv4 address.
func (m *Machine) At4(port uint16) netip.AddrPort { return netip.AddrPortFrom(m.V4, port) }

// At6 returns a port at the machine's IPv6 address.
func (m *Machine) At6(port uint16) netip.AddrPort { return netip.AddrPortFrom(m.V6, port) }
