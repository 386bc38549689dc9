package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// lifetime bounds whatever waits for a far end.
const lifetime = 30 * time.Minute

const pythonLoop = `
import sys
r, w = sys.stdin.buffer, sys.stdout.buffer
while True:
    head = r.read(4)
    if len(head) < 4:
        break
    w.write(head + r.read(int.from_bytes(head, "big")))
    w.flush()
`

const nodeLoop = `
const fs = require("fs")
const buffered = Buffer.alloc(64 << 10)
let from = 0, to = 0
function fill(into, at) {
  while (at < into.length) {
    if (from < to) {
      const n = Math.min(to - from, into.length - at)
      buffered.copy(into, at, from, from + n)
      from += n
      at += n
    } else if (into.length - at >= buffered.length) {
      const n = fs.readSync(0, into, at, into.length - at, null)
      if (n === 0) process.exit(0)
      at += n
    } else {
      from = 0
      to = fs.readSync(0, buffered)
      if (to === 0) process.exit(0)
    }
  }
  return into
}
for (;;) {
  const head = fill(Buffer.alloc(4), 0)
  const frame = Buffer.allocUnsafe(4 + head.readUInt32BE())
  head.copy(frame)
  fill(frame, 4)
  for (let at = 0; at < frame.length; ) at += fs.writeSync(1, frame, at)
}
`

func (f *far) bareGo() (echo, func() error, error)     { return bare(f.child, "bare") }
func (f *far) barePython() (echo, func() error, error) { return bare(f.python, "-I", "-c", pythonLoop) }
func (f *far) bareNode() (echo, func() error, error)   { return bare(f.node, "-e", nodeLoop) }

// bare starts a child at two pipes. What goes over them is a length and so many bytes, with no system call and no copy
// more than that takes: the floor.
func bare(command ...string) (echo, func() error, error) {
	down, to, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	from, up, err := os.Pipe()
	if err != nil {
		down.Close()
		to.Close()
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), lifetime)
	child := exec.CommandContext(ctx, command[0], command[1:]...)
	child.Stdin, child.Stdout, child.Stderr = down, up, os.Stderr
	err = child.Start()
	down.Close()
	up.Close()
	end := func() error {
		defer cancel()
		return errors.Join(to.Close(), from.Close(), child.Wait())
	}
	if err != nil {
		cancel()
		to.Close()
		from.Close()
		return nil, nil, err
	}
	return over(to, bufio.NewReaderSize(from, 64<<10)), end, nil
}

func over(to io.Writer, from *bufio.Reader) echo {
	var frame, answer []byte
	return func(body []byte) ([]byte, error) {
		frame = binary.BigEndian.AppendUint32(frame[:0], uint32(len(body)))
		rest := body
		if len(body) <= 64<<10 { // one system call, where a copy is cheaper
			frame, rest = append(frame, body...), nil
		}
		if _, err := to.Write(frame); err != nil {
			return nil, err
		}
		if _, err := to.Write(rest); len(rest) > 0 && err != nil {
			return nil, err
		}
		var length [4]byte
		if _, err := io.ReadFull(from, length[:]); err != nil {
			return nil, err
		}
		if n := binary.BigEndian.Uint32(length[:]); n != uint32(len(body)) {
			return nil, fmt.Errorf("%d bytes for %d", n, len(body))
		}
		if len(answer) < len(body) {
			answer = make([]byte, len(body))
		}
		_, err := io.ReadFull(from, answer[:len(body)])
		return answer[:len(body)], err
	}
}

// process starts a process for each message.
func (f *far) process(command ...string) func() (echo, func() error, error) {
	each := func(body []byte) ([]byte, error) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		child := exec.CommandContext(ctx, command[0], command[1:]...)
		child.Stdin, child.Stderr = bytes.NewReader(body), os.Stderr
		return child.Output()
	}
	return func() (echo, func() error, error) { return each, func() error { return nil }, nil }
}
