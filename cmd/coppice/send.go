package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"coppice.dev/coppice/internal/config"
	"coppice.dev/coppice/internal/connect/mllp"
	"coppice.dev/coppice/internal/hl7"
	"coppice.dev/coppice/internal/message"
)

// sendMax bounds one message, and sendStdin names the standard input among files.
const (
	sendMax   = 63 << 20
	sendStdin = "-"
)

// sender is one run of the verb.
type sender struct {
	io      stdio
	to      string
	dir     string
	inbound string
	timeout time.Duration
	skip    int
	cr      bool
	quiet   bool
	asJSON  bool

	bar    *progressbar.ProgressBar
	client *mllp.Client
	n      int // messages seen
	sent   int
	taken  int
	began  time.Time
}

func sendCommand(io stdio) *cobra.Command {
	s := &sender{io: io}
	cmd := &cobra.Command{
		Use:   "send PATH...",
		Short: "Send files of messages to an MLLP inbound, and report each acknowledgement",
		Long: `Send takes files, folders (their files in order of names, hidden ones left out) or - for stdin apart into messages and
sends them over one connection, each after the acknowledgement of the one before. A message begins at a line that begins MSH,
BHS or FHS; a batch is one message. Bytes go as they are, unless --cr turns line ends into CR: a file with one message is
sent with the blank lines at its end; among several messages, the blank lines behind each belong to none.

A line is printed for each: its acknowledgement (AA and CA both count as taken), its type and control id, and where it
stood. Behind a message that was not taken it connects anew. It stops at the first connection error, and says with which
--skip to go on; the message that was under way may have arrived.`,
		Args: takes(1, math.MaxInt, "a PATH: a file, a folder, or - for stdin"),
	}
	f := cmd.Flags()
	f.StringVar(&s.to, "to", "", "address of the inbound, `HOST:PORT`")
	f.StringVarP(&s.dir, "config", "c", ".", "without --to: the folder `DIR` whose coppice.toml has the inbound")
	f.StringVar(&s.inbound, "inbound", "", "without --to: the inbound `NAME`, if there are several")
	names(cmd, "inbound", &s.dir, message.KindInbound)
	f.DurationVar(&s.timeout, "timeout", 30*time.Second, "`TIME` for the connection and for each acknowledgement")
	f.IntVar(&s.skip, "skip", 0, "leave out the first `N` messages")
	f.BoolVar(&s.cr, "cr", false, "turn LF and CRLF into CR")
	f.BoolVarP(&s.quiet, "quiet", "q", false, "print only what was not taken, and the sum")
	f.BoolVar(&s.asJSON, "json", false, "print one JSON object a line")
	return verb(cmd, func(cmd *cobra.Command, args []string) error {
		if err := s.sound(cmd); err != nil {
			return err
		}
		return s.run(cmd.Context(), args)
	})
}

// sound finds what is wrong with the flags.
func (s *sender) sound(cmd *cobra.Command) error {
	_, _, err := net.SplitHostPort(s.to)
	switch {
	case s.skip < 0:
		return usage("--skip is a number of messages")
	case s.timeout <= 0:
		return usage("--timeout is longer than nothing")
	case s.to == "":
		return nil
	case err != nil:
		return usage("--to %q is not HOST:PORT", s.to)
	case cmd.Flags().Changed("config") || s.inbound != "":
		return usage("--to tells where to send: leave out --config and --inbound")
	}
	return nil
}

func (s *sender) run(ctx context.Context, paths []string) error {
	files, total, err := sendFiles(paths)
	if err != nil {
		return err
	}
	if err := s.address(); err != nil {
		return err
	}
	s.progress(total)
	defer s.close()
	s.began = time.Now()
	for _, path := range files {
		if err = s.file(ctx, path); err != nil {
			break
		}
	}
	s.close()
	return s.sum(err)
}

// address finds where to send.
func (s *sender) address() error {
	if s.to != "" {
		return nil
	}
	cfg, err := loadConfig(s.io, s.dir)
	if err != nil {
		return err
	}
	var names []string
	secured := false
	for _, in := range cfg.Inbounds {
		if in.MLLP == nil || s.inbound != "" && in.Name != s.inbound {
			continue
		}
		names = append(names, in.Name)
		s.to, secured = dialable(in.MLLP), in.MLLP.TLS != nil
	}
	switch {
	case len(names) == 1 && secured:
		return fmt.Errorf("inbound %s takes TLS alone, which send does not speak\n  hint: give the configuration an inbound on 127.0.0.1 without tls, for tests", names[0])
	case len(names) == 1 && strings.HasSuffix(s.to, ":0"):
		return fmt.Errorf("inbound %s takes any free port\n  hint: give --to the address that the engine's log has for it", names[0])
	case len(names) == 1:
		return nil
	case s.inbound != "":
		return fmt.Errorf("%s has no MLLP inbound %q", cfg.File, s.inbound)
	case len(names) == 0:
		return fmt.Errorf("%s has no MLLP inbound: use --to HOST:PORT", cfg.File)
	}
	return usage("%s has several MLLP inbounds: choose one with --inbound (%s)", cfg.File, strings.Join(names, ", "))
}

// dialable is the address at which an inbound of this machine can be reached.
func dialable(in *config.MLLPIn) string {
	host, port, err := net.SplitHostPort(in.Listen)
	switch {
	case err != nil:
		return in.Listen
	case host == "" || host == "0.0.0.0":
		host = "127.0.0.1"
	case host == "::":
		host = "::1"
	}
	return net.JoinHostPort(host, port)
}

