package hl7_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"coppice.dev/coppice/internal/connect/connecttest"
	"coppice.dev/coppice/internal/hl7"
)

func TestParseHeader(t *testing.T) {
	full := hl7.Header{
		Segment: "MSH", Sep: '|', Encoding: `^~\&`,
		SendingApp: "APP", SendingFacility: "FAC", ReceivingApp: "RAPP", ReceivingFacility: "RFAC",
		Type: "ADT^A01", ControlID: "ID1", ProcessingID: "P", Version: "2.5",
		AcceptAck: "AL", AppAck: "NE", CharacterSet: "8859/1",
	}
	const msh = `MSH|^~\&|APP|FAC|RAPP|RFAC|20260101||ADT^A01^ADT_A01|ID1|P|2.5|||AL|NE||8859/1`
	dollar := full
	dollar.Sep, dollar.Encoding = '$', `*~\&`
	bare := hl7.Header{Segment: "MSH", Sep: '|'}
	for name, tc := range map[string]struct {
		body string
		want hl7.Header
	}{
		"alone":          {msh, full},
		"CR":             {msh + "\rPID|1\r", full},
		"LF":             {msh + "\nPID|1\n", full},
		"CRLF":           {msh + "\r\nPID|1\r\n", full},
		"mark":           {"\xef\xbb\xbf" + msh + "\r", full},
		"space before":   {"\xef\xbb\xbf \r\n\t" + msh + "\r", full},
		"separators":     {strings.NewReplacer("|", "$", "^", "*").Replace(msh) + "\r", dollar},
		"bare":           {"MSH|", bare},
		"bare and ended": {"MSH|\rPID|1", bare},
		"no trigger": {`MSH|^~\&|||||||ACK|7` + "\r", hl7.Header{
			Segment: "MSH", Sep: '|', Encoding: `^~\&`, Type: "ACK", ControlID: "7"}},
		"batch": {`BHS|^~\&|A|B|C|D|2026||N|comment|77|9` + "\r", hl7.Header{
			Segment: "BHS", Sep: '|', Encoding: `^~\&`, SendingApp: "A", SendingFacility: "B",
			ReceivingApp: "C", ReceivingFacility: "D", ControlID: "77"}},
		"file": {`FHS|^~\&|A||||||||78` + "\r", hl7.Header{
			Segment: "FHS", Sep: '|', Encoding: `^~\&`, SendingApp: "A", ControlID: "78"}},
		"latin-1": {"MSH|^~\\&|M\xfcnchen\r", hl7.Header{
			Segment: "MSH", Sep: '|', Encoding: `^~\&`, SendingApp: "M\xfcnchen"}},
	} {
		if got, err := hl7.ParseHeader([]byte(tc.body)); err != nil || got != tc.want {
			t.Errorf("%s: %+v, %v\nwant %+v", name, got, err, tc.want)
		}
	}
}

func TestParseHeaderRefuses(t *testing.T) {
	wide := func(s string, even bool) string {
		var b strings.Builder
		for i := range len(s) {
			if even {
				b.WriteString(s[i:i+1] + "\x00")
			} else {
				b.WriteString("\x00" + s[i:i+1])
			}
		}
		return b.String()
	}
	const msh = `MSH|^~\&|APP`
	for name, tc := range map[string]struct {
		body string
		want error
	}{
		"empty":             {"", hl7.ErrNoHeader},
		"space":             {" \r\n", hl7.ErrNoHeader},
		"short":             {"MSH", hl7.ErrNoHeader},
		"word":              {"MSHA|b", hl7.ErrNoHeader},
		"no separator":      {"MSH\r|", hl7.ErrNoHeader},
		"not first":         {"PID|1\rMSH|^~\\&|", hl7.ErrNoHeader},
		"json":              {`{"a":1}`, hl7.ErrNoHeader},
		"little endian":     {wide(msh, true), hl7.ErrUTF16},
		"big endian":        {wide(msh, false), hl7.ErrUTF16},
		"marked LE":         {"\xff\xfe" + wide(msh, true), hl7.ErrUTF16},
		"marked BE":         {"\xfe\xff" + wide(msh, false), hl7.ErrUTF16},
		"endless":           {"MSH|" + strings.Repeat("x", hl7.MaxHeader), hl7.ErrNoHeader}, // red without the cap
		"endless and ended": {"MSH|" + strings.Repeat("x", hl7.MaxHeader) + "\r", hl7.ErrNoHeader},
		"endless space":     {strings.Repeat(" ", hl7.MaxHeader+1) + msh, hl7.ErrNoHeader},
	} {
		if got, err := hl7.ParseHeader([]byte(tc.body)); !errors.Is(err, tc.want) {
			t.Errorf("%s: %+v, %v; want %v", name, got, err, tc.want)
		}
	}
}

