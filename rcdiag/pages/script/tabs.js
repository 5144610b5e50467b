// The address selects the tab: #tab, #tab/row, or the name of a section.
const tabs = [...document.querySelectorAll(".tab")];
const links = [...document.querySelectorAll("nav a")];

function showTab(tab) {
  tabs.forEach((each) => each.classList.toggle("on", each === tab));
  links.forEach((link) => {
    const here = link.hash === `#${tab.id}`;
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
    if (here) link.scrollIntoView({ block: "nearest", inline: "nearest" });
  });
}

function remember(address) {
  history.replaceState(null, "", `#${address}`);
}

// Decodes a part of the address; an invalid encoding is left unchanged.
function readable(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function follow() {
  const [name, ...rest] = location.hash.slice(1).split("/").map(readable);
  const part = name ? document.getElementById(name) : null;
  const tab = part?.closest(".tab") ?? tabs[0];
  showTab(tab);
  if (part && part !== tab) part.scrollIntoView();
  else scrollTo(0, 0);
  if (part === tab && rest.length) {
    if (tab.id === "tokens" && openers.token) openers.token(Number(rest[0]), rest[1] === undefined ? undefined : Number(rest[1]));
    else if (tab.id === "ladder" && openers.pair) openers.pair(rest[0].split("->"));
    else showRow(tab.id, rest[0]);
  }
}

document.documentElement.classList.add("scripted");
document.querySelectorAll(".table").forEach(setUpTable);
document.querySelectorAll(".term").forEach(setUpTerm);
document.querySelectorAll(".copy").forEach(setUpCopy);
document.querySelectorAll(".figures[data-picker]").forEach(setUpPicker);
document.querySelectorAll(".sliders").forEach(setUpSliders);
document.querySelectorAll(".pair").forEach(setUpPairs);
document.querySelectorAll(".transcript").forEach(setUpTranscript);
document.querySelectorAll(".glossary").forEach(setUpGlossary);
document.querySelectorAll(".download").forEach(setUpDownload);
addEventListener("hashchange", follow);
follow();
document.querySelectorAll("figure").forEach(setUpFigure);
// Printing shows all tabs, with two figures side by side on A4.
const HALF = 320;
addEventListener("beforeprint", () => document.querySelectorAll("figure").forEach((figure) => {
  const chart = page.figures[figure.dataset.figure];
  if (chart && !figure.hidden) drawChart(chart, figure.querySelector(".drawing"), figure.closest("[data-picker]") ? 2 * HALF : HALF);
}));
addEventListener("afterprint", () => document.querySelectorAll("figure").forEach((figure) => {
  const chart = page.figures[figure.dataset.figure];
  if (chart) drawChart(chart, figure.querySelector(".drawing"));
}));
