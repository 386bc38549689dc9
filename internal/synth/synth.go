// Package synth makes up HL7 v2 messages that look like a hospital's: admissions, results and appointments of people who do
// not exist. The same seed makes the same messages, so that a demonstration or a test can be repeated.
package synth

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// Message is one made-up message.
type Message struct {
	Control string // MSH-10, unique within a Source
	Type    string // MSH-9: "ADT^A01"
	Body    []byte // segments end with CR
}

// Source makes messages. It is for one goroutine.
type Source struct {
	r     *rand.Rand
	clock time.Time
	next  int
}

// New returns a source that begins at the given time; control ids count from 1.
func New(seed uint64, begin time.Time) *Source {
	return &Source{r: rand.New(rand.NewPCG(seed, 0)), clock: begin}
}

var (
	families = strings.Fields("Adeyemi Bianchi Castellanos Duarte Eriksen Fontaine Grigoryan Haddad Ivanova Jankowski Kariuki Lindqvist Moreau Nakamura Okafor Petrov Quispe Rossi Sørensen Tanaka Ueda Vargas Weiss Yilmaz Zhang")
	givens   = strings.Fields("Ada Bruno Chiara David Elena Farid Greta Hugo Ines Jonas Kemi Luis Mira Noor Omar Paula Quentin Rosa Samir Tove Uma Victor Wanda Yusuf Zoe")
	streets  = strings.Fields("Ash Beech Chestnut Elm Hazel Linden Oak Rowan Willow Yew")
	cities   = []string{"Alderbrook^^AB1 2CD", "Hazelford^^HF3 4GH", "Limewick^^LW5 6JK", "Oakhampton^^OH7 8LM"}
	wards    = strings.Fields("MED SURG ICU ED MAT PED")
	doctors  = []string{"1201^Okonkwo^Amara^^^Dr", "1202^Lund^Mikael^^^Dr", "1203^Serrano^Pilar^^^Dr", "1204^Cohen^Dan^^^Dr"}
	clinics  = []string{"CARDIO^Cardiology", "DERM^Dermatology", "ORTHO^Orthopaedics", "EYE^Eye clinic"}
)

// analyte is one laboratory test: its name, unit and normal range, in tenths of the unit.
type analyte struct {
	code, name, unit string
	low, high        int
}

var panel = []analyte{
	{"2160-0", "Creatinine", "umol/L", 490, 920},
	{"2951-2", "Sodium", "mmol/L", 1350, 1450},
	{"2823-3", "Potassium", "mmol/L", 35, 51},
	{"3094-0", "Urea", "mmol/L", 25, 78},
	{"718-7", "Haemoglobin", "g/L", 1200, 1600},
}

// person is who a message is about.
type person struct {
	mrn, name, born, sex, address, visit, ward string
}

func pick[T any](s *Source, list []T) T { return list[s.r.IntN(len(list))] }

func (s *Source) person() person {
	born := s.clock.AddDate(-1-s.r.IntN(95), -s.r.IntN(12), -s.r.IntN(28))
	return person{
		mrn:     fmt.Sprintf("%07d", 1000000+s.r.IntN(9000000)),
		name:    pick(s, families) + "^" + pick(s, givens),
		born:    born.Format("20060102"),
		sex:     pick(s, []string{"F", "M"}),
		address: fmt.Sprintf("%d %s Street^^%s", 1+s.r.IntN(180), pick(s, streets), pick(s, cities)),
		visit:   fmt.Sprintf("V%06d", s.r.IntN(1000000)),
		ward:    pick(s, wards),
	}
}

// segments puts a message together behind its header. The header says that text is UTF-8: one of the names needs it.
func (s *Source) segments(kind, app string, lines ...string) Message {
	s.next++
	s.clock = s.clock.Add(time.Duration(5+s.r.IntN(115)) * time.Second)
	m := Message{Control: fmt.Sprintf("CPC%05d", s.next), Type: kind}
	head := fmt.Sprintf(`MSH|^~\&|%s|HAZEL|COPPICE|WOOD|%s||%s|%s|P|2.5|||||||UNICODE UTF-8`, app, s.now(), kind, m.Control)
	m.Body = []byte(head + "\r" + strings.Join(lines, "\r") + "\r")
	return m
}

func (s *Source) now() string { return s.clock.Format("20060102150405") }

func (p person) pid() string {
	return fmt.Sprintf("PID|1||%s^^^HAZEL^MR||%s||%s|%s|||%s", p.mrn, p.name, p.born, p.sex, p.address)
}

func (s *Source) pv1(p person, class string) string {
	return fmt.Sprintf("PV1|1|%s|%s^%02d^%d^OLD SITE||||%s||||||||||||%s", class, p.ward, 1+s.r.IntN(20), 1+s.r.IntN(4), pick(s, doctors), p.visit)
}

// ADT is an admission (A01), a discharge (A03) or an update (A08).
func (s *Source) ADT(trigger string) Message {
	p := s.person()
	return s.segments("ADT^"+trigger, "PAS", fmt.Sprintf("EVN|%s|%s", trigger, s.now()), p.pid(), s.pv1(p, "I"))
}

// ORU is a laboratory's result. With abnormal, one of its values is out of range and flagged so.
func (s *Source) ORU(abnormal bool) Message {
	p := s.person()
	order := fmt.Sprintf("%08d", s.r.IntN(100000000))
	lines := []string{p.pid(), s.pv1(p, "O"), fmt.Sprintf("OBR|1|%s|%s|LAB^Chemistry|||%s", order, order, s.now())}
	n := 2 + s.r.IntN(len(panel)-1)
	odd := s.r.IntN(n)
	for i, a := range panel[:n] {
		value, flag := a.low+s.r.IntN(a.high-a.low), "N"
		if abnormal && i == odd {
			value, flag = a.high+1+s.r.IntN(a.high/2), "H"
		}
		lines = append(lines, fmt.Sprintf("OBX|%d|NM|%s^%s^LN||%d.%d|%s|%d.%d-%d.%d|%s|||F",
			i+1, a.code, a.name, value/10, value%10, a.unit, a.low/10, a.low%10, a.high/10, a.high%10, flag))
	}
	return s.segments("ORU^R01", "LIS", lines...)
}

// SIU is a new appointment. notes become NTE segments.
func (s *Source) SIU(notes ...string) Message {
	p := s.person()
	at := s.clock.AddDate(0, 0, 1+s.r.IntN(60)).Truncate(15 * time.Minute)
	lines := []string{
		fmt.Sprintf("SCH|A%06d||||||ROUTINE||15|min|^^15^%s", s.r.IntN(1000000), at.Format("200601021504")),
		p.pid(), s.pv1(p, "O"), "RGS|1", fmt.Sprintf("AIS|1||%s|%s", pick(s, clinics), at.Format("200601021504")),
	}
	for i, n := range notes {
		lines = append(lines, fmt.Sprintf("NTE|%d||%s", i+1, n))
	}
	return s.segments("SIU^S12", "BOOK", lines...)
}
