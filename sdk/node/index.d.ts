/** What a handler may return: nothing to send, one Send, a Drop, or an array or generator of Send. */
export type Work =
  | void
  | null
  | Send
  | Drop
  | readonly Send[]
  | Iterator<Send, unknown, undefined>
  | AsyncIterator<Send, unknown, undefined>;

/** What a router may return: names of handlers. */
export type Choice = void | null | string | readonly string[] | Iterator<string, unknown, undefined> | AsyncIterator<string, unknown, undefined>;

export type Handler = (msg: Message, ctx: Context) => Work | Promise<Work>;
export type Router = (msg: Message, ctx: Context) => Choice | Promise<Choice>;

/**
 * Offers a function as a router, under its own name or the one given. It returns the names of the handlers that get the
 * message. A function that throws fails its message and not its worker.
 */
export function router<F extends Router>(f: F, options?: { name?: string }): F;

/** Offers a function as a handler, under its own name or the one given. */
export function handler<F extends Handler>(f: F, options?: { name?: string }): F;

/** One body for one outbound. The body is taken as it is at this moment; a string is sent as UTF-8. */
export class Send {
  constructor(to: string, body: string | ArrayBufferView | HL7);
  readonly to: string;
  readonly body: Uint8Array;
}

/** A handler's other answer: nothing is sent, the message is filtered, for this reason. */
export class Drop {
  constructor(reason: string);
  readonly reason: string;
}

/** One message, as it was received. */
export class Message {
  private constructor();
  /** The engine's; a bigint beyond Number.MAX_SAFE_INTEGER. */
  readonly id: number | bigint;
  /** The connection that it came from. */
  readonly inbound: string;
  /** MSH-9, or empty. */
  readonly type: string;
  /** MSH-10, or empty. */
  readonly controlId: string;
  /** 1 for the first. */
  readonly attempt: number;
  /** A Buffer. */
  readonly body: Uint8Array;
  /** When the engine received it, to the millisecond. */
  readonly received: Date;
  /** The body as an HL7 v2 message, parsed once. Setting a path in it leaves body as it was. */
  readonly hl7: HL7;
  /** Sets what the message can be found by: msg.tag({ mrn: "12345" }). */
  tag(tags: Record<string, string | number | bigint>): void;
}

/** What surrounds one call of a function. */
export class Context {
  private constructor();
  /** From the configuration. A whole number beyond Number.MAX_SAFE_INTEGER is a bigint. */
  readonly settings: Record<string, any>;
  /** On the clock of performance.now(), in milliseconds. */
  readonly deadline: number;
  /** Milliseconds until the deadline, at which the engine kills this process; 0 when it has passed. */
  remaining(): number;
  /** Writes to stderr, which is kept as the function's log; formatted as console.log does. */
  readonly log: Record<"info" | "warning" | "error", (...values: unknown[]) => void>;
}

/**
 * An HL7 v2 message, lossless: bytes that are not set stay as they were.
 *
 *     h.get("MSH-9.2")              "A01"
 *     h.get("PID-3.1")              component 1 of the first repetition of PID-3
 *     h.get("PID-3[2].4.1")         repetition 2, component 4, subcomponent 1
 *     h.get("OBX[3]-5")             the whole of field 5 in the third OBX
 *     h.set("PV1-3.4", "MERCY")     fields and components that are not there yet are added, empty
 *     new Send("emr", h)
 *
 * What is not there reads as "", and setting that to "" changes nothing. All counts start at 1, and MSH-1 is the separator
 * itself. Values are as they stand in the message, escape sequences included: escape and unescape turn text into such values
 * and back. A message is read as UTF-8, or as Latin-1 where MSH-18 says 8859/1; bytes that are not UTF-8 become halves of
 * surrogate pairs and are the same bytes again when they are written.
 */
export class HL7 {
  private constructor();
  /** The value at a path, or absent ("" if it is not given) where there is none. A TypeError for what is no path. */
  get(path: string, absent?: string): string;
  /**
   * Sets a value, in a segment that the message has; "" deletes what stands there, and keeps the separators. A RangeError
   * where there is no such segment, and for a value that cannot stand there: one that holds what would end it, that the
   * message's character set lacks, or that would change the separators. The message is then as it was.
   */
  set(path: string, value: string): void;
  /** Whether there is a segment of this name, in capitals or not. */
  has(segment: string): boolean;
  /** How many segments of this name there are. */
  count(segment: string): number;
  /**
   * Text with its separators as escape sequences, so that it can be set anywhere. It is the text itself where the message
   * declares no escape character.
   */
  escape(text: string): string;
  /** A value with the escape sequences of its separators resolved; others stay as they are. */
  unescape(value: string): string;
  toBuffer(): Uint8Array;
}
