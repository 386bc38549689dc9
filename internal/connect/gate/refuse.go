package gate

import (
	"context"
	"net"
	"sync"
	"time"

	"coppice.dev/coppice/internal/message"
)

// Record hands a refusal to the sink and says whether it is recorded.
func (g *Gate) Record(ctx context.Context, peer, reason string, size int64) bool {
	g.cfg.Log.Warn("refused", "peer", peer, "reason", reason, "bytes", size)
	err := g.sink.Refuse(ctx, message.Refusal{
		Inbound: g.cfg.Inbound, Peer: peer, Reason: reason, Size: size, At: time.Now().UTC(),
	})
	if err != nil {
		g.cfg.Log.Error("record a refusal", "peer", peer, "error", err)
	}
	return err == nil
}

// RecordOnce is Record for what anybody can do as often as they like, such as a scan of ports: one refusal a minute from
// one host, and so many from all, are recorded, and the others are not. It is false only where the record failed.
func (g *Gate) RecordOnce(ctx context.Context, peer, reason string, size int64) bool {
	host, _, err := net.SplitHostPort(peer)
	if err != nil {
		host = peer
	}
	if !g.scarce.take(host, time.Now()) {
		g.cfg.Log.Debug("refused, and not recorded again", "peer", peer, "reason", reason)
		return true
	}
	return g.Record(ctx, peer, reason, size)
}

// What scarce lets through.
const (
	scarceWindow = time.Minute
	scarceMost   = 60 // hosts in one window
)

// scarce lets a few refusals through: one of each host in a window, and no more than scarceMost.
type scarce struct {
	mu    sync.Mutex
	since time.Time
	hosts map[string]struct{}
}

func (s *scarce) take(host string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hosts == nil || now.Sub(s.since) >= scarceWindow {
		s.since, s.hosts = now, map[string]struct{}{}
	}
	if _, seen := s.hosts[host]; seen || len(s.hosts) >= scarceMost {
		return false
	}
	s.hosts[host] = struct{}{}
	return true
}
