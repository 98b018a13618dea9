// The charts: made anew when the choice of runs, axis or shade changes, and fed with rows between, which is much cheaper.

const library = import("./vega.js"); // large, and made while the server starts: the lists must not wait for it
const views = new Map();
let plan = null;
let numPlans = 0;

const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches;
const isNarrow = () => matchMedia("(max-width: 760px)").matches;

/** Asks the server how to draw the runs shown (a Map from name to colour) against x, and builds every chart. */
export async function layCharts(shown, x) {
  const ask = new URLSearchParams({ x, shade: isDark() ? "dark" : "light", narrow: isNarrow() ? "1" : "0" });
  for (const [name, colour] of shown) {
    ask.append("show", name);
    ask.append("colour", colour);
  }
  const mine = (numPlans += 1);
  const answer = await fetch(`api/charts?${ask}`);
  if (!answer.ok) throw new Error(`charts: ${answer.status}`);
  const fresh = await answer.json();
  if (mine !== numPlans) return false; // a newer choice has overtaken this one
  plan = fresh;
  document.getElementById("timeline-title").textContent = plan.timeline.title;
  document.getElementById("timeline-meaning").textContent = plan.timeline.meaning;
  await Promise.all([embed("timeline", document.getElementById("timeline"), plan.timeline.spec), ...plan.curves.map(layCurves)]);
  return mine === numPlans;
}

export const colourAt = (place) => (plan ? plan.palette[place % plan.palette.length] : "gray");

function layCurves(picture) {
  let card = document.getElementById(`card-${picture.name}`);
  if (!card) {
    card = document.createElement("article");
    card.id = `card-${picture.name}`;
    card.className = "card";
    const title = document.createElement("h3");
    title.textContent = picture.title;
    const meaning = document.createElement("p");
    meaning.className = "meaning";
    meaning.textContent = picture.meaning;
    const chart = document.createElement("div");
    chart.className = "chart";
    const empty = document.createElement("p");
    empty.className = "meaning empty";
    empty.textContent = "Nothing yet.";
    card.append(title, meaning, chart, empty);
    document.getElementById("charts").append(card);
  }
  return embed(picture.name, card.querySelector(".chart"), picture.spec);
}

async function embed(name, element, spec) {
  views.get(name)?.finalize();
  views.delete(name);
  // `ast` lets expressions be interpreted: the page forbids scripts made from text.
  const tooltip = { theme: isDark() ? "dark" : "light" };
  const options = { mode: "vega-lite", actions: false, renderer: "canvas", ast: true, config: plan.config, tooltip, logLevel: 1 };
  await library;
  const { view } = await window.vegaEmbed(element, spec, options);
  views.set(name, view);
}

function put(name, rows, card) {
  card.dataset.empty = rows.length === 0;
  card.dataset.rows = rows.length; // how much is drawn, for whoever looks at the page from outside
  return views.get(name)?.data(plan.data, rows).runAsync();
}

/** Rows of one chart: a row per run, point and measure. */
function rowsOf(picture, runs) {
  const rows = [];
  for (const [run, { series }] of runs) {
    const { columns, rows: points } = series[picture.series] ?? { columns: [], rows: [] };
    const at = Object.fromEntries(columns.map((column, place) => [column, place]));
    for (const [column, measure] of Object.entries(picture.measures)) {
      for (const point of points) {
        const value = point[at[column]];
        if (value != null) rows.push({ run, measure, value, time: point[at.time], step: point[at.step], candidates: point[at.candidates] });
      }
    }
  }
  return rows;
}

/** Puts new rows into the charts whose series changed. */
export async function drawCurves(runs, changed) {
  const due = plan.curves.filter((picture) => changed.has(picture.series));
  await Promise.all(due.map((picture) => put(picture.name, rowsOf(picture, runs), document.getElementById(`card-${picture.name}`))));
}

/** Draws the bars of one run's last steps, and says how long each role waited in them. */
export async function drawTimeline(timeline) {
  const waited = Object.entries(timeline?.waited ?? {}).map(([who, share]) => `${who} waited ${(100 * share).toFixed(0)} % of this time`);
  document.getElementById("timeline-waited").textContent = waited.join(", ");
  await put("timeline", timeline?.bars ?? [], document.getElementById("timeline-card"));
}

/** Calls back when the reader switches between light and dark, or turns the phone. */
export function onLookChange(callback) {
  for (const query of ["(prefers-color-scheme: dark)", "(max-width: 760px)"]) matchMedia(query).addEventListener("change", callback);
}
