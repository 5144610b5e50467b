// Scales place numbers and names between 0 and 1, and write their ticks.
const TEXT = 6.6; // width of a letter

function known(values) {
  return values.filter((value) => typeof value === "number" && Number.isFinite(value));
}

// A scale returns positions between 0 and 1, and ticks with labels.
function makeScale(axis, values, most = 5) {
  const some = known(values);
  if (axis.scale === "names") return namesScale(axis);
  if (axis.scale === "log") return logScale(axis, some.filter((value) => value > 0));
  if (axis.scale === "symlog") return symlogScale(axis, some);
  return linearScale(axis, some, most);
}

// A tick has little room: 5e-5, not 5e-05.
function written(axis, value) {
  return axis.percent ? percent(value) : number(value).replace(/e\+?(-?)0*/, "e$1");
}

// A slot for each name, in order; a number also finds the name that has the same value.
function slotsOf(axis) {
  return new Map((axis.names ?? []).flatMap((name, place) => [[name, place], [Number(name), place]]));
}

function namesScale(axis) {
  const [slots, step] = [slotsOf(axis), 1 / Math.max(axis.names.length, 1)];
  return { place: (name) => (slots.get(name) + 0.5) * step, step, ticks: axis.names, text: String };
}

function linearScale(axis, values, most) {
  let low = axis.start ?? Math.min(...values, Infinity);
  let high = axis.end ?? Math.max(...values, -Infinity);
  if (!(high > low)) [low, high] = Number.isFinite(low) ? [low - (low ? Math.abs(low) / 2 : 0.5), low + (low ? Math.abs(low) / 2 : 0.5)] : [0, 1];
  const pad = (high - low) * 0.04;
  if (axis.start === undefined) low -= pad;
  if (axis.end === undefined) high += pad;
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((each) => each >= rough);
  const ticks = [];
  for (let place = Math.ceil(low / step); place * step <= high + step * 1e-9; place += 1) {
    ticks.push(Number((place * step).toPrecision(10)) || 0);
  }
  const shown = axis.whole ? ticks.filter(Number.isInteger) : ticks;
  // Ticks near 1 are round numbers too: 0.995, not 0.9950 beside 0.99.
  const text = (value) => (!axis.percent && Math.abs(value - 1) < 0.1 ? String(value) : written(axis, value));
  return { place: (value) => (value - low) / (high - low), ticks: shown, text };
}

function logScale(axis, values) {
  let low = Math.log10(axis.start ?? (values.length ? Math.min(...values) : 0.1));
  let high = Math.log10(axis.end ?? (values.length ? Math.max(...values) : 1));
  if (high - low < 0.3) [low, high] = [low - 0.3, high + 0.3];
  const pad = (high - low) * 0.03;
  [low, high] = [low - pad, high + pad];
  const whole = [];
  for (let power = Math.ceil(low); power <= high; power += 1) whole.push(power);
  let ticks = whole.map((power) => 10 ** power);
  if (whole.length > 7) ticks = ticks.filter((_, place) => place % 2 === (ticks.length + 1) % 2);
  if (whole.length < 3) {
    const powers = [];
    for (let power = Math.floor(low); power <= high; power += 1) powers.push(10 ** power);
    const within = (steps) => powers.flatMap((power) => steps.map((times) => times * power)).filter((value) => Math.log10(value) >= low && Math.log10(value) <= high);
    ticks = within([1, 2, 5]);
    if (ticks.length < 3) ticks = within([1, 1.5, 2, 3, 5, 7]);
  }
  return {
    place: (value) => (value > 0 ? (Math.log10(value) - low) / (high - low) : 0),
    ticks: ticks.map((value) => Number(value.toPrecision(6))),
    text: oneNotation(axis, ticks),
  };
}

// A power of ten with superscript characters.
function raised(power) {
  return String(power).replace(/./g, (digit) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(digit)]);
}

// One notation for all ticks of powers of ten: 0.001 and 1,000, or 10⁻⁵ and 10⁶ if any is far from 1.
function oneNotation(axis, ticks) {
  const power = (value) => Math.log10(Math.abs(value));
  const powers = ticks.filter((value) => value !== 0).map(power);
  const far = powers.some((each) => each < -4.5 || each > 5.5) && powers.every((each) => Math.abs(each - Math.round(each)) < 1e-6);
  if (axis.percent || !far) return (value) => written(axis, value);
  return (value) => (value ? `${value < 0 ? "−" : ""}10${raised(Math.round(power(value)))}` : "0");
}

function symlogScale(axis, values) {
  const least = axis.threshold || 1e-6;
  const move = (value) => Math.sign(value) * Math.log10(1 + Math.abs(value) / least);
  let low = move(axis.start ?? Math.min(0, ...values));
  let high = move(axis.end ?? Math.max(0, ...values));
  if (high === low) high = 1;
  const pad = (high - low) * 0.06;
  [low, high] = [low - pad, high + pad];
  const ticks = [0];
  for (const sign of [1, -1]) {
    const most = sign > 0 ? high : -low;
    for (let power = Math.ceil(Math.log10(least)); move(10 ** power) <= most; power += 1) {
      ticks.push(sign * 10 ** power);
    }
  }
  const crowded = ticks.length > 9;
  const tick = oneNotation(axis, ticks);
  return {
    place: (value) => (move(value) - low) / (high - low),
    ticks: crowded ? ticks.filter((value) => value === 0 || Math.round(Math.log10(Math.abs(value))) % 2 === 0) : ticks,
    text: tick,
  };
}

function fitted(text, width) {
  const most = Math.max(Math.floor(width / TEXT), 4);
  // A shortened text may contain wide letters.
  return text.length <= most ? text : `${text.slice(0, Math.max(Math.floor(width / 8), 4))}…`;
}

function widest(scale) {
  return Math.max(...scale.ticks.map((tick) => extent(scale.text(tick))), 2 * TEXT) + 10;
}

// The width of a text; a per cent sign is wider than a digit.
function extent(text) {
  return text.length * TEXT + (text.endsWith("%") ? 4 : 0);
}
