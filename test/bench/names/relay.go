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

// relay stands between the operator and the nameserver on the same machine, changes nothing, and
// notes which answer left when.
type relay struct {
	front, back net.PacketConn // to those who ask, and to the nameserver
	nameserver  net.Addr
	done        sync.WaitGroup

	mu    sync.Mutex
	from  [1 << 16]question   // the latest with an id
	asked []time.Time         // of all questions
	last  map[string]answer   // by name
	turns map[netip.Addr]turn // by the address that a name turned to
	err   error               // the first
}

// question is who asked and when.
type question struct {
	from net.Addr
	at   time.Time
}

// answer is one that left.
type answer struct {
	addr netip.Addr
	at   time.Time
	ttl  time.Duration
}

// turn is a name's first answer that holds an address, when that was asked for, and until when the
// last answer before it was good.
type turn struct {
	expired, asked, answered time.Time
}

func startRelay(m *lab.Machine) (*relay, error) {
	r := &relay{nameserver: net.UDPAddrFromAddrPort(m.At4(53)), last: map[string]answer{}, turns: map[netip.Addr]turn{}}
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

// carry hands on what comes, until the socket is closed.
func (r *relay) carry(socket net.PacketConn, hand func(packet []byte, from net.Addr) error) {
	packet := make([]byte, maxDatagram)
	for {
		n, from, err := socket.ReadFrom(packet)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil && n > 12 { // a header's length
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
			r.turns[addr] = turn{expired: before.at.Add(before.ttl), asked: asked, answered: at}
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

// turnTo is how a name turned to an address that no other has, once it has been answered.
func (r *relay) turnTo(addr netip.Addr) (t turn, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t, ok = r.turns[addr]
	return t, ok
}
