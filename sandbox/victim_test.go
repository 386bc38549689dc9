package sandbox

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"coppice.dev/coppice/wire"
	"coppice.dev/coppice/worker"
)

// lifetime bounds every victim, should what is tested fail.
const lifetime = 20 * time.Second

// victim is the whole program of a worker that misbehaves. What it is called tells when it does; in "good" and "raw", the
// name of the function that it is asked for tells how.
func victim(name string) {
	time.AfterFunc(lifetime, func() { os.Exit(99) })
	switch name {
	case "good":
		good()
	case "raw":
		raw()
	case "hostile":
		hostile()
	case "spin":
		spin()
	case "copy": // a child that answers as its parent does
		b, _ := os.ReadFile("answer")
		os.NewFile(4, "w").Write(b)
	case "example":
		worker.Main(worker.Handler("greet", func(_ context.Context, m *worker.Message) (worker.Result, error) {
			return worker.Send("greetings", append([]byte("hello, "), m.Body...)), nil
		}), worker.Handler("echo", func(_ context.Context, m *worker.Message) (worker.Result, error) {
			return worker.Send("out", m.Body), nil
		}))
	case "pipe": // no worker: the other end of a bare pipe
		size, _ := strconv.Atoi(os.Args[3])
		for b := make([]byte, size); ; {
			if _, err := io.ReadFull(os.Stdin, b); err != nil {
				os.Exit(0)
			}
			os.Stdout.Write(b)
		}
	case "linger":
		time.Sleep(lifetime)
	case "fork": // the first of two forks: its child lives on, with everything that it was given
		start("linger", os.Args[3], wireFiles()...)
	default:
		badBoot(name)
	}
	os.Exit(0)
}

// start starts a victim in a session of its own.
func start(name, token string, files ...*os.File) *exec.Cmd {
	cmd := exec.Command(os.Args[0], "victim", name, token)
	cmd.SysProcAttr = ownSession()
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = os.Stdout, os.Stderr, files
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	return cmd
}

func wireFiles() []*os.File {
	return []*os.File{os.NewFile(3, "r"), os.NewFile(4, "w")}
}

// grandchild leaves one that has forked twice, has its own session, and holds the wire.
func grandchild() {
	if err := start("fork", os.Args[3], wireFiles()...).Wait(); err != nil {
		panic(err)
	}
}

// good is a worker made with package worker. Its functions do what their names say.
func good() {
	var list []worker.Function
	for name, f := range map[string]func(m *worker.Message) error{
		"error":       func(*worker.Message) error { return errors.New("no such patient") },
		"panic":       func(*worker.Message) error { panic("oh") },
		"exit":        func(*worker.Message) error { os.Exit(3); return nil },
		"signal":      func(*worker.Message) error { killSelf(); return nil },
		"stop":        func(*worker.Message) error { stopSelf(); return nil },
		"sleep":       func(*worker.Message) error { time.Sleep(lifetime); return nil },
		"killshim":    func(*worker.Message) error { return killParent() },
		"fork-hang":   func(*worker.Message) error { grandchild(); time.Sleep(lifetime); return nil },
		"fork-exit":   func(*worker.Message) error { grandchild(); os.Exit(0); return nil },
		"fork-answer": func(*worker.Message) error { grandchild(); return nil },
		"spin":        func(*worker.Message) error { spin(); return nil },
		"print":       func(m *worker.Message) error { os.Stdout.Write(m.Body); return nil },
		"both": func(*worker.Message) error {
			fmt.Println("to stdout")
			fmt.Fprintln(os.Stderr, "to stderr")
			return nil
		},
		"pour": func(*worker.Message) error { pour(64 << 20); return nil },
		"dirty": func(*worker.Message) error {
			return errors.Join(os.MkdirAll("a/b/c", 0o700), os.WriteFile("a/b/c/f", nil, 0o600), os.Chmod("a/b", 0), os.Chmod("a", 0))
		},
	} {
		list = append(list, worker.Handler(name, func(_ context.Context, m *worker.Message) (worker.Result, error) {
			return worker.Nothing, f(m)
		}))
	}
	list = append(list,
		worker.Router("route", func(context.Context, *worker.Message) ([]string, error) { return []string{"a", "b"}, nil }),
		worker.Handler("echo", func(_ context.Context, m *worker.Message) (worker.Result, error) {
			m.Tag("pid", strconv.Itoa(os.Getpid()))
			return worker.Send("out", m.Body), nil
		}),
		worker.Handler("large", func(context.Context, *worker.Message) (worker.Result, error) {
			return worker.Send("out", make([]byte, 2<<20)), nil
		}),
		worker.Handler("nonsense", func(context.Context, *worker.Message) (worker.Result, error) { return worker.Send("", nil), nil }),
		worker.Handler("world", func(_ context.Context, m *worker.Message) (worker.Result, error) {
			dir, err := os.Getwd()
			m.Tag("dir", dir)
			return worker.Send("out", []byte(strings.Join(os.Environ(), "\n"))), err
		}))
	worker.Main(list...)
}

