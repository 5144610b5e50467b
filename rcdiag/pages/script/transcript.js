// The sequence reader: list, coloured tokens, a panel for one token, keyboard, minimap.
const SHADES = [0.01, 0.1, 0.5, 2];
const FACTOR = Math.log(2);
const NEAR = [8, 5]; // context in the panel: tokens before and after the selected one
const WHOLE = 1500; // longer texts are cut into parts
const SETTLED = 6; // frames until visible parts have their final heights
const PART = [150, 400]; // fewest and most tokens of a part

function shadeOf(value) {
  const size = SHADES.filter((bound) => Math.abs(value) > bound).length;
  return size ? `${value > 0 ? "up" : "down"}${size}` : "";
}

// All sequences of a result, each with why it is on the page. Documents of earlier versions hold
// only the worst ones.
function sequencesOf(score) {
  const marked = (some, why) => (some ?? []).map((each) => ({ ...each, why }));
  return [...marked(score.worst_sequences, ""), ...marked(score.named_sequences, "asked for"), ...marked(score.drawn_sequences, "drawn at random")];
}

function orderOfSequences(sequences, by) {
  if (by === "random") return [...sequences].sort((a, b) => (b.why === "drawn at random") - (a.why === "drawn at random"));
  const k3 = (each) => each.log_ratio.reduce((sum, value) => sum + Math.expm1(value) - value, 0);
  const largest = (each) => each.log_ratio.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  const measures = { sum: (each) => Math.abs(each.log_ratio_sum), token: largest, k3 };
  return [...sequences].sort((a, b) => measures[by](b) - measures[by](a));
}

function shownToken(texts, ids, place) {
  return texts ? texts[place] : `${ids[place]} `;
}

// Gaps of tokens that are not stored: index of the next stored token -> their number and the sum of
// their log-ratios. Documents of earlier versions hold only the first tokens.
function gapsOf(sequence) {
  const stored = sequence.log_ratio.length;
  const rest = sequence.num_tokens - stored;
  const gaps = sequence.gaps ?? (rest > 0 ? [[stored, rest, 0]] : []);
  return new Map(gaps.map(([place, tokens, sum]) => [place, { tokens, sum }]));
}

// The tokens of a sequence in the order of the response: sampled ones, masked ones, and
// placeholders for tokens that are not stored.
function flowOf(sequence, gaps) {
  const context = sequence.context;
  const stored = sequence.positions.length;
  const cut = (place) => (gaps.has(place) ? [{ place: null, cut: true, position: (sequence.positions[place] ?? Infinity) - 0.5, text: ` … (${number(gaps.get(place).tokens)} tokens) … ` }] : []);
  const sampled = sequence.positions.flatMap((position, place) => [...cut(place), { position, place, text: shownToken(sequence.texts, sequence.token_ids, place) }]);
  const last = gaps.has(stored) ? sequence.positions.at(-1) : Infinity;
  const masked = (context?.masked_positions ?? [])
    .map((position, place) => ({ position, place: null, text: shownToken(context.masked_texts, context.masked_ids, place) }))
    .filter(({ position }) => position < last);
  return [...sampled, ...masked, ...cut(stored)].sort((a, b) => a.position - b.position);
}

// The effect of a correction on a token: its weight, and whether it stays in the loss.
function weightOf(made, place, logRatio) {
  const other = made.changed.find(([at]) => at === place);
  const weight = other ? other[1] : made.weight ?? Math.exp(logRatio);
  const rejected = made.rejected.some(([first, last]) => place >= first && place <= last);
  return { weight, rejected, changed: Boolean(other) };
}

function factList(facts) {
  return Object.entries(facts).flatMap(([name, fact]) => [el("dt", {}, name), el("dd", {}, number(fact))]);
}

