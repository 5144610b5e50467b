// Functions for elements, numbers and documents, which all other parts of the script use.
const page = JSON.parse(document.getElementById("page-data").textContent);
const MISSING = "n/a";
// Control characters, and characters that change text direction; texts of a dump may contain any.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g;
const LONGEST = 200; // characters of a token that is shown beside others

function seen(text) {
  return text.replace(UNSEEN, "\ufffd");
}

// Leaves out the middle of a long text.
function shortened(text, most = LONGEST) {
  const letters = [...text];
  if (letters.length <= most) return text;
  const half = Math.floor((most - 1) / 2);
  return `${letters.slice(0, half).join("")}…${letters.slice(-half).join("")}`;
}

function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined).map((child) => (typeof child === "string" ? seen(child) : child)));
  return made;
}

function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

// Lets a name break after underscores, slashes and dots, but not within numbers.
function breakable(name) {
  return name.split(/(?<=\w[_/])(?=[\w{])|(?<=[a-z][.])(?=[a-z])/i).flatMap((part, place) => (place ? [el("wbr"), part] : [part]));
}

function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

// Formats a number as on the terminal (rcdiag/formats.py): three significant digits without an
// interval, near 1 up to four decimals.
const NOISE = 1e-12; // float64 rounding of a zero
const DECIMALS = 4;
const LARGE = 1e9; // from here on powers of ten
const exponent = (value) => Math.floor(Math.log10(Math.abs(value)));
function number(value) {
  if (value === null || value === undefined || value === "") return MISSING;
  if (typeof value === "string") return value;
  if (!Number.isFinite(value)) return String(value);
  const [size, distance] = [Math.abs(value), Math.abs(value - 1)];
  if (size >= 1e3 && size < LARGE) return Number(value.toPrecision(3)).toLocaleString("en-US");
  if (distance < NOISE || distance >= 0.1) return short(value, 3);
  return value.toFixed(Math.min(1 - exponent(distance), DECIMALS));
}

function short(value, digits) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < LARGE) return value.toLocaleString("en-US");
  if (size >= LARGE || size < 1e-4) return twoDigitPower(value.toExponential(digits - 1).replace(/\.?0+e/, "e"));
  const rounded = Number(value.toPrecision(digits));
  return size >= 1e3 ? rounded.toLocaleString("en-US") : String(rounded);
}

// Writes 5.4e-5 as 5.4e-05, like Python.
const twoDigitPower = (text) => text.replace(/e([+-])(?=\d$)/, (sign) => `${sign}0`);

function percent(value) {
  if (!Number.isFinite(value)) return number(value);
  // More digits if three would round to 100%.
  const digits = [3, 4, 5, 6].find((each) => Number((100 * value).toPrecision(each)) !== 100) ?? 3;
  return `${short(100 * value, digits)}%`;
}

// A number and its interval ("" without one), with as many digits as the interval justifies, like
// `measured` of rcdiag/formats.py.
function measured({ value, low, high }) {
  const ends = [low, high].filter((end) => typeof end === "number");
  if (typeof value !== "number" || !ends.length || low === high) return [number(value), ""];
  const width = ends.length === 2 ? Math.abs(high - low) : 2 * Math.abs(value - ends[0]);
  const largest = Math.max(...[value, ...ends].map(Math.abs));
  if (width < NOISE) return [number(value), ""];
  const most = Math.abs(largest - 1) < 0.1 ? DECIMALS : DECIMALS - exponent(largest);
  const decimals = Math.min(1 - exponent(width), most);
  const powers = Math.abs(value) < 1e-4 && largest < 1e-3;
  const endOf = (end, beyondZero) => {
    if (typeof end !== "number") return null;
    if (!beyondZero || Math.abs(end) < NOISE) return rounded(end, decimals, powers);
    const own = -exponent(end); // where 0 is outside the interval, its end is not written as 0
    return rounded(end, Math.max(decimals, own), powers || own > 6);
  };
  const [from, to] = [endOf(low, low > 0), endOf(high, high < 0)];
  const interval = from === null ? `up to ${to}` : to === null ? `from ${from}` : `${from} to ${to}`;
  const own = Math.abs(value) < NOISE ? decimals : Math.max(decimals, Math.min(-exponent(value), 6));
  return [rounded(value, own, powers), interval];
}

