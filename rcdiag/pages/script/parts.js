// Popovers, copying, sliders, pairs, glossary and downloads.
const popover = document.getElementById("popover");
let asked = null; // the element that opened the popover

function termOf(name) {
  const mark = el("code", { class: "term" }, breakable(name));
  setUpTerm(mark);
  return mark;
}

function setUpTerm(mark) {
  const name = mark.dataset.term ?? mark.textContent;
  if (!explained.has(name)) return;
  mark.setAttribute("role", "button");
  mark.setAttribute("tabindex", "0");
  mark.setAttribute("aria-haspopup", "dialog");
  mark.addEventListener("click", (event) => {
    event.stopPropagation();
    openTerm(name, mark);
  });
  mark.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    event.stopPropagation();
    openTerm(name, mark);
  });
}

async function explanation(name) {
  const { what, ...more } = (await allMeanings())[name];
  return [el("p", {}, el("b", {}, name), ` ${what}`), el("dl", {}, Object.entries(more).flatMap(([part, text]) => [el("dt", {}, part), el("dd", {}, text)]))];
}

async function openTerm(name, place) {
  if (asked === place && !popover.hidden) return closeTerm();
  asked = place;
  const parts = await explanation(name);
  if (asked !== place) return undefined;
  popover.replaceChildren(...parts);
  popover.hidden = false;
  const box = place.getBoundingClientRect();
  const left = Math.max(Math.min(box.left, innerWidth - popover.offsetWidth - 16), 16);
  const below = box.bottom + popover.offsetHeight + 12 < innerHeight || box.top < popover.offsetHeight + 12;
  popover.style.left = `${left + scrollX}px`;
  popover.style.top = `${scrollY + (below ? box.bottom + 6 : box.top - popover.offsetHeight - 6)}px`;
  popover.focus({ preventScroll: true });
  return undefined;
}

function closeTerm() {
  if (popover.hidden) return;
  const inside = popover.contains(document.activeElement);
  popover.hidden = true;
  if (inside) asked?.focus({ preventScroll: true });
  asked = null;
}

document.addEventListener("keydown", (event) => { if (event.key === "Escape") closeTerm(); });
document.addEventListener("pointerdown", (event) => { if (!popover.contains(event.target) && event.target !== asked) closeTerm(); });

function setUpCopy(button) {
  button.addEventListener("click", () => {
    const source = button.parentElement.querySelector("code, pre");
    copyText(source.textContent, button);
  });
}

// Formats a number of a swept setting: shares as percentages, quarters by length side by side.
function ofSetting(row, name) {
  const value = row[name];
  if (Array.isArray(value)) return value.map(percent).join(", ");
  return name.endsWith("_share") ? percent(value.value) : withInterval(value);
}

// The charts of a part of the page, by name.
async function chartsIn(part) {
  return JSON.parse(await textIn(part.querySelector("script.charts")));
}

// A template has placeholders for the values of an entry, by index: "upper: \u0001".
function completed(written, index) {
  const entry = written.entries[index];
  if (!entry) return "this trainer has no such estimator";
  const [template, ...values] = entry.split(" ");
  const parts = written.templates[template].split("\u0001");
  return parts.map((part, place) => (place ? values[place - 1] : "") + part).join("");
}

// The chart of a family, with the setting of the sliders highlighted.
function atSetting(chart, place, free) {
  const at = chart.rows[place][1];
  const [first, ...others] = chart.panels;
  const panels = free.size > 1 ? chart.panels : [{ ...first, rules: [{ at, label: short(at, 4) }] }, ...others];
  return { ...chart, panels, strong: chart.rows[place][0] };
}

