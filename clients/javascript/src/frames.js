// The Connect protocol with JSON, as a sandbox's services speak it: one flag byte, four of the length, then the message.

import { SandboxError, ofWord } from './errors.js'

/** Most bytes of one message that is taken from a server. */
export const MAX_FRAME = 64 * 1024 * 1024
const HEAD = 5
const END = 0x02

/** A message as it is sent. */
export function frame(message) {
  const text = Buffer.from(JSON.stringify(message))
  const head = Buffer.alloc(HEAD)
  head.writeUInt32BE(text.length, 1)
  return Buffer.concat([head, text])
}

/** Puts the messages of a stream together from its pieces. */
export class FrameReader {
  #bytes = Buffer.alloc(0)
  #notFound
  /** Whether the stream has ended as it should; otherwise it was cut. */
  ended = false

  constructor(notFound) {
    this.#notFound = notFound
  }

  /** The messages that are whole with this piece; throws the error that the stream ends with. */
  *feed(piece) {
    this.#bytes = this.#bytes.length ? Buffer.concat([this.#bytes, piece]) : piece
    while (this.#bytes.length >= HEAD) {
      const length = this.#bytes.readUInt32BE(1)
      if (length > MAX_FRAME) throw new SandboxError(`a message of ${length} bytes is longer than any may be`)
      if (this.#bytes.length < HEAD + length) return
      const isEnd = (this.#bytes[0] & END) !== 0
      const message = JSON.parse(this.#bytes.toString('utf8', HEAD, HEAD + length) || '{}')
      this.#bytes = this.#bytes.subarray(HEAD + length)
      if (!isEnd) {
        yield message
        continue
      }
      this.ended = true
      const error = message.error
      if (error) throw ofWord(error.code ?? 'unknown', error.message ?? error.code, this.#notFound)
      return
    }
  }
}