function rounded(value, decimals, powers) {
  const size = Math.abs(value);
  if (size < NOISE) return "0";
  if (powers || size >= LARGE) return twoDigitPower(value.toExponential(Math.max(exponent(value) + decimals, 0)));
  const tens = 10 ** Math.max(-decimals, 0); // round to tens or hundreds if the interval is wider than ones
  const places = Math.max(decimals, 0);
  const digits = { minimumFractionDigits: places, maximumFractionDigits: places, signDisplay: "negative" };
  return (tens > 1 ? Math.round(value / tens) * tens : value).toLocaleString("en-US", digits);
}

function withInterval(value) {
  if (value === null || typeof value !== "object") return number(value);
  const [written, interval] = measured(value);
  return interval ? `${written} (${interval})` : written;
}

// Documents and explanations are packed; each is unpacked once, when it is first needed.
const unpacked = new Map();
function textIn(source) {
  if (!unpacked.has(source)) unpacked.set(source, unpack(source.textContent));
  return unpacked.get(source);
}

// Five letters are four bytes; a shorter last group is padded with the largest digit.
const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%.()*+-;,=:?@^_`{|}~";
function bytesOf(letters) {
  const values = [];
  [...DIGITS].forEach((letter, value) => { values[letter.charCodeAt(0)] = value; });
  const bytes = new DataView(new ArrayBuffer(Math.ceil(letters.length / 5) * 4));
  for (let at = 0; at < letters.length; at += 5) {
    let value = 0;
    for (let place = at; place < at + 5; place += 1) value = value * 85 + (values[letters.charCodeAt(place)] ?? 84);
    bytes.setUint32((at / 5) * 4, value);
  }
  return new Uint8Array(bytes.buffer, 0, Math.floor((letters.length * 4) / 5));
}

async function unpack(letters) {
  const stream = new Blob([bytesOf(letters)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

// A document is stored in pieces: plain text, and tables whose columns are stored separately.
const joined = new Map();
function textOf(name) {
  const source = document.querySelector(`script.document[data-name="${CSS.escape(name)}"]`);
  if (!joined.has(name)) joined.set(name, textIn(source).then((text) => joinPieces(JSON.parse(text))));
  return joined.get(name);
}

function joinPieces({ pieces, columns }) {
  const rowsOf = (table) => {
    const cells = table.columns.map((place) => columns[place].split("\n"));
    return cells[0].map((_, row) => table.between.map((text, at) => text + (cells[at]?.[row] ?? "")).join("")).join(",");
  };
  return pieces.map((piece) => (typeof piece === "string" ? piece : rowsOf(piece))).join("");
}

const parsed = new Map();
function documentOf(name) {
  const known = [...document.querySelectorAll("script.document")].some((each) => each.dataset.name === name);
  if (!known) return Promise.resolve(null);
  if (!parsed.has(name)) parsed.set(name, textOf(name).then((text) => JSON.parse(text)));
  return parsed.get(name);
}

// Explanations of names, for popovers and the glossary.
const explained = new Set(page.names);
let meanings = null;
function allMeanings() {
  meanings ??= textIn(document.getElementById("terms")).then((text) => JSON.parse(text));
  return meanings;
}

// Runs a function once, when its part of the page is first visible, so that the first paint is fast.
function whenShown(place, act) {
  const watch = new ResizeObserver(() => {
    if (!place.clientWidth) return;
    watch.disconnect();
    act();
  });
  watch.observe(place);
}

function say(text) {
  document.getElementById("said").textContent = text;
}

async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = el("textarea", { class: "unseen" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const before = button.textContent;
  button.textContent = "copied";
  say("copied");
  setTimeout(() => { button.textContent = before; }, 1200);
}

function save(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = el("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
