// Command wine-dll writes bcryptprimitives.dll for Wine 8, which lacks it and without which no program of Go 1.26 starts:
// a library without code, whose one export forwards to the same random numbers elsewhere.
package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
)

const (
	library = "bcryptprimitives.dll\x00"
	export  = "ProcessPrng\x00"
	forward = "ADVAPI32.SystemFunction036\x00" // RtlGenRandom: the same arguments and result
)

// The library in memory: headers at 0, and one section. In the file the section follows the headers.
const (
	section = 0x1000
	headers = 0x200
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: wine-dll FILE")
		os.Exit(2)
	}
	exports := exportSection()
	var file bytes.Buffer
	file.Write(header(uint32(len(exports))))
	file.Write(make([]byte, headers-file.Len()))
	file.Write(exports)
	file.Write(make([]byte, 2*headers-file.Len()))
	if err := os.WriteFile(os.Args[1], file.Bytes(), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, "wine-dll:", err)
		os.Exit(1)
	}
}

func put(b *bytes.Buffer, values ...any) {
	for _, v := range values {
		binary.Write(b, binary.LittleEndian, v)
	}
}

// exportSection is an export directory with its tables and names. An address that points into the section itself is the
// name of a forward.
func exportSection() []byte {
	const (
		addresses = section + 40
		names     = addresses + 4
		ordinals  = names + 4
		strings   = ordinals + 4
	)
	exportName := uint32(strings + len(library))
	forwardName := exportName + uint32(len(export))
	var b bytes.Buffer
	put(&b, [4]uint32{0, 0, 0, strings}, [3]uint32{1, 1, 1}, [3]uint32{addresses, names, ordinals}) // first ordinal, counts
	put(&b, forwardName, exportName, uint32(0))
	b.WriteString(library + export + forward)
	return b.Bytes()
}

// header is that of a PE32+ library for x86-64 with one section.
func header(size uint32) []byte {
	var b bytes.Buffer
	put(&b, [64]byte{0: 'M', 1: 'Z', 60: 64}, [4]byte{'P', 'E'})
	put(&b, uint16(0x8664), uint16(1), [3]uint32{}, uint16(240), uint16(0x2022)) // machine, sections; a library
	put(&b, uint16(0x20b), [2]uint8{14, 0}, [5]uint32{1: headers, 4: section})   // PE32+
	put(&b, uint64(0x180000000), [2]uint32{section, headers}, [6]uint16{6, 0, 0, 0, 6, 0})
	put(&b, [4]uint32{1: 2 * section, 2: headers}, [2]uint16{3, 0x160}, [4]uint64{0x100000, 0x1000, 0x100000, 0x1000})
	put(&b, [2]uint32{0, 16}, [2]uint32{section, size}, [30]uint32{}) // sixteen directories, the first of exports
	put(&b, [8]byte([]byte(".rdata\x00\x00")), [4]uint32{size, section, headers, headers}, [3]uint32{}, uint32(0x40000040))
	return b.Bytes()
}
