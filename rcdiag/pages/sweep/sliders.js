"use strict";
// Sliders read the tables of the page: the row of a setting fills the numbers, moves the markers,
// sets the bars, and completes the trainer's configuration.

// A template has numbers marked by their place: "upper: \u0001" with arguments ["2.0"].
function completed(templates, entry) {
  if (!entry) return "this trainer has no such estimator";
  const [index, ...values] = entry.split(" ");
  const parts = templates[index].split("\u0001");
  return parts.map((part, place) => (place ? values[place - 1] : "") + part).join("");
}

function setUp(family) {
  const sliders = [...family.querySelectorAll("input[type=range]")];
  const table = family.querySelector("table.dense");
  const configs = JSON.parse(table.dataset.configs);
  const rows = [...table.tBodies[0].rows].map((row) => ({
    row,
    at: row.dataset.at.split(" ").map(Number),
  }));
  const values = family.querySelectorAll(".readout dd");
  const bars = family.querySelectorAll(".bar");
  const markers = family.querySelectorAll("svg .marker");
  const select = family.querySelector("select"); // none where the result holds no configurations
  let current = rows[0];

  function show() {
    const cells = [...current.row.cells].map((cell) => cell.textContent);
    sliders.forEach((slider, place) => {
      slider.value = current.at[place];
      const text = slider.dataset.texts.split(" ")[current.at[place]];
      slider.setAttribute("aria-valuetext", text);
      slider.parentElement.querySelector("output").textContent = text;
    });
    values.forEach((value, place) => {
      value.textContent = cells[sliders.length + place];
    });
    bars.forEach((bar, place) => {
      const share = cells[sliders.length + values.length + place];
      bar.style.height = share;
      bar.parentElement.querySelector("b").textContent = share;
    });
    const dots = current.row.dataset.dots.split(" ").map(Number);
    markers.forEach((marker, place) => {
      const x = dots[2 * place];
      const known = Number.isFinite(x) && Number.isFinite(dots[2 * place + 1]);
      marker.setAttribute("visibility", known ? "visible" : "hidden");
      if (known) marker.setAttribute("transform", `translate(${x} ${dots[2 * place + 1]})`);
    });
    if (select) {
      const entry = current.row.dataset.config.split("|")[select.selectedIndex];
      const templates = configs[select.selectedIndex];
      family.querySelector(".config").textContent = completed(templates, entry);
    }
    rows.forEach((each) => each.row.classList.toggle("current", each === current));
  }

  // The setting with the moved bound, and otherwise as near as the table has one.
  function moved(place) {
    const wanted = sliders.map((slider) => Number(slider.value));
    const away = (each) =>
      each.at.reduce((sum, at, other) => sum + Math.abs(at - wanted[other]), 0);
    const among = rows.filter((each) => each.at[place] === wanted[place]);
    current = among.reduce((best, each) => (away(each) < away(best) ? each : best));
    show();
  }

  sliders.forEach((slider, place) => slider.addEventListener("input", () => moved(place)));
  if (select) select.addEventListener("change", show);
  rows.forEach((each) =>
    each.row.addEventListener("click", () => {
      current = each;
      show();
    }),
  );
  current = rows[Number(family.dataset.start || Math.floor(rows.length / 2))];
  family.querySelector(".controls").hidden = false;
  family.querySelector(".rows").open = false;
  show();
}

document.querySelectorAll(".family").forEach(setUp);
