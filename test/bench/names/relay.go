package main

import (
	"cmp"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/external-backend/operator/test/harness/lab"
)

const (
	relayPort   = 5353
	maxDatagram = 4096
)

// relay forwards packets between the operator and the nameserver on the same machine. It changes
// nothing, and notes when each answer left.
type relay struct {
	front, back net.PacketConn // to the operator, and to the nameserver
	nameserver  net.Addr
	done        sync.WaitGroup

	mu       sync.Mutex
	from     [1 << 16]question         // by id, the latest
	asked    []time.Time               // of all questions
	last     map[string]answer         // by name
	switches map[netip.Addr]switchover // by the new address
	err      error                     // the first
}

// question is where a question came from, and when.
type question struct {
	from net.Addr
	at   time.Time
}

// answer is an answer that left.
type answer struct {
	addr netip.Addr
	at   time.Time
	ttl  time.Duration
}

// switchover is the change of a name's answer to a new address.
type switchover struct {
	expired  time.Time // the last answer before
	asked    time.Time // the first answer with the new address
	answered time.Time // that answer
}

func startRelay(m *lab.Machine) (*relay, error) {
	r := &relay{
		nameserver: net.UDPAddrFromAddrPort(m.At4(53)),
		last:       map[string]answer{},
		switches:   map[netip.Addr]switchover{},
	}
	var err error
	if r.front, err = m.ListenPacket("udp", m.At4(relayPort).String()); err != nil {
		return nil, err
	}
	if r.back, err = m.ListenPacket("udp", m.At4(0).String()); err != nil {
		return nil, errors.Join(err, r.front.Close())
	}
	r.done.Go(func() { r.carry(r.front, r.ask) })
	r.done.Go(func() { r.carry(r.back, r.answer) })
	return r, nil
}

// close returns the first error that the relay met, if any.
func (r *relay) close() error {
	err := errors.Join(r.front.Close(), r.back.Close())
	r.done.Wait()
	return errors.Join(r.err, err)
}

// carry passes the packets of a socket to hand, until the socket is closed.
func (r *relay) carry(socket net.PacketConn, hand func(packet []byte, from net.Addr) error) {
	packet := make([]byte, maxDatagram)
	for {
		n, from, err := socket.ReadFrom(packet)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil && n > 12 { // the length of a header
			err = hand(packet[:n], from)
		}
		if err != nil && !errors.Is(err, net.ErrClosed) {
			r.mu.Lock()
			r.err = cmp.Or(r.err, err)
			r.mu.Unlock()
		}
	}
}

func (r *relay) ask(query []byte, from net.Addr) error {
	r.mu.Lock()
	now := time.Now()
	r.from[binary.BigEndian.Uint16(query)] = question{from, now}
	r.asked = append(r.asked, now)
	r.mu.Unlock()
	_, err := r.back.WriteTo(query, r.nameserver)
	return err
}

func (r *relay) answer(reply []byte, _ net.Addr) error {
	if err := r.note(reply, time.Now()); err != nil {
		return err
	}
	r.mu.Lock()
	to := r.from[binary.BigEndian.Uint16(reply)].from
	r.mu.Unlock()
	_, err := r.front.WriteTo(reply, to)
	return err
}

func (r *relay) note(reply []byte, at time.Time) error {
	var m dns.Msg
	if err := m.Unpack(reply); err != nil {
		return err
	}
	for _, record := range m.Answer {
		a, ok := record.(*dns.A)
		if !ok {
			continue
		}
		addr, _ := netip.AddrFromSlice(a.A.To4())
		now := answer{addr, at, time.Duration(a.Hdr.Ttl) * time.Second}
		r.mu.Lock()
		before, known := r.last[a.Hdr.Name]
		if known && before.addr != addr {
			asked := r.from[binary.BigEndian.Uint16(reply)].at
			r.switches[addr] = switchover{expired: before.at.Add(before.ttl), asked: asked, answered: at}
		}
		r.last[a.Hdr.Name] = now
		r.mu.Unlock()
	}
	return nil
}

// askedWithin counts the questions between two times.
func (r *relay) askedWithin(from, to time.Time) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, at := range r.asked {
		if !at.Before(from) && at.Before(to) {
			n++
		}
	}
	return n
}

// switchTo returns the switchover of a name to the address, once there was an answer with it.
func (r *relay) switchTo(addr netip.Addr) (s switchover, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, ok = r.switches[addr]
	return s, ok
}
