package http

import "sync"

// running counts what is under way, until it is closed.
type running struct {
	mu     sync.Mutex
	closed bool
	work   sync.WaitGroup
}

// enter says whether something may begin; then leave has to be called at its end.
func (r *running) enter() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.work.Add(1)
	return true
}

func (r *running) leave() { r.work.Done() }

// close lets nothing more begin; first says that nobody has closed it before. What is under way is waited for by way of work.
func (r *running) close() (first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first, r.closed = !r.closed, true
	return first
}