function setUpTranscript(block) {
  const list = block.querySelector("ol");
  const order = block.querySelector(".order");
  const text = block.querySelector(".tokens");
  const stored = block.querySelector(".as-stored");
  const panel = block.querySelector(".token-facts");
  const weighing = block.querySelector(".token-weight");
  const preset = block.querySelector(".preset");
  const map = block.querySelector(".minimap");
  const legend = block.querySelector(".legend");
  const missing = el("p", { class: "warning banner", role: "status", hidden: true }); // shown if the address asks for a token or row that is not here
  block.before(missing);
  let [score, sequences, sequence, gaps, flow, flowAt, spans, at, sums, numbers] = [null, [], null, new Map(), [], [], [], 0, [], []];
  const needle = svg("rect", { class: "map-at", width: 2, y: 0, height: 22 });

  function alternativesOf(place) {
    const some = (sequence.context?.alternatives ?? []).filter((each) => each.place === place);
    return some.map((each) => el("p", { class: "soft" }, `${each.likely_under} had: `, each.token_ids.map((id, rank) => `${each.texts ? `“${shortened(each.texts[rank])}”` : id} ${percent(Math.exp(each.token_log_probs[rank]))}`).join(", ")));
  }

  function neighbours(place) {
    const here = flowAt[place];
    const words = (from, to) => flow.slice(Math.max(from, 0), to).map((each) => shortened(each.text)).join("");
    return el("p", { class: "near" }, words(here - NEAR[0], here), el("b", {}, shortened(flow[here].text)), words(here + 1, here + 1 + NEAR[1]));
  }

  function showWeight() {
    const made = sequence.context?.token_weights?.[preset.value];
    if (!made) return weighing.replaceChildren();
    const { weight, rejected, changed } = weightOf(made, at, sequence.log_ratio[at]);
    return weighing.replaceChildren(...factList({ [`weight${changed ? ", not the ratio" : ""}`]: weight, "in the loss": rejected ? "no, rejected" : "yes" }));
  }

  // Scrolls only within the text, not the page.
  function reveal(frames) {
    const [span, frameBox] = [spans[at].getBoundingClientRect(), text.getBoundingClientRect()];
    if (span.top < frameBox.top + 4) text.scrollTop += span.top - frameBox.top - 30;
    else if (span.bottom > frameBox.bottom - 4) text.scrollTop += span.bottom - frameBox.bottom + 30;
    if (frames) requestAnimationFrame(() => reveal(frames - 1));
  }

  function showToken(index, keep) {
    spans[at]?.classList.remove("at");
    at = Math.min(Math.max(index, 0), spans.length - 1);
    spans[at].classList.add("at");
    const value = sequence.log_ratio[at];
    const behavior = sequence.behavior_log_probs?.[at];
    const facts = {
      row: sequence.row,
      position: sequence.positions[at],
      "token id": sequence.token_ids[at],
      ...(behavior === undefined ? {} : {
        [`probability, ${score.behavior}`]: Math.exp(behavior),
        [`probability, ${score.target}`]: Math.exp(behavior + value),
      }),
      "log-ratio": value,
      ratio: Math.exp(value),
      "sum so far": sums[at],
    };
    panel.replaceChildren(
      el("h4", {}, sequence.texts ? `“${shortened(sequence.texts[at])}”` : `token ${sequence.token_ids[at]}`),
      neighbours(at),
      el("dl", { class: "facts-list" }, factList(facts)),
      el("p", { class: "soft" }, `sampled token ${number(numbers[at])} of ${number(sequence.num_tokens)}${gaps.size ? `; this page holds ${number(sequence.log_ratio.length)} of them: the first, and those around the largest |log-ratio|` : ""}`),
      ...alternativesOf(at),
    );
    showWeight();
    moveNeedle();
    // Parts get their true heights when they become visible, which moves everything below them.
    reveal(spans[at].parentElement === text ? 0 : SETTLED);
    if (keep) remember(`tokens/${sequence.row}/${sequence.positions[at]}`);
  }

  // One path for each colour; of tokens that share a pixel the largest is drawn.
  function drawMap() {
    const width = map.clientWidth || 300;
    const step = width / flow.length;
    const most = sequence.log_ratio.reduce((largest, value) => Math.max(largest, Math.abs(value)), 1e-9);
    const columns = new Map();
    flow.forEach(({ place, cut }, index) => {
      const at = step < 1 ? Math.floor(index * step) : index * step;
      const column = columns.get(at) ?? { up: 0, down: 0, context: false, cut: false };
      columns.set(at, column);
      if (place === null) column[cut ? "cut" : "context"] = true;
      else if (sequence.log_ratio[place] > 0) column.up = Math.max(column.up, sequence.log_ratio[place]);
      else column.down = Math.max(column.down, -sequence.log_ratio[place]);
    });
    const shapes = { "map-context": "", "map-cut": "", "bar first": "", "bar second": "" };
    const box = (x, y, wide, high) => `M${x.toFixed(1)} ${y.toFixed(1)}h${wide.toFixed(1)}v${high.toFixed(1)}h${(-wide).toFixed(1)}z`;
    const high = (value) => 10 * Math.sqrt(value / most);
    columns.forEach(({ up, down, context, cut }, x) => {
      const wide = Math.max(step, 1);
      if (context) shapes["map-context"] += box(x, 0, wide, 22);
      if (cut) shapes["map-cut"] += box(x, 8, Math.max(step, 2), 6);
      if (up >= SHADES[0]) shapes["bar first"] += box(x, 11 - high(up), wide, high(up));
      if (down >= SHADES[0]) shapes["bar second"] += box(x, 11, wide, high(down));
    });
    map.setAttribute("viewBox", `0 0 ${width} 22`);
    map.replaceChildren(...Object.entries(shapes).map(([name, d]) => svg("path", { class: name, d })), needle);
    moveNeedle();
  }

  function moveNeedle() {
    const width = map.viewBox.baseVal.width || 300;
    needle.setAttribute("x", (width * (flowAt[at] + 0.5)) / flow.length - 1);
  }

  // Long texts are drawn in parts, of which the browser lays out only visible ones; a part ends at
  // a line break of the text if there is one.
  function inParts(made) {
    if (made.length <= WHOLE) return made;
    const parts = [[]];
    made.forEach((span) => {
      const last = parts.at(-1);
      last.push(span);
      if (last.length >= PART[1] || (last.length >= PART[0] && span.textContent.endsWith("\n"))) parts.push([]);
    });
    return parts.filter((spans) => spans.length).map((spans) => el("span", { class: "part" }, spans));
  }

  function promptOf({ context }) {
    if (!context?.prompt_ids?.length) return [];
    const left = context.prompt_length - context.prompt_ids.length;
    return [
      left ? el("span", { class: "cut" }, `(${left} tokens of the prompt before) … `) : null,
      el("span", { class: "context prompt" }, context.prompt_ids.map((_, place) => shownToken(context.prompt_texts, context.prompt_ids, place)).join("")),
      "\n",
    ];
  }

  function showStored({ context }) {
    const parts = [["Prompt", context?.prompt], ["Response", context?.response]].filter(([, words]) => words);
    stored.replaceChildren(...parts.map(([name, words]) => el("details", { open: true }, el("summary", {}, `${name} as the table holds it`), el("p", { tabindex: "0", role: "region", "aria-label": `${name} as the table holds it` }, words))));
  }

  // Says that a token or row is not on the page, and for a row how to get it.
  function tellMissing(words, row) {
    const command = row === undefined ? null : block.dataset.more.replace(/(--sequence |sequences=\[)ROW/, (_, option) => `${option}${row}`);
    const copy = el("button", { type: "button", class: "copy", onclick: () => copyText(command, copy) }, "copy");
    missing.replaceChildren(words, ...(command ? [" To have it there: ", el("span", { class: "command" }, el("code", {}, command), copy)] : []));
    missing.hidden = !words;
  }

  function missingToken(position) {
    const whole = !gaps.size;
    if (whole) return [`Row ${sequence.row} has no sampled token at position ${position}: this is its largest |log-ratio|.`];
    return [`The page does not hold position ${position} of row ${sequence.row}: this is the largest |log-ratio| of that row.`, sequence.row];
  }

  function missingRow(row, rows) {
    if (!Number.isInteger(row) || row < 0 || row >= rows) return [`The table has no such row: its ${rows} rows are counted from 0.`];
    return [`Row ${row} is not among the sequences that this page holds.`, row];
  }

  function open(chosen, position, keep) {
    sequence = chosen;
    gaps = gapsOf(sequence);
    let [sum, count] = [0, 0];
    [sums, numbers] = [[], []];
    sequence.log_ratio.forEach((value, place) => {
      sum += value + (gaps.get(place)?.sum ?? 0);
      count += 1 + (gaps.get(place)?.tokens ?? 0);
      sums.push(sum);
      numbers.push(count);
    });
    flow = flowOf(sequence, gaps);
    spans = [];
    at = 0;
    const made = flow.map(({ place, text: words, cut }) => {
      if (place === null) return el("span", { class: cut ? "cut" : "context" }, words);
      spans[place] = el("span", { class: shadeOf(sequence.log_ratio[place]) || null, "data-place": place }, words);
      return spans[place];
    });
    flowAt = [];
    flow.forEach(({ place }, index) => { if (place !== null) flowAt[place] = index; });
    text.replaceChildren(...[...promptOf(sequence), ...inParts(made)].filter(Boolean));
    drawMap();
    showStored(sequence);
    [...list.querySelectorAll("button")].forEach((button) => {
      if (button.dataset.row === String(sequence.row)) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
    });
    const worst = sequence.log_ratio.reduce((largest, value, place) => (Math.abs(value) > Math.abs(sequence.log_ratio[largest]) ? place : largest), 0);
    const wanted = sequence.positions.indexOf(position);
    tellMissing(...(position !== undefined && wanted < 0 ? missingToken(position) : [""]));
    showToken(wanted < 0 ? worst : wanted, keep);
  }

  function fillList() {
    list.replaceChildren(...orderOfSequences(sequences, order.value).map((each) => el("li", {},
      el("button", { type: "button", "data-row": each.row, onclick: () => open(each, undefined, true) }, `${shortened(String(each.sample_id ?? `row ${each.row}`), 60)} `,
        el("small", {}, `${each.reward === null ? "" : `reward ${number(each.reward)}, `}sum ${number(each.log_ratio_sum)}${each.why ? `; ${each.why}` : ""}`)))));
  }

  function fillPresets() {
    const names = Object.keys(sequences.find((each) => each.context)?.context.token_weights ?? {});
    const first = names.includes(block.dataset.preset) ? block.dataset.preset : names[0];
    preset.replaceChildren(...names.map((name) => el("option", { selected: name === first }, name)));
    preset.parentElement.hidden = !names.length;
  }

  function next(step, far) {
    if (!far) return showToken(at + step, true);
    for (let place = at + step; place >= 0 && place < spans.length; place += step) {
      if (Math.abs(sequence.log_ratio[place]) > FACTOR) return showToken(place, true);
    }
    return say("no further token beyond a factor of 2");
  }

  function nextSequence(step) {
    const ordered = orderOfSequences(sequences, order.value);
    const chosen = ordered[ordered.indexOf(sequence) + step];
    if (chosen) open(chosen, undefined, true);
  }

  const KEYS = {
    ArrowRight: (event) => next(1, event.shiftKey),
    ArrowLeft: (event) => next(-1, event.shiftKey),
    Home: () => showToken(0, true),
    End: () => showToken(spans.length - 1, true),
    n: () => nextSequence(1),
    p: () => nextSequence(-1),
  };

  text.addEventListener("click", (event) => {
    const place = event.target.dataset.place;
    if (place !== undefined) showToken(Number(place), true);
  });
  text.addEventListener("pointerover", (event) => {
    const place = event.target.dataset.place;
    if (place !== undefined && event.pointerType === "mouse") showToken(Number(place), false);
  });
  text.addEventListener("keydown", (event) => {
    const act = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act(event);
  });
  map.addEventListener("click", (event) => {
    const box = map.getBoundingClientRect();
    const here = Math.floor(((event.clientX - box.left) / box.width) * flow.length);
    const place = flow.slice(here).find((each) => each.place !== null)?.place;
    if (place !== undefined) showToken(place, true);
  });
  preset.addEventListener("change", showWeight);
  order.addEventListener("change", () => { fillList(); open(orderOfSequences(sequences, order.value)[0]); });
  new ResizeObserver(() => { if (sequence && map.clientWidth) drawMap(); }).observe(map);

  async function begin() {
    score = await documentOf("score");
    sequences = sequencesOf(score);
    legend.replaceChildren(
      el("span", { class: "up2" }, `more likely under ${score.target}`), " ",
      el("span", { class: "down2" }, `more likely under ${score.behavior}`),
      `: four strengths, from |log-ratio| ${SHADES.join(", ")} nats on. Grey: tokens that the policy did not sample, such as those of prompt and tools. Keys: ← → next token, with Shift the next beyond a factor of 2; Home, End; N, P next and previous sequence.`,
    );
    fillList();
    fillPresets();
    open(orderOfSequences(sequences, "sum")[0]);
  }

  let ready = null;
  const begun = () => { ready ??= begin(); return ready; };
  whenShown(block, begun);
  openers.token = async (row, position) => {
    await begun();
    const chosen = sequences.find((each) => each.row === row);
    if (chosen) open(chosen, position, false);
    else tellMissing(...missingRow(row, score.provenance.rows ?? Infinity));
    return block.closest("section").scrollIntoView({ block: "start" });
  };
}
