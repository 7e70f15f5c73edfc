// PNGs of pages made small: at most 256 colours, which text and lines hardly need, packed as well as can be.

import { crc32, deflateSync, inflateSync } from 'node:zlib';

const SIGNATURE = Buffer.from([137, 80, 78, 71, 13, 10, 26, 10]);

function* chunks(png) {
  for (let place = SIGNATURE.length; place < png.length; ) {
    const length = png.readUInt32BE(place);
    yield [png.toString('latin1', place + 4, place + 8), png.subarray(place + 8, place + 8 + length)];
    place += length + 12;
  }
}

function chunk(name, data) {
  const whole = Buffer.alloc(data.length + 12);
  whole.writeUInt32BE(data.length);
  whole.write(name, 4, 'latin1');
  data.copy(whole, 8);
  whole.writeUInt32BE(crc(whole.subarray(4, data.length + 8)), data.length + 8);
  return whole;
}

function crc(data) {
  if (crc32) return crc32(data);
  let sum = 0xffffffff;
  for (const byte of data) {
    sum ^= byte;
    for (let bit = 0; bit < 8; bit += 1) sum = (sum >>> 1) ^ (sum & 1 ? 0xedb88320 : 0);
  }
  return (sum ^ 0xffffffff) >>> 0;
}

/** The colours of a picture, 8 bits of red, green and blue each, row by row. */
function pixels(png) {
  let [width, height, depth] = [0, 0, 0];
  const packed = [];
  for (const [name, data] of chunks(png)) {
    if (name === 'IHDR') [width, height, depth] = [data.readUInt32BE(0), data.readUInt32BE(4), { 2: 3, 6: 4 }[data[9]]];
    if (name === 'IDAT') packed.push(data);
  }
  const raw = inflateSync(Buffer.concat(packed));
  const stride = width * depth;
  const rows = Buffer.alloc(height * stride);
  for (let y = 0; y < height; y += 1) {
    const filter = raw[y * (stride + 1)];
    for (let x = 0; x < stride; x += 1) {
      const left = x >= depth ? rows[y * stride + x - depth] : 0;
      const up = y ? rows[(y - 1) * stride + x] : 0;
      const corner = y && x >= depth ? rows[(y - 1) * stride + x - depth] : 0;
      const near = [left, up, corner].map((one) => Math.abs(left + up - corner - one));
      const paeth = near[0] <= near[1] && near[0] <= near[2] ? left : near[1] <= near[2] ? up : corner;
      const guess = [0, left, up, (left + up) >> 1, paeth][filter];
      rows[y * stride + x] = raw[y * (stride + 1) + 1 + x] + guess;
    }
  }
  return { width, height, depth, rows };
}

/** The same picture in at most 256 colours. */
export function small(png) {
  const { width, height, depth, rows } = pixels(png);
  const count = new Map();
  // 16 shades of a letter's edge are as good as 256.
  const colour = (place) => ((rows[place] & 0xf8) << 16) | ((rows[place + 1] & 0xf8) << 8) | (rows[place + 2] & 0xf8);
  for (let place = 0; place < rows.length; place += depth) count.set(colour(place), (count.get(colour(place)) ?? 0) + 1);
  const palette = [...count].sort((a, b) => b[1] - a[1]).slice(0, 256).map(([one]) => one);
  const number = new Map(palette.map((one, index) => [one, index]));
  const parts = (one) => [one >> 16, (one >> 8) & 255, one & 255];
  const nearest = (one) => {
    let found = number.get(one);
    if (found === undefined) {
      const far = (other) => parts(other).reduce((sum, part, index) => sum + (part - parts(one)[index]) ** 2, 0);
      found = palette.reduce((best, other, index) => (far(other) < far(palette[best]) ? index : best), 0);
      number.set(one, found);
    }
    return found;
  };
  const raw = Buffer.alloc(height * (width + 1));
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) raw[y * (width + 1) + 1 + x] = nearest(colour((y * width + x) * depth));
  }
  const head = Buffer.alloc(13);
  head.writeUInt32BE(width, 0);
  head.writeUInt32BE(height, 4);
  head.set([8, 3, 0, 0, 0], 8);
  const colours = Buffer.from(palette.flatMap((one) => parts(one).map((part) => part | (part >> 5))));
  return Buffer.concat([SIGNATURE, chunk('IHDR', head), chunk('PLTE', colours), chunk('IDAT', deflateSync(raw, { level: 9, memLevel: 9 })), chunk('IEND', Buffer.alloc(0))]);
}
