package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"sync"

	"github.com/external-backend/operator/devcluster"
)

// Machine is a network namespace outside of the cluster with one address of each family. Its Drop
// makes it, or a port of it, a black hole.
type Machine struct {
	*devcluster.Namespace
	V4, V6 netip.Addr

	machines *machines
	number   int
}

// machines hands out addresses, each as late as possible again.
type machines struct {
	mu   sync.Mutex
	used [maxMachine + 1]bool
	last int
}

// The last octet of a machine's addresses; the cluster's own lie outside, as does whatever a test
// wants to give itself.
const (
	minMachine = 60
	maxMachine = 250
)

// AddMachine makes a machine with addresses that no other has. The name has to be new.
func (l *Lab) AddMachine(name string) (*Machine, error) {
	number, err := l.machines.take()
	if err != nil {
		return nil, err
	}
	m := &Machine{machines: &l.machines, number: number}
	octets := devcluster.Link4.Addr().As4()
	octets[3] = byte(number)
	m.V4 = netip.AddrFrom4(octets)
	// 203.0.113.77 and 2001:db8:113::77 are one machine.
	m.V6 = netip.MustParseAddr(devcluster.Link6.Addr().String() + strconv.Itoa(number))
	if m.Namespace, err = l.AddNamespace(name, m.V4.String(), m.V6.String()); err != nil {
		l.machines.free(number)
		return nil, err
	}
	return m, nil
}

// Close removes the machine; its addresses answer no more.
func (m *Machine) Close() error {
	defer m.machines.free(m.number)
	return m.Namespace.Close()
}

// BlackHole makes every packet to and from the machine vanish, until Undrop.
func (m *Machine) BlackHole() error {
	return m.Drop(m.At4(0), m.At6(0))
}

func (ms *machines) take() (int, error) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	for i := range maxMachine - minMachine + 1 {
		number := minMachine + (ms.last+i)%(maxMachine-minMachine+1)
		if !ms.used[number] {
			ms.used[number], ms.last = true, number-minMachine+1
			return number, nil
		}
	}
	return 0, errors.New("lab: no address is left for a machine")
}

func (ms *machines) free(number int) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	ms.used[number] = false
}

// String tells the machine's name and addresses.
func (m *Machine) String() string { return fmt.Sprintf("%s (%s, %s)", m.Name(), m.V4, m.V6) }

// At4 is a port at the machine's IPv4 address.
func (m *Machine) At4(port uint16) netip.AddrPort { return netip.AddrPortFrom(m.V4, port) }

// At6 is a port at the machine's IPv6 address.
func (m *Machine) At6(port uint16) netip.AddrPort { return netip.AddrPortFrom(m.V6, port) }
