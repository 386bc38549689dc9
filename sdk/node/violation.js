// What a peer may never put on the wire.

/** A breach of the protocol. violation is one of the names in PROTOCOL.md; detail is for people. */
export class Violation extends Error {
  constructor(violation, detail) {
    super(`protocol violation: ${violation}: ${detail}`);
    this.violation = violation;
    this.detail = detail;
  }
}