func TestSamples(t *testing.T) {
	for name, body := range connecttest.Samples(t, "*.hl7") {
		h, err := hl7.ParseHeader(body)
		if err != nil || !h.Batch() && (h.Type == "" || h.ControlID == "" || h.Version == "") {
			t.Errorf("%s: %+v, %v", name, h, err)
		}
	}
	for i, body := range connecttest.Load(t) {
		h, err := hl7.ParseHeader(body)
		if err != nil || h.Type == "" || h.ControlID == "" || h.Version != "2.3" {
			t.Fatalf("message %d of the load: %+v, %v", i, h, err)
		}
	}
	for name, body := range connecttest.Samples(t, "json-*") {
		if h, err := hl7.ParseHeader(body); err == nil {
			t.Errorf("%s: %+v, want an error", name, h)
		}
	}
}

// now is any instant.
func now() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600)) }

func TestAck(t *testing.T) {
	for name, tc := range map[string]struct{ body, want string }{
		"full": {
			`MSH|^~\&|A|B|C|D|2026||ADT^A01^ADT_A01|ID1|T|2.3||||||8859/1` + "\r",
			`MSH|^~\&|C|D|A|B|20260102030405+0100||ACK^A01|NEW|T|2.3||||||8859/1` + "\rMSA|AE|ID1|a\\F\\b\\S\\ \\E\\\r"},
		"separators": {
			`MSH$*~!&$A$B$C$D$2026$$ADT*A01$ID1$T$2.3` + "\r",
			`MSH$*~!&$C$D$A$B$20260102030405+0100$$ACK*A01$NEW$T$2.3` + "\rMSA$AE$ID1$a|b^ \\\r"},
		"bare": {
			"MSH|",
			`MSH|^~\&|||||20260102030405+0100||ACK|NEW|P|2.5` + "\rMSA|AE||a\\F\\b\\S\\ \\E\\\r"},
		"no escape character": {
			"MSH|^|A\r",
			`MSH|^|||A||20260102030405+0100||ACK|NEW|P|2.5` + "\rMSA|AE||a b  \\\r"},
		"batch": {
			`BHS|^~\&|A|B|C|D|2026||||77` + "\r",
			`MSH|^~\&|C|D|A|B|20260102030405+0100||ACK|NEW|P|2.5` + "\rMSA|AE|77|a\\F\\b\\S\\ \\E\\\r"},
	} {
		h, err := hl7.ParseHeader([]byte(tc.body))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := string(hl7.Ack(h, hl7.AE, "a|b^\n\\", "NEW", now())); got != tc.want {
			t.Errorf("%s:\n got %q\nwant %q", name, got, tc.want)
		}
	}
	want := `MSH|^~\&|||||20260102030405+0100||ACK|NEW|P|2.5` + "\rMSA|AR||why\r"
	if got := string(hl7.AckUnknown("why", "NEW", now())); got != want {
		t.Errorf("unknown:\n got %q\nwant %q", got, want)
	}
}

// A field that ends in FS would stand before a CR in the answer, which is MLLP's block end, and the rest of the answer would be
// a stray. The control id is mirrored all the same, to the byte: its sender compares it. Red with the body of unframed
// returning s, without the empty text behind an id that ends in FS, and with unframed used on the id.
func TestAckHoldsNoFrame(t *testing.T) {
	for _, id := range []string{"id\x1c", "A\x0bB", "\x1c", "A\x1cB"} {
		h, err := hl7.ParseHeader([]byte("MSH|^~\\&|A\x0b|||||||" + id + "|P|2.3\x1c|x\r"))
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"", "x\x1c"} {
			got := hl7.Ack(h, hl7.AA, text, "NEW", now())
			if bytes.Contains(got, []byte("\x1c\r")) {
				t.Errorf("%q holds a block's end", got)
			}
			if ack, err := hl7.ParseAck(got); err != nil || ack.ControlID != id {
				t.Errorf("%q acknowledges %q, %v; want %q", got, ack.ControlID, err, id)
			}
		}
	}
}

