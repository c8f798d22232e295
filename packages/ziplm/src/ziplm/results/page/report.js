"use strict";
// What the page does: draws the charts in the chosen theme, sorts the table of models, and highlights a member.

const data = JSON.parse(document.getElementById("data").textContent);
const views = [];
const systemIsDark = window.matchMedia("(prefers-color-scheme: dark)");
let chosen = "";

// Theme: that of the system until the reader presses the button.

function storedTheme() {
  try {
    return localStorage.getItem("ziplm-theme");
  } catch {
    return null; // some browsers refuse storage to local files
  }
}

function theme() {
  return document.documentElement.dataset.theme || (systemIsDark.matches ? "dark" : "light");
}

function showTheme() {
  document.getElementById("theme").setAttribute("aria-pressed", String(theme() === "dark"));
  return drawAll();
}

function toggleTheme() {
  const next = theme() === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("ziplm-theme", next);
  } catch {
    // the choice then lasts as long as the page
  }
  showTheme();
}

// Charts

async function drawAll() {
  views.splice(0).forEach((result) => result.finalize());
  for (const place of document.querySelectorAll("[data-chart]")) {
    const result = await vegaEmbed(place, data.charts[place.dataset.chart], {
      mode: "vega-lite",
      renderer: "svg",
      actions: false,
      config: data.themes[theme()],
      tooltip: { theme: theme() },
    });
    result.view.signal("chosen", chosen);
    result.view.addEventListener("click", (event, item) => {
      if (item && item.datum && item.datum.key) choose(item.datum.key);
    });
    await result.view.runAsync();
    views.push(result);
  }
  document.documentElement.dataset.drawn = theme();
}

// Members

function choose(key) {
  chosen = key;
  for (const row of document.querySelectorAll("tr[data-key]")) {
    const isChosen = row.dataset.key === key;
    if (isChosen) row.setAttribute("aria-current", "true");
    else row.removeAttribute("aria-current");
    const radio = row.querySelector("input");
    if (radio) radio.checked = isChosen;
  }
  const radio = document.querySelector("#models input:checked");
  const name = radio ? radio.getAttribute("aria-label").replace("Highlight ", "") : "";
  const sentence = data.sentences[key];
  document.getElementById("chosen").textContent = name && sentence ? `${name} ${sentence}.` : "";
  for (const { view } of views) view.signal("chosen", chosen).runAsync();
}

// Sorting

function sortBy(heading) {
  const body = document.querySelector("#models tbody");
  const column = heading.cellIndex;
  const descending = heading.getAttribute("aria-sort") === "ascending";
  for (const other of heading.parentElement.querySelectorAll("[aria-sort]")) {
    other.setAttribute("aria-sort", "none");
  }
  heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const value = (row) => row.cells[column].dataset.value;
  const rows = [...body.rows];
  const isNumeric = rows.every((row) => value(row) === "" || Number.isFinite(Number(value(row))));
  const missing = rows.filter((row) => value(row) === "");
  const known = rows.filter((row) => value(row) !== "");
  const compare = isNumeric ? (a, b) => value(a) - value(b) : (a, b) => value(a).localeCompare(value(b));
  known.sort((a, b) => (descending ? -1 : 1) * compare(a, b));
  body.append(...known, ...missing); // what is missing comes last in either order
  const order = descending ? "largest first" : "smallest first";
  document.getElementById("sorted").textContent = `Sorted by ${heading.textContent.trim()}, ${order}.`;
}

// Start

if (storedTheme()) document.documentElement.dataset.theme = storedTheme();
document.getElementById("theme").addEventListener("click", toggleTheme);
systemIsDark.addEventListener("change", showTheme);
for (const heading of document.querySelectorAll("#models th[aria-sort]")) {
  heading.querySelector("button").addEventListener("click", () => sortBy(heading));
}
for (const row of document.querySelectorAll("tr[data-key]")) {
  row.addEventListener("click", () => choose(row.dataset.key));
}
for (const radio of document.querySelectorAll("#models input")) {
  radio.addEventListener("change", () => choose(radio.value));
}
if (data.chosen) choose(data.chosen);
showTheme();
