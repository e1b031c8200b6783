package main

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/external-backend/operator/devcluster"
)

// dials notes when connections are begun in a namespace, by their targets.
type dials struct {
	packets *os.File
	done    sync.WaitGroup

	mu sync.Mutex
	at map[netip.AddrPort][]time.Time
}

// seeDials begins to read the IPv4 packets of a namespace.
func seeDials(namespace *devcluster.Namespace) (*dials, error) {
	d := &dials{at: map[netip.AddrPort][]time.Time{}}
	err := namespace.Do(func() error {
		ip := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_IP)) // in network byte order
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(ip))
		if err == nil {
			d.packets = os.NewFile(uintptr(fd), "packets")
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	d.done.Go(func() {
		packet := make([]byte, 1<<10)
		for {
			n, err := d.packets.Read(packet)
			if errors.Is(err, os.ErrClosed) {
				return
			}
			if to, ok := dialled(packet[:max(n, 0)]); ok {
				now := time.Now()
				d.mu.Lock()
				d.at[to] = append(d.at[to], now)
				d.mu.Unlock()
			}
		}
	})
	return d, nil
}

// dialled returns the destination of a packet that begins a TCP connection (RFC 791, RFC 9293).
func dialled(packet []byte) (netip.AddrPort, bool) {
	const flags, syn, ack = 13, 0x02, 0x10
	if len(packet) < 20 || packet[9] != unix.IPPROTO_TCP {
		return netip.AddrPort{}, false
	}
	segment := packet[min(int(packet[0]&0x0f)*4, len(packet)):]
	if len(segment) <= flags || segment[flags]&(syn|ack) != syn {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(packet[16:20])), binary.BigEndian.Uint16(segment[2:])), true
}

// after returns when the first connection to a target was begun after t. It returns t where there
// is none.
func (d *dials) after(target netip.AddrPort, t time.Time) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	if i := slices.IndexFunc(d.at[target], t.Before); i >= 0 {
		return d.at[target][i]
	}
	return t
}

// close ends the reading of packets.
func (d *dials) close() error {
	err := d.packets.Close()
	d.done.Wait()
	return err
}