func spin() {
	for end := time.Now().Add(lifetime); time.Now().Before(end); {
	}
}

// pour writes so much to stderr, in lines of 1 KiB.
func pour(size int) {
	line := append(bytes.Repeat([]byte("x"), 1023), '\n')
	for range size / len(line) {
		os.Stderr.Write(line)
	}
}

// plain is the wire of a victim that speaks for itself.
type plain struct{ r, w *os.File }

func (p plain) read() wire.Message {
	body, err := wire.ReadFrame(p.r, wire.DefaultCaps())
	if err != nil {
		os.Exit(0)
	}
	m, err := wire.Decode(body, wire.Engine, wire.DefaultCaps())
	if err != nil {
		panic(err)
	}
	return m
}

func encode(m wire.Message) []byte {
	frame, err := wire.Encode(m, wire.DefaultCaps())
	if err != nil {
		panic(err)
	}
	var b bytes.Buffer
	frame.WriteTo(&b)
	return b.Bytes()
}

func (p plain) write(messages ...wire.Message) {
	var b []byte
	for _, m := range messages {
		b = append(b, encode(m)...)
	}
	p.w.Write(b)
}

func answer(r *wire.Request) *wire.Result {
	return &wire.Result{Binding: r.Binding, Sends: []wire.Send{{To: "out", Body: r.Body}},
		Tags: map[string]string{"pid": strconv.Itoa(os.Getpid())}}
}

// raw speaks the protocol by itself, and breaks it as the function's name says.
func raw() {
	p := plain{os.NewFile(3, "r"), os.NewFile(4, "w")}
	p.read()
	p.write(&wire.Ready{SDK: "raw"})
	for {
		r := p.read().(*wire.Request)
		p.misbehave(r)
	}
}

func (p plain) misbehave(r *wire.Request) {
	switch r.Name {
	case "echo":
		p.write(answer(r))
	case "read nothing more":
		p.write(answer(r))
		time.Sleep(lifetime)
	case "read half":
		p.write(answer(r))
		io.CopyN(io.Discard, p.r, 4<<20)
		time.Sleep(lifetime)
	case "drip":
		for _, b := range encode(answer(r)) {
			p.w.Write([]byte{b})
			time.Sleep(20 * time.Millisecond)
		}
	case "late":
		time.Sleep(600 * time.Millisecond)
		p.write(answer(r))
		time.Sleep(lifetime)
	case "stage": // with one write, so that it lies in the pipe by the time that the first is read
		p.write(answer(r), answer(&wire.Request{Binding: wire.Binding{ID: strings.Repeat("a", 32), Phase: r.Phase, Name: r.Name}}))
	case "twice":
		p.write(answer(r), answer(r))
	case "close":
		p.r.Close()
		p.w.Close()
		time.Sleep(lifetime)
	case "stop reading": // closes one direction after its answer
		p.r.Close()
		p.write(answer(r))
		time.Sleep(lifetime)
	case "over the cap":
		p.w.Write(binary.BigEndian.AppendUint32(nil, 1<<31))
		time.Sleep(lifetime)
	case "cut":
		p.w.Write(encode(answer(r))[:20])
		os.Exit(4)
	case "garbage":
		p.w.Write([]byte("\x00\x00\x00\x10printed into it!"))
		time.Sleep(lifetime)
	case "answer and exit":
		p.write(answer(r))
		os.Exit(0)
	case "leave": // grandchildren, and exit between two dispatches
		grandchild()
		p.write(answer(r))
		os.Exit(0)
	case "flood":
		p.write(answer(r))
		fmt.Fprintln(os.Stderr, "flooding")
		for b := make([]byte, 1<<20); ; {
			p.w.Write(b)
		}
	}
}

// badBoot does not become ready.
func badBoot(name string) {
	p := plain{os.NewFile(3, "r"), os.NewFile(4, "w")}
	boot := p.read().(*wire.Boot)
	switch name {
	case "boot crash":
		fmt.Fprintln(os.Stderr, "cannot import name 'x'")
		os.Exit(7)
	case "boot for ever":
		grandchild()
		time.Sleep(lifetime)
	case "boot fail":
		p.write(&wire.BootFail{Fault: wire.Fault{Type: "SyntaxError", Text: "line 3"}})
	case "boot lacks":
		p.write(&wire.Ready{Offers: []wire.Offer{{Phase: wire.PhaseRoute, Name: "other"}}})
		p.read()
	case "boot garbage":
		p.w.Write([]byte("\x00\x00\x00\x01."))
		time.Sleep(lifetime)
	case "boot with a frame over its cap":
		p.write(&wire.Ready{SDK: strings.Repeat("x", boot.FrameCap)})
		time.Sleep(lifetime)
	case "boot and go": // ready, and then never there
		p.write(&wire.Ready{}, &wire.Ready{})
		time.Sleep(lifetime)
	}
}
