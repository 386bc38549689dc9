package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"coppice.dev/coppice/sandbox"
	"coppice.dev/coppice/sdk/node"
	"coppice.dev/coppice/sdk/python"
	"coppice.dev/coppice/wire"
)

const pythonHandler = `
from coppice_worker import Send, handler

@handler
def echo(message, context):
    return Send("out", message.body)
`

const nodeHandler = `
import { handler, Send } from "coppice-worker"
handler(function echo(message) { return new Send("out", message.body) })
`

// coppiceGo and its like are all that one more kind of worker takes: a command and, for an interpreter, a file.
func (f *far) coppiceGo() (echo, func() error, error) {
	return dispatching(sandbox.Spec{Name: "go", Command: []string{f.child, "worker"}})
}

func (f *far) coppicePython() (echo, func() error, error) {
	sdk, err := python.WriteTo(f.dir)
	if err != nil {
		return nil, nil, err
	}
	file := filepath.Join(f.dir, "echo.py")
	if err := os.WriteFile(file, []byte(pythonHandler), 0o600); err != nil {
		return nil, nil, err
	}
	return dispatching(sandbox.Spec{Name: "python", Command: []string{f.python, "-I", "-B", sdk}, File: file})
}

func (f *far) coppiceNode() (echo, func() error, error) {
	sdk, err := node.WriteTo(filepath.Join(f.dir, "node_modules"))
	if err != nil {
		return nil, nil, err
	}
	file := filepath.Join(f.dir, "echo.mjs")
	if err := os.WriteFile(file, []byte(nodeHandler), 0o600); err != nil {
		return nil, nil, err
	}
	return dispatching(sandbox.Spec{Name: "node", Command: []string{f.node, sdk}, File: file})
}

// session makes a session with the best level that the host has, and its worker ready.
func session(spec sandbox.Spec) (*sandbox.Pool, error) {
	s, err := sandbox.New(spec)
	if err != nil {
		return nil, err
	}
	if err := s.Boot(context.Background()); err != nil {
		return nil, errors.Join(err, closing(s))
	}
	return s, nil
}

func closing(s *sandbox.Pool) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return s.Close(ctx)
}

func dispatching(spec sandbox.Spec) (echo, func() error, error) {
	s, err := session(spec)
	if err != nil {
		return nil, nil, err
	}
	return dispatch(s), func() error { return closing(s) }, nil
}

func dispatch(s *sandbox.Pool) echo {
	return func(body []byte) ([]byte, error) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		r, err := s.Dispatch(ctx, sandbox.Request{Phase: wire.PhaseHandle, Name: "echo", Message: 1, Inbound: "adt", Type: "ADT^A01",
			ControlID: "MSG00001", Received: time.Now(), Body: body})
		switch {
		case err != nil:
			return nil, err
		case len(r.Sends) != 1:
			return nil, errors.New("not one send came back")
		}
		return r.Sends[0].Body, nil
	}
}
