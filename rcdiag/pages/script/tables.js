// Tables: sorting by heading, a search field, and rows that open to details from the documents.
function orderOf(cell) {
  const text = cell.dataset.sort ?? cell.firstChild?.textContent.trim() ?? "";
  return { text, value: text === "" || Number.isNaN(Number(text)) ? null : Number(text) };
}

function compared(one, other, numbers) {
  if (!numbers) return one.text.localeCompare(other.text, "en", { numeric: true });
  if (one.value === null || other.value === null) return (one.value === null) - (other.value === null);
  return one.value - other.value;
}

// The rows of a table without group headings, which are removed once it is sorted or searched.
function ownRows(table) {
  return [...table.tBodies[0].rows].filter((row) => !row.classList.contains("group"));
}

function sortBy(table, place, button) {
  closeDetails(table);
  const head = table.tHead.rows[0].cells[place];
  const down = head.getAttribute("aria-sort") === "ascending";
  const numbers = head.classList.contains("n");
  [...table.tHead.rows[0].cells].forEach((each) => each.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  table.classList.add("ungrouped");
  const rows = ownRows(table).map((row) => ({ row, order: orderOf(row.cells[place]) }));
  rows.sort((a, b) => {
    const empty = numbers && (a.order.value === null || b.order.value === null);
    return compared(a.order, b.order, numbers) * (down && !empty ? -1 : 1);
  });
  table.tBodies[0].append(...rows.map(({ row }) => row));
  button.focus();
}

function setUpSorting(table) {
  [...table.tHead.rows[0].cells].forEach((head, place) => {
    const button = el("button", { type: "button", class: "sort", onclick: () => sortBy(table, place, button) }, head.textContent);
    const line = el("span", { class: "head" }, button); // keeps text and button on one line
    head.replaceChildren(line);
    const name = head.dataset.about;
    if (name && explained.has(name)) {
      line.append(el("button", { type: "button", class: "about-head", "aria-label": `What is ${head.textContent}?`, onclick: (event) => openTerm(name, event.currentTarget) }, "?"));
    }
  });
}

function setUpSearch(block, table) {
  const rows = ownRows(table);
  const count = el("span", { role: "status" });
  const field = el("input", { type: "search", "aria-label": `Search: ${block.querySelector(".wide").getAttribute("aria-label")}`, placeholder: "search" });
  field.addEventListener("input", () => {
    closeDetails(table);
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = rows.filter((row) => {
      const text = `${row.textContent} ${row.dataset.names || ""}`.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      return !row.hidden;
    });
    table.classList.toggle("searched", words.length > 0);
    count.textContent = words.length ? `${shown.length} of ${rows.length}` : "";
  });
  block.prepend(el("div", { class: "search" }, field, count));
}

// Details of a row: kind of table -> function from names to elements.
const details = {};

function closeDetails(table) {
  table.querySelectorAll("tr.detail").forEach((row) => row.remove());
  table.querySelectorAll("tr.chosen").forEach((row) => {
    row.classList.remove("chosen");
    row.querySelector(".toggle")?.setAttribute("aria-expanded", "false");
  });
}

async function openRow(block, row) {
  const table = row.closest("table");
  closeDetails(table);
  row.classList.add("chosen");
  const toggle = row.querySelector(".toggle");
  toggle?.setAttribute("aria-expanded", "true");
  const names = row.dataset.names.split(" ");
  const parts = await details[block.dataset.opens](names);
  if (!row.classList.contains("chosen")) return;
  const width = table.tHead.rows[0].cells.length;
  row.after(el("tr", { class: "detail" }, el("td", { colspan: width }, el("div", { class: "detail-parts" }, parts))));
  remember(`${row.closest(".tab").id}/${encodeURIComponent(row.dataset.key)}`);
}

// Highlights a row together with its point in the scatter plot.
function markPoint(row, on) {
  const names = row.dataset.names.split(" ");
  row.closest(".tab").querySelectorAll(".drawing circle[data-row]").forEach((point) => {
    if (names.includes(point.dataset.row)) point.classList.toggle("pointed", on);
  });
}

function setUpOpening(block, table) {
  for (const row of ownRows(table)) {
    row.dataset.open = "";
    for (const [event, on] of [["pointerenter", true], ["focusin", true], ["pointerleave", false], ["focusout", false]]) {
      row.addEventListener(event, () => markPoint(row, on));
    }
    const switched = () => (row.classList.contains("chosen") ? closeDetails(table) : openRow(block, row));
    const toggle = el("button", { type: "button", class: "toggle", "aria-expanded": "false", "aria-label": `Details of ${row.dataset.key}` }, "▸");
    row.cells[0].prepend(toggle);
    row.addEventListener("click", (event) => {
      if (!event.target.closest(".term, a, select, input") && (event.target === toggle || !getSelection().toString())) switched();
    });
  }
}

function rowOf(tab, key) {
  return [...document.querySelectorAll(`#${tab} tr[data-names]`)].find((row) => row.dataset.names.split(" ").includes(key));
}

function setUpTable(block) {
  const table = block.querySelector("table");
  setUpSorting(table);
  if (block.hasAttribute("data-search")) setUpSearch(block, table);
  if (block.dataset.opens) setUpOpening(block, table);
}

// A list of names and numbers; nested lists have headings.
function factsOf(title, facts) {
  const plain = Object.entries(facts).filter(([, value]) => value === null || typeof value !== "object" || "value" in value || Array.isArray(value));
  const nested = Object.entries(facts).filter(([, value]) => value !== null && typeof value === "object" && !("value" in value) && !Array.isArray(value));
  const list = plain.map(([name, value]) => [
    el("dt", {}, nameOf(name)),
    el("dd", {}, Array.isArray(value) ? value.map(number).join(", ") : withInterval(value)),
  ]);
  return [
    list.length ? el("section", {}, el("h4", {}, title), el("dl", { class: "facts-list" }, list.flat())) : null,
    ...nested.flatMap(([name, value]) => factsOf(`${title}: ${name}`, value)),
  ].filter(Boolean);
}

function nameOf(name) {
  return explained.has(name) ? termOf(name) : el("code", {}, breakable(name));
}

details.correction = async (names) => {
  const score = await documentOf("score");
  const sweep = await documentOf("sweep");
  const parts = [];
  for (const name of names) {
    const preset = score?.corrections[name];
    const candidate = sweep?.recommendation.candidates.find((each) => each.name === name);
    if (candidate) {
      const { refused, name: own, family, ...facts } = candidate;
      parts.push(...factsOf(`${own}, of the family ${family}`, facts));
      if (refused.length) parts.push(el("section", {}, el("h4", {}, "Why not"), el("ul", {}, refused.map((why) => el("li", {}, why)))));
    }
    if (preset) {
      parts.push(...factsOf(`Settings of ${name} (${preset.trainer})`, preset.config));
      if (name !== names.find((each) => score.corrections[each])) continue;
      parts.push(...factsOf("What is so", preset.actual));
      parts.push(...factsOf(`What ${preset.trainer} logs`, preset.metrics));
      if (preset.in_float32) parts.push(...factsOf("In float32", preset.in_float32));
    }
  }
  return parts;
};

details.update = async (names) => {
  const replay = await documentOf("replay");
  const preset = replay.presets[names[0]];
  const rules = preset.health.rules.map((rule) => el("li", { class: rule.level }, el("span", { class: "tag" }, rule.level), ` ${rule.message}`, el("small", {}, ` ${rule.source}`)));
  const parts = [el("section", {}, el("h4", {}, `Health: ${preset.health.verdict}`), el("ul", {}, rules))];
  if (preset.health.not_judged.length) {
    parts.push(el("section", {}, el("h4", {}, "Not judged"), el("ul", {}, preset.health.not_judged.map((why) => el("li", {}, why)))));
  }
  parts.push(...factsOf(`What ${replay.trainer} logs`, preset.metrics));
  parts.push(...factsOf("Pull on tokens", preset.coefficients));
  if (preset.gradient) {
    const { sequence_norms, ...gradient } = preset.gradient;
    parts.push(...factsOf("Gradient", gradient));
  }
  if (preset.after_step) parts.push(...factsOf("After the step", preset.after_step));
  parts.push(...factsOf("Settings", preset.config));
  return parts;
};

openers.correction = (row) => showRow("corrections", row[0]);
openers.update = (row) => showRow("update", row[0]);

async function showRow(tab, key) {
  const row = rowOf(tab, key);
  if (!row) return;
  row.hidden = false;
  await openRow(row.closest("[data-opens]"), row);
  row.scrollIntoView({ block: "center" });
  row.querySelector(".toggle")?.focus({ preventScroll: true });
}
