// Packed texts: letters of base 85 to bytes, and bytes to text as the LZMA specification says,
// with lc 3, lp 0 and pb 0. `packing.py` is the other side.
const LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%()*+,.:;=?@[]^_{|}~";

function bytesOf(letters) {
  const digits = new Uint8Array(128);
  [...LETTERS].forEach((letter, digit) => { digits[letter.charCodeAt(0)] = digit; });
  const bytes = new DataView(new ArrayBuffer((letters.length / 5) * 4));
  for (let at = 0, place = 0; at < letters.length; place += 4) {
    let value = 0;
    for (const end = at + 5; at < end; at += 1) value = value * 85 + digits[letters.charCodeAt(at)];
    bytes.setUint32(place, value);
  }
  return new Uint8Array(bytes.buffer);
}

// Where the probabilities of each kind of bit begin, 12 states to a kind.
const MATCH = 0;
const REPEAT = 12;
const REPEAT_0 = 24;
const REPEAT_1 = 36;
const REPEAT_2 = 48;
const REPEAT_SHORT = 60;
const SLOTS = 72; // 4 trees of 6 bits
const FAR = SLOTS + 4 * 64;
const ALIGN = FAR + 115;
const LENGTHS = ALIGN + 16; // of matches, and of repeats
const LENGTH_SIZE = 2 + 8 + 8 + 256;
const LITERALS = LENGTHS + 2 * LENGTH_SIZE;
const LITERAL_SIZE = 0x300;

function unpackedBytes(input, size) {
  const out = new Uint8Array(size);
  const odds = new Uint16Array(LITERALS + 8 * LITERAL_SIZE).fill(1024);
  let [range, code, read] = [0xffffffff, 0, 5];
  for (let place = 1; place < 5; place += 1) code = ((code << 8) | input[place]) >>> 0;

  function refill() {
    if (range >= 0x1000000) return;
    range = (range << 8) >>> 0;
    code = ((code << 8) | input[read]) >>> 0;
    read += 1;
  }

  function bit(place) {
    const odd = odds[place];
    const bound = (range >>> 11) * odd;
    const one = code >= bound;
    if (one) {
      range -= bound;
      code -= bound;
      odds[place] = odd - (odd >>> 5);
    } else {
      range = bound;
      odds[place] = odd + ((2048 - odd) >>> 5);
    }
    refill();
    return one ? 1 : 0;
  }

  function evenBits(count) {
    let value = 0;
    for (let left = count; left; left -= 1) {
      range >>>= 1;
      const one = code >= range;
      if (one) code -= range;
      value = value * 2 + (one ? 1 : 0);
      refill();
    }
    return value;
  }

  function tree(start, bits) {
    let node = 1;
    for (let left = bits; left; left -= 1) node = node * 2 + bit(start + node);
    return node - 2 ** bits;
  }

  function mirroredTree(start, bits) {
    let [node, value] = [1, 0];
    for (let place = 0; place < bits; place += 1) {
      const one = bit(start + node);
      node = node * 2 + one;
      value += one * 2 ** place;
    }
    return value;
  }

  function lengthAt(start) {
    if (!bit(start)) return 2 + tree(start + 2, 3);
    if (!bit(start + 1)) return 10 + tree(start + 10, 3);
    return 18 + tree(start + 18, 8);
  }

  function distanceFor(length) {
    const slot = tree(SLOTS + 64 * Math.min(length - 2, 3), 6);
    if (slot < 4) return slot;
    const bits = (slot >> 1) - 1;
    const start = (2 + (slot & 1)) * 2 ** bits;
    if (slot < 14) return start + mirroredTree(FAR + start - slot, bits);
    return start + evenBits(bits - 4) * 16 + mirroredTree(ALIGN, 4);
  }

  function literal(before, matched) {
    const start = LITERALS + LITERAL_SIZE * (before >> 5);
    let symbol = 1;
    for (let place = 7; place >= 0 && matched !== null; place -= 1) {
      const guess = (matched >> place) & 1;
      const one = bit(start + 0x100 * (1 + guess) + symbol);
      symbol = symbol * 2 + one;
      if (one !== guess) break;
    }
    while (symbol < 0x100) symbol = symbol * 2 + bit(start + symbol);
    return symbol - 0x100;
  }

  let [state, written] = [0, 0];
  const far = [0, 0, 0, 0]; // the distances last used, the newest first
  while (written < size) {
    if (!bit(MATCH + state)) {
      const matched = state < 7 ? null : out[written - far[0] - 1];
      out[written] = literal(written ? out[written - 1] : 0, matched);
      written += 1;
      state = state < 4 ? 0 : state - (state < 10 ? 3 : 6);
      continue;
    }
    let length = 0;
    if (!bit(REPEAT + state)) {
      length = lengthAt(LENGTHS);
      far.unshift(distanceFor(length));
      far.pop();
      state = state < 7 ? 7 : 10;
    } else if (bit(REPEAT_0 + state)) {
      const which = bit(REPEAT_1 + state) ? 2 + bit(REPEAT_2 + state) : 1;
      far.unshift(...far.splice(which, 1));
      length = lengthAt(LENGTHS + LENGTH_SIZE);
      state = state < 7 ? 8 : 11;
    } else if (bit(REPEAT_SHORT + state)) {
      length = lengthAt(LENGTHS + LENGTH_SIZE);
      state = state < 7 ? 8 : 11;
    } else {
      length = 1;
      state = state < 7 ? 9 : 11;
    }
    for (const end = Math.min(written + length, size); written < end; written += 1) out[written] = out[written - far[0] - 1];
  }
  return out;
}

function unpackedText(element) {
  const bytes = unpackedBytes(bytesOf(element.textContent.trim()), Number(element.dataset.bytes));
  return new TextDecoder().decode(bytes);
}
