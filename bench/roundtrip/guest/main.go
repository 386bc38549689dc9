//go:build wasip1

// Command guest is the echo inside of WebAssembly: a reactor, called for each message.
package main

import "unsafe"

var body, answer []byte

// room makes room for a body and says where it is.
//
//go:wasmexport room
func room(size uint32) unsafe.Pointer {
	if len(body) < int(size) {
		body = make([]byte, size)
	}
	return unsafe.Pointer(unsafe.SliceData(body))
}

// echo copies the body and says where the copy is.
//
//go:wasmexport echo
func echo(size uint32) unsafe.Pointer {
	answer = append(answer[:0], body[:size]...)
	return unsafe.Pointer(unsafe.SliceData(answer))
}

func main() {}