// Sliders over the sweep's document: a setting's row gives the numbers and the configuration.
function setUpSliders(block) {
  const start = JSON.parse(block.dataset.start);
  const select = block.querySelector("select.family");
  const trainers = block.querySelector("select.trainer");
  const config = block.querySelector(".config");
  const readout = block.querySelector(".readout");
  const ranges = block.querySelector(".ranges");
  const drawing = block.querySelector(".curves");
  drawing.classList.add("drawing");
  const below = el("div");
  drawing.after(below);
  let [family, chart, free, current, inputs] = [null, null, null, 0, []];

  function show() {
    const row = family.rows[current];
    inputs.forEach(({ key, input, output }) => {
      const place = free.get(key).indexOf(row.bounds[key]);
      input.value = place;
      const text = short(row.bounds[key], 6);
      input.setAttribute("aria-valuetext", text);
      output.textContent = text;
    });
    readout.querySelectorAll("dd").forEach((place) => { place.textContent = ofSetting(row, place.dataset.number); });
    const written = family.configurations[trainers.value];
    config.textContent = written ? completed(written, current) : "this result holds no configuration to paste";
    drawing.setAttribute("aria-label", `${family.title} over its bounds`);
    drawChart(atSetting(chart, current, free), drawing);
  }

  // The setting with the moved bound that is otherwise nearest to the current one.
  function moved(place) {
    const wanted = inputs.map(({ input }) => Number(input.value));
    const at = family.rows.map((row) => inputs.map(({ key }) => free.get(key).indexOf(row.bounds[key])));
    const away = (index) => at[index].reduce((sum, value, other) => sum + Math.abs(value - wanted[other]), 0);
    const among = at.map((_, index) => index).filter((index) => at[index][place] === wanted[place]);
    current = among.reduce((best, index) => (away(index) < away(best) ? index : best));
    show();
  }

  async function choose(name, row) {
    const sweep = await documentOf("sweep");
    family = sweep.families[name];
    const { charts, numbers } = await chartsIn(block);
    // Independent bounds are the columns between a setting's name and its numbers.
    const keys = charts[name].columns.slice(1, -Object.keys(numbers).length);
    free = new Map(keys.map((key) => [key, [...new Set(family.rows.map((row) => row.bounds[key]))].sort((a, b) => a - b)]));
    const rowOf = (row) => [
      keys.map((key) => `${key} ${short(row.bounds[key], 4)}`).join(", "),
      ...keys.map((key) => row.bounds[key]),
      ...Object.values(numbers).map((path) => path.split(".").reduce((part, field) => part[field], row)),
    ];
    chart = { ...charts[name], rows: family.rows.map(rowOf) };
    block.querySelector(".family-about").textContent = family.about;
    inputs = [...free].map(([key, values], place) => {
      const input = el("input", { type: "range", min: 0, max: values.length - 1, step: 1, "aria-label": `${key} bound of ${family.title}`, oninput: () => moved(place) });
      return { key, input, output: el("output") };
    });
    ranges.replaceChildren(...inputs.map(({ key, input, output }) => el("label", {}, `${key} `, output, input)));
    const chosen = trainers.value;
    trainers.replaceChildren(...Object.keys(family.configurations).map((trainer) => el("option", { selected: trainer === chosen }, trainer)));
    trainers.parentElement.hidden = !trainers.options.length;
    current = row ?? Math.floor(family.rows.length / 2);
    below.replaceChildren(toolsOf(chart, family.title));
    show();
  }

  select.addEventListener("change", () => choose(select.value));
  trainers.addEventListener("change", show);
  whenShown(block, () => choose(start.family, start.row));
  new ResizeObserver(() => { if (family && drawing.clientWidth) show(); }).observe(block);
}

// A cell of the triangle opens the numbers of its pair in both directions; one pair is always open.
function setUpPairs(place) {
  const pairs = JSON.parse(place.parentElement.querySelector("script.pairs").textContent);
  const show = async ([first, second]) => {
    place.dataset.pair = `${first}->${second}`;
    const compare = await documentOf("compare");
    const pair = pairs[`${first}->${second}`];
    const [there, back] = [compare.pairs[`${first}->${second}`], compare.pairs[`${second}->${first}`]];
    const cell = (value) => {
      const [written, interval] = value ? measured(value) : ["", ""];
      return el("td", { class: `n ${value?.level || ""}` }, written, interval ? el("small", {}, interval) : null);
    };
    const rows = Object.keys(there.mismatch).map((name) => el("tr", {}, el("th", { scope: "row" }, nameOf(name)), cell(there.mismatch[name]), cell(back?.mismatch[name])));
    const heads = ["Metric", `${first} → ${second}`, `${second} → ${first}`].map((head, at) => el("th", { scope: "col", class: at ? "n" : null }, head));
    const table = el("table", {}, el("thead", {}, el("tr", {}, heads)), el("tbody", {}, rows));
    const title = `Mismatch of ${first} and ${second} by probability`;
    const drawing = el("div", { class: "drawing", role: "group", "aria-label": title });
    const charts = await chartsIn(place.parentElement);
    const chart = charts[`${first}->${second}`] ?? charts[`${second}->${first}`] ?? null;
    place.replaceChildren(
      el("h4", { tabindex: "-1" }, `${first} and ${second}${there.at_floor ? ": at the noise floor" : ""}`),
      drawing,
      ...(chart ? [toolsOf(chart, title)] : []),
      ...pair.means.map((sentence) => el("p", { class: "soft" }, sentence)),
      el("div", { class: "wide values", tabindex: "0", role: "region", "aria-label": `Mismatch of ${first} and ${second}` }, table),
    );
    if (chart) drawFitting(chart, drawing);
  };
  openers.pair = async ([first, second]) => {
    await show([first, second]);
    place.querySelector("h4").focus();
    remember(`ladder/${encodeURIComponent(`${first}->${second}`)}`);
  };
  const start = pairs[place.dataset.start];
  whenShown(place, () => { if (!place.dataset.pair) show([start.first, start.second]); });
}

function setUpGlossary(place) {
  whenShown(place, async () => {
    const known = await allMeanings();
    const names = [...explained].sort((a, b) => a.localeCompare(b, "en"));
    const field = el("input", { type: "search", "aria-label": "Search the glossary", placeholder: "search" });
    const entries = names.map((name) => {
      const { what, formula } = known[name];
      return { text: `${name} ${what}`.toLowerCase(), parts: [el("dt", {}, el("code", {}, name)), el("dd", {}, what, formula ? el("small", {}, ` ${formula}`) : null)] };
    });
    field.addEventListener("input", () => {
      for (const { text, parts } of entries) parts.forEach((part) => { part.hidden = !text.includes(field.value.toLowerCase()); });
    });
    place.append(el("div", { class: "search" }, field), el("dl", {}, entries.flatMap(({ parts }) => parts)));
  });
}

function setUpDownload(button) {
  button.addEventListener("click", async () => save(`${button.dataset.document}.json`, await textOf(button.dataset.document), "application/json"));
}
