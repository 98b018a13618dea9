// Follows the server's stream of changes, keeps what it says, and has it listed and drawn.

import { MAX_SHOWN, firstChoice, freeColour, readAddress, writeAddress } from "./address.js";
import { colourAt, drawCurves, drawTimeline, layCharts, onLookChange } from "./charts.js";
import { listProblems, listRuns, listSelectors, listStudies, listWarnings } from "./lists.js";

const SILENT_MS = 10000; // the server says something every three seconds
let { shown, x, isChosen } = readAddress();
let overview = { heads: [], studies: [], problems: [], notes: [] };
let runs = new Map(); // name -> { series, timeline, selectors, warnings } of the runs shown
let timelineRun = null;
let source = null;
let lastHeard = 0;
let charts = "none"; // then "laying", then "laid"
let due = null; // the names of series whose charts are to be drawn anew, or null if none is
let isDrawing = false;

const nothing = () => ({ series: {}, timeline: null, selectors: [], warnings: [] });
const runsShown = () => [...shown.keys()].filter((name) => runs.has(name)).map((name) => [name, runs.get(name)]);

// --- what the server says ---------------------------------------------------------------------------------------------------

function connect() {
  source?.close();
  const ask = new URLSearchParams([...shown.keys()].map((name) => ["show", name]));
  lastHeard = Date.now();
  source = new EventSource(`events?${ask}`);
  let isFirst = true;
  source.onopen = () => {
    isFirst = true; // after a gap the server tells everything anew
  };
  source.onmessage = (message) => {
    lastHeard = Date.now();
    sayConnection("live", "live");
    if (isFirst) runs = new Map();
    take(JSON.parse(message.data), isFirst);
    if (isFirst && charts === "none" && shown.size) lay();
    isFirst = false;
  };
  source.onerror = () => sayConnection("lost", "connection lost");
}

function sayConnection(state, text) {
  const element = document.getElementById("connection");
  element.dataset.state = state;
  if (element.textContent !== text) element.textContent = text;
}

/** The browser reconnects by itself after most errors; where it gave up, or hears nothing, begin anew. */
function lookAfterConnection() {
  if (Date.now() - lastHeard > SILENT_MS) sayConnection("lost", "connection lost");
  if (source.readyState === EventSource.CLOSED || Date.now() - lastHeard > 2 * SILENT_MS) connect();
}

/** Takes in one message: what it names is new, everything else stays. */
function take(change, isFirst) {
  if (change.overview) {
    overview = change.overview;
    if (!isChosen && chooseAgain()) return;
    showOverview();
  }
  const changed = new Set();
  for (const [name, told] of Object.entries(change.runs ?? {})) {
    const run = told.is_anew || !runs.has(name) ? nothing() : runs.get(name);
    runs.set(name, run);
    for (const [curve, { columns, at, rows }] of Object.entries(told.series ?? {})) {
      const before = run.series[curve]?.rows ?? [];
      run.series[curve] = { columns, rows: [...before.slice(0, at), ...rows] };
      changed.add(curve);
    }
    for (const part of ["timeline", "selectors", "warnings"]) if (told[part]) run[part] = told[part];
    if (told.is_anew) for (const curve of ["steps", "evals", "progress"]) changed.add(curve);
  }
  if (change.runs || isFirst) showRuns(isFirst ? null : changed);
}

/** As long as the reader has not chosen, the page shows what goes on. Whether that is something else than before. */
function chooseAgain() {
  const isGoing = overview.heads.some((head) => head.state === "running" && !shown.has(head.name));
  const isAnyThere = overview.heads.some((head) => shown.has(head.name));
  if (isAnyThere && !isGoing) return false;
  const choice = firstChoice(overview.heads);
  if ([...choice.keys()].join("\n") === [...shown.keys()].join("\n")) return false;
  shown = choice;
  begin();
  return true;
}

// --- what the page shows ----------------------------------------------------------------------------------------------------

function showOverview() {
  listStudies(overview.studies);
  listProblems(overview.problems, overview.notes);
  listRuns(overview.heads, (name) => (shown.has(name) ? colourAt(shown.get(name)) : null), toggle);
  const going = overview.heads.filter((head) => head.state === "running").length;
  document.title = going ? `(${going}) sbpipe watch` : "sbpipe watch";
}

function showRuns(changed) {
  listWarnings(runsShown());
  listSelectors(runsShown());
  if (charts !== "laid") return;
  offerTimelines();
  due = new Set([...(due ?? []), ...(changed ?? ["steps", "evals", "progress"])]);
  draw();
}

/** Draws what is due; what becomes due meanwhile is drawn afterwards, at once, so that a slow machine never falls behind. */
async function draw() {
  if (isDrawing) return;
  isDrawing = true;
  try {
    while (due && charts === "laid") {
      const curves = due;
      due = null;
      await drawCurves(runsShown(), curves);
      await drawTimeline(runs.get(timelineRun)?.timeline);
    }
  } finally {
    isDrawing = false;
  }
}

/** The timeline is of one run; with several shown, the reader picks which. */
function offerTimelines() {
  const names = runsShown().map(([name]) => name);
  if (!names.includes(timelineRun)) timelineRun = names[0] ?? null;
  const select = document.getElementById("timeline-run");
  select.hidden = names.length < 2;
  if ([...select.options].map((option) => option.value).join("\n") !== names.join("\n")) {
    select.replaceChildren(...names.map((name) => new Option(name, name)));
  }
  select.value = timelineRun ?? "";
}

// --- what the reader chooses ------------------------------------------------------------------------------------------------

function toggle(name, isWanted) {
  if (isWanted && shown.size < MAX_SHOWN) shown.set(name, freeColour(shown));
  else shown.delete(name);
  isChosen = true;
  begin();
}

async function lay() {
  charts = "laying";
  try {
    if (!(await layCharts(shown, x))) return;
  } catch {
    charts = "none";
    sayConnection("lost", "connection lost"); // the next message that comes lays them
    return;
  }
  charts = "laid";
  showOverview(); // the palette has come with the charts
  showRuns(null);
}

/** Another choice of runs: another address, another stream, other charts. */
function begin() {
  writeAddress(shown, x, isChosen);
  connect();
  showOverview();
  if (shown.size) lay();
}

function listen() {
  document.querySelector(`#against input[value="${x}"]`).checked = true;
  document.getElementById("against").addEventListener("change", (event) => {
    x = event.target.value;
    writeAddress(shown, x, isChosen);
    lay();
  });
  document.getElementById("timeline-run").addEventListener("change", (event) => {
    timelineRun = event.target.value;
    showRuns([]);
  });
  addEventListener("hashchange", () => location.reload());
  onLookChange(lay);
  setInterval(lookAfterConnection, 1000);
}

listen();
begin();
