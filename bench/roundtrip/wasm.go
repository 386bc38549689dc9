package main

import (
	"context"
	"errors"
	"os"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
)

// wasm has the guest, a Go program compiled to WebAssembly, in this process: no pipe, no switch, and no containment of
// what it costs. One instance answers all messages, as one worker does.
func (f *far) wasm() (echo, func() error, error) {
	code, err := os.ReadFile(f.guest)
	if err != nil {
		return nil, nil, err
	}
	ctx := context.Background()
	r := wazero.NewRuntime(ctx)
	end := func() error { return r.Close(ctx) }
	if _, err := wasi_snapshot_preview1.Instantiate(ctx, r); err != nil {
		return nil, nil, errors.Join(err, end())
	}
	guest, err := r.InstantiateWithConfig(ctx, code, wazero.NewModuleConfig().WithStartFunctions("_initialize"))
	if err != nil {
		return nil, nil, errors.Join(err, end())
	}
	memory, room, call := guest.Memory(), guest.ExportedFunction("room"), guest.ExportedFunction("echo")
	var answer []byte
	return func(body []byte) ([]byte, error) {
		size := uint64(len(body))
		to, err := room.Call(ctx, size)
		if err != nil {
			return nil, err
		}
		if !memory.Write(uint32(to[0]), body) {
			return nil, errors.New("the guest has no room")
		}
		from, err := call.Call(ctx, size)
		if err != nil {
			return nil, err
		}
		view, ok := memory.Read(uint32(from[0]), uint32(size))
		if !ok {
			return nil, errors.New("the guest's answer lies outside of its memory")
		}
		answer = append(answer[:0], view...) // the view is the guest's
		return answer, nil
	}, end, nil
}
