// Text that stands for bytes. Strings of JavaScript may hold halves of surrogate pairs, which no UTF-8 holds: bytes that are
// not UTF-8 become such halves, U+DC80 to U+DCFF, and are the same bytes again when they are written (Python's
// "surrogateescape"). A raw string has one character for each byte ("latin1").

// The well-formed sequences of UTF-8 (RFC 3629), or one byte that begins none.
const SEQUENCES = new RegExp(
  "[\\x00-\\x7f]+|(?:[\\xc2-\\xdf]|\\xe0[\\xa0-\\xbf]|[\\xe1-\\xec\\xee\\xef][\\x80-\\xbf]|\\xed[\\x80-\\x9f]" +
    "|\\xf0[\\x90-\\xbf][\\x80-\\xbf]|[\\xf1-\\xf3][\\x80-\\xbf]{2}|\\xf4[\\x80-\\x8f][\\x80-\\xbf])[\\x80-\\xbf]|([^])",
  "g",
);
const HALVES = /[\ud800-\udfff]/gu; // with u, it matches no half of a whole pair
const ESCAPED = /([\udc80-\udcff])/u;

/** Replaces halves of surrogate pairs, which no header may hold: a header is text, bodies travel as segments. */
export function scrub(text) {
  return text.replace(HALVES, "\ufffd");
}

/** The text of a raw string. */
export function decodeText(raw) {
  return raw.replace(SEQUENCES, (whole, bad) =>
    bad === undefined ? Buffer.from(whole, "latin1").toString("utf8") : String.fromCharCode(0xdc00 + bad.charCodeAt(0)),
  );
}

/** The bytes of a text. */
export function encodeText(text) {
  if (text.search(HALVES) < 0) {
    return Buffer.from(text, "utf8");
  }
  return Buffer.concat(text.split(ESCAPED).map((piece, i) => (i % 2 ? Buffer.of(piece.charCodeAt(0) - 0xdc00) : whole(piece))));
}

function whole(text) {
  if (text.search(HALVES) >= 0) {
    throw new TypeError("half of a surrogate pair, which stands for no byte");
  }
  return Buffer.from(text, "utf8");
}