// sendFiles lists the files of the paths, and adds up their sizes; -1 when one cannot be known.
func sendFiles(paths []string) (files []string, total int64, err error) {
	add := func(path string, info os.FileInfo) {
		files = append(files, path)
		if !info.Mode().IsRegular() {
			total = -1
		} else if total >= 0 {
			total += info.Size()
		}
	}
	for _, path := range paths {
		if path == sendStdin {
			files, total = append(files, path), -1
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			return nil, 0, err
		}
		if !info.IsDir() {
			add(path, info)
			continue
		}
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, 0, err
		}
		for _, e := range entries {
			info, err := os.Stat(filepath.Join(path, e.Name()))
			if err == nil && info.Mode().IsRegular() && !strings.HasPrefix(e.Name(), ".") {
				add(filepath.Join(path, e.Name()), info)
			}
		}
	}
	if len(files) == 0 {
		return nil, 0, errors.New("no files to send")
	}
	return files, total, nil
}

// progress shows a bar where a person sees it and no lines of text get in its way.
func (s *sender) progress(total int64) {
	if !terminal(s.io.err) || !s.quiet && terminal(s.io.out) {
		return
	}
	s.bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(s.io.err), progressbar.OptionShowBytes(true),
		progressbar.OptionSetDescription("sending"), progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(100*time.Millisecond))
}

func (s *sender) hangUp() {
	if s.client != nil {
		s.client.Close()
		s.client = nil
	}
}

func (s *sender) close() {
	s.hangUp()
	if s.bar != nil {
		s.bar.Finish()
		s.bar = nil
	}
}

// file sends the messages of one file.
func (s *sender) file(ctx context.Context, path string) error {
	var r io.Reader = s.io.in
	name := "stdin"
	if path != sendStdin {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		r, name = f, path
	}
	if s.bar != nil {
		r = io.TeeReader(r, s.bar)
	}
	in := 0
	for body, err := range hl7.Split(r, sendMax) {
		if err != nil {
			return &notMessages{fmt.Errorf("%s: %w", name, err)}
		}
		in++
		if s.n++; s.n <= s.skip {
			continue
		}
		if s.cr {
			body = carriageReturns(body)
		}
		if err := s.message(ctx, body, fmt.Sprintf("%s#%d", name, in)); err != nil {
			return fmt.Errorf("%s, message %d: %w", name, in, err)
		}
	}
	return nil
}

// notMessages says that a file holds what cannot be sent, whatever comes before it.
type notMessages struct{ error }

func (e *notMessages) Unwrap() error { return e.error }

func carriageReturns(b []byte) []byte {
	return []byte(strings.NewReplacer("\r\n", "\r", "\n", "\r").Replace(string(b)))
}

// message sends one message and reports its acknowledgement.
func (s *sender) message(ctx context.Context, body []byte, where string) error {
	bounded, cancel := context.WithTimeoutCause(ctx, s.timeout, fmt.Errorf("no acknowledgement within %v", s.timeout))
	defer cancel()
	if s.client == nil {
		c, err := mllp.Dial(bounded, s.to)
		if err != nil {
			return causeOf(ctx, fmt.Errorf("%w\n  hint: is the engine running (coppice serve), and is this the address of its inbound?", err))
		}
		s.client = c
	}
	ack, err := s.client.Exchange(bounded, body)
	if err != nil {
		return causeOf(ctx, err)
	}
	s.sent++
	if ack.Taken() {
		s.taken++
	} else {
		s.hangUp() // a receiver may do the same behind such an answer, and the next message would find out too late
	}
	return s.report(body, where, ack)
}

// causeOf prefers the signal that ended the program to the error that this led to.
func causeOf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func (s *sender) report(body []byte, where string, ack hl7.Acknowledgement) error {
	if s.quiet && ack.Taken() {
		return nil
	}
	if s.bar != nil {
		s.bar.Clear()
	}
	header, _ := hl7.ParseHeader(body) // one that cannot be read has got its answer all the same
	if s.asJSON {
		return lines(s.io.out).Encode(struct {
			Message   int    `json:"message"`
			Where     string `json:"where"`
			Type      string `json:"type"`
			ControlID string `json:"control_id"`
			Ack       string `json:"ack"`
			Text      string `json:"text,omitempty"`
			Taken     bool   `json:"taken"`
		}{s.n, where, header.Type, header.ControlID, ack.Code, ack.Text, ack.Taken()})
	}
	text := ""
	if ack.Text != "" {
		text = "  " + printable(clip(ack.Text, 120))
	}
	_, err := fmt.Fprintf(s.io.out, "%s  %s  %s  %s%s\n", printable(ack.Code), orNone(header.Type), orNone(header.ControlID), printable(where), text)
	return err
}

// sum says how it went, and with which status the verb ends.
func (s *sender) sum(err error) error {
	took := time.Since(s.began)
	turned := s.sent - s.taken
	if s.asJSON {
		lines(s.io.out).Encode(struct {
			Sent   int   `json:"sent"`
			Taken  int   `json:"taken"`
			Turned int   `json:"turned_down"`
			TookNS int64 `json:"took_ns"`
		}{s.sent, s.taken, turned, int64(took)})
	} else if s.sent > 0 || err == nil {
		fmt.Fprintf(s.io.err, "%d sent, %d taken, %d turned down, in %v\n", s.sent, s.taken, turned, took.Round(time.Millisecond))
	}
	if err != nil {
		if _, file := errors.AsType[*notMessages](err); s.sent > 0 && file {
			return fmt.Errorf("%w\n  hint: name the files that hold messages; --skip counts messages, and does not pass this", err)
		}
		if s.sent > 0 {
			return fmt.Errorf("%w\n  to go on, add --skip %d", err, s.skip+s.sent)
		}
		return err
	}
	if turned > 0 {
		return told()
	}
	return nil
}