func TestParseAck(t *testing.T) {
	const msh = "MSH|^~\\&|A|B|||2026||ACK|9|P|2.3\r"
	for name, tc := range map[string]struct {
		reply string
		want  hl7.Acknowledgement
		err   error
	}{
		"taken":         {msh + "MSA|AA|ID1\r", hl7.Acknowledgement{Code: "AA", ControlID: "ID1"}, nil},
		"text":          {msh + "MSA|AE|ID1|no bed|x\r", hl7.Acknowledgement{Code: "AE", ControlID: "ID1", Text: "no bed"}, nil},
		"lines":         {strings.ReplaceAll(msh, "\r", "\r\n") + "SFT|x\r\nMSA|CA|7", hl7.Acknowledgement{Code: "CA", ControlID: "7"}, nil},
		"separators":    {"MSH$*\rMSA$CR$7$|\r", hl7.Acknowledgement{Code: "CR", ControlID: "7", Text: "|"}, nil},
		"error segment": {msh + "MSA|AR|7\rERR|||204^Unknown||||diag|user\r", hl7.Acknowledgement{Code: "AR", ControlID: "7", Text: "user"}, nil},
		"old error":     {msh + "MSA|AR|7\rERR|PID^1\r", hl7.Acknowledgement{Code: "AR", ControlID: "7", Text: "PID^1"}, nil},
		"no MSA":        {msh + "PID|MSA|AA\r", hl7.Acknowledgement{}, hl7.ErrNoAck},
		"empty MSA":     {msh + "MSA|\r", hl7.Acknowledgement{}, hl7.ErrNoAck},
		"other code":    {msh + "MSA|OK|ID1\r", hl7.Acknowledgement{}, hl7.ErrNoAck},
		"lower case":    {msh + "MSA|aa|ID1\r", hl7.Acknowledgement{}, hl7.ErrNoAck},
		"garbage":       {"HTTP/1.1 400 Bad Request", hl7.Acknowledgement{}, hl7.ErrNoHeader},
		"empty":         {"", hl7.Acknowledgement{}, hl7.ErrNoHeader},
	} {
		got, err := hl7.ParseAck([]byte(tc.reply))
		if got != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("%s: %+v, %v; want %+v, %v", name, got, err, tc.want, tc.err)
		}
	}
}

// Whatever a body holds, its answer can be read back, names the message and is one block.
func FuzzParseHeader(f *testing.F) {
	for _, seed := range []string{"", "MSH|", "\xef\xbb\xbf MSH|^~\\&|A|B|C|D|2026||ADT^A01|1|P|2.5\r", "BHS$*", "MSH!00\x1c", "MSH\x1c^~\\&\x1c", "M\x00S\x00H\x00|\x00", "MSH^\\\r"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		h, err := hl7.ParseHeader(body)
		if err != nil {
			if !errors.Is(err, hl7.ErrNoHeader) && !errors.Is(err, hl7.ErrUTF16) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		ack := hl7.Ack(h, hl7.AE, string(body), "NEW", now())
		if bytes.Contains(ack, []byte("\x1c\r")) {
			t.Fatalf("answer %q holds a block's end", ack)
		}
		a, err := hl7.ParseAck(ack)
		if err != nil || a.Code != hl7.AE || a.ControlID != h.ControlID {
			t.Fatalf("answer %q reads as %+v, %v", ack, a, err)
		}
	})
}

func FuzzParseAck(f *testing.F) {
	for _, seed := range []string{"", "MSH|\rMSA|AA|1", "MSH|\rMSA|AE|1\rERR|||x", "MSH|\r\n\rMSA"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, reply []byte) {
		a, err := hl7.ParseAck(reply)
		if (err == nil) != (a.Code != "") {
			t.Fatalf("%+v, %v", a, err)
		}
	})
}
