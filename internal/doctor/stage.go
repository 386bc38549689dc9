package doctor

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"coppice.dev/coppice/internal/shim"
)

// stage is what one hostile tree plays on. All of it holds two pipes: it holds the witness open, so that the pipe's end says
// that nobody is left; and it reads the leash, whose end tells it to end.
type stage struct {
	token string // in the arguments of each process of the tree

	leash, leashed *os.File // the doctor's end, and the tree's
	witness, held  *os.File

	ready chan struct{}
	gone  chan struct{} // closed at the end of the witness
	said  chan string   // what else came on it: the words of a program that fails
}

// cast is how many processes of a hostile tree say that they are there: the leader and the daemon.
const cast = 2

// readyLine is what each of them says.
const readyLine = "ready"

// endPatience bounds the wait for what was told to end by the leash.
const endPatience = 2 * time.Second

func newStage() (*stage, error) {
	s := &stage{token: rand.Text(), ready: make(chan struct{}, cast), gone: make(chan struct{}), said: make(chan string, 1)}
	var err error
	if s.leashed, s.leash, err = os.Pipe(); err != nil {
		return nil, err
	}
	if s.witness, s.held, err = os.Pipe(); err != nil {
		s.leashed.Close()
		s.leash.Close()
		return nil, err
	}
	go s.watch()
	return s, nil
}

func (s *stage) watch() {
	defer close(s.gone)
	in := bufio.NewScanner(s.witness)
	for in.Scan() {
		if in.Text() == readyLine {
			select {
			case s.ready <- struct{}{}:
			default: // more than the cast: nobody waits for it
			}
			continue
		}
		select {
		case s.said <- in.Text():
		default: // the first line is enough
		}
	}
	if in.Err() != nil { // a line too long: nothing of ours
		io.Copy(io.Discard, s.witness)
	}
}

// handedOver closes the tree's ends, once it has been started or could not be.
func (s *stage) handedOver() {
	s.leashed.Close()
	s.held.Close()
}

// await waits until the whole cast is there.
func (s *stage) await(ctx context.Context) error {
	for range cast {
		select {
		case <-s.ready:
		case <-s.gone:
			select {
			case line := <-s.said:
				return fmt.Errorf("the tree ended before it was there: %s", strings.TrimSpace(line))
			default:
				return errors.New("the tree ended before it was there")
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// left waits for the end of the witness, and returns whether somebody still holds it when the time is over.
func (s *stage) left(wait time.Duration) bool {
	select {
	case <-s.gone:
		return false
	default:
	}
	select {
	case <-s.gone:
		return false
	case <-time.After(wait):
		return true
	}
}

// end ends whatever is still on the stage: those that are known by their identity, and everybody else by the leash. It
// returns a fault if somebody remains.
func (s *stage) end(known []shim.Process) (fault string) {
	s.handedOver()
	for _, p := range known {
		p.Kill()
	}
	s.leash.Close()
	held := s.left(endPatience)
	s.witness.Close()
	collectOrphans()
	if held {
		return fmt.Sprintf("something that was started cannot be ended: look for processes with %s in their arguments", s.token)
	}
	return ""
}
