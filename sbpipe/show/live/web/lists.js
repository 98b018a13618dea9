// The parts of the page that are text: runs, studies, selectors, warnings. All text goes in as textContent, never as markup.

const MOST_RUNS = 12;
let areAllListed = false;

/** A new element with a class and text. */
function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== "") element.textContent = text;
  return element;
}

export function duration(seconds) {
  if (seconds == null) return "?";
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} min`;
}

export const percent = (share) => (share == null ? "–" : `${(100 * share).toFixed(1)} %`);
const whole = (value) => (value == null ? "–" : Math.round(value).toLocaleString("en"));
const clock = (t) => (t == null ? "" : new Date(1000 * t).toLocaleTimeString());

/** The numbers of a run worth a glance, as [label, value]. */
function numbersOf(head) {
  const numbers = [];
  if (head.mode) numbers.push(["mode", head.mode]);
  if (head.step != null) numbers.push(["step", whole(head.step)]);
  if (head.error != null) numbers.push(["test error", percent(head.error)]);
  if (head.loss != null) numbers.push(["loss", head.loss.toPrecision(3)]);
  if (head.candidates_per_s != null) numbers.push(["throughput", `${whole(head.candidates_per_s)} candidates/s`]);
  if (head.keep_rate != null) numbers.push(["keep", percent(head.keep_rate)]);
  if (head.staleness != null) numbers.push(["staleness", `${head.staleness.toFixed(2)} steps`]);
  if (head.worth_ess != null && head.worth_ess_error != null)
    numbers.push(["effective share", `${head.worth_ess.toFixed(2)} ± ${head.worth_ess_error.toFixed(2)}`]);
  if (head.elapsed_s != null) numbers.push([head.state === "running" ? "so far" : "took", duration(head.elapsed_s)]);
  if (head.left_s != null) numbers.push(["left", duration(head.left_s)]);
  if (head.state === "stalled") numbers.push(["no event for", duration(head.age_s)]);
  return numbers;
}

function progressBar(share) {
  const cell = make("div", "progress");
  const bar = make("progress");
  bar.max = 1;
  bar.value = share ?? 0;
  bar.setAttribute("aria-label", "share done");
  cell.append(bar, make("span", "", share == null ? "–" : `${Math.floor(100 * share)} %`));
  return cell;
}

function badge(state) {
  const element = make("span", "badge", state);
  element.dataset.state = state;
  return element;
}

function runRow(head, colour, onToggle) {
  const row = make("li", "run");
  row.dataset.run = head.name;
  row.dataset.state = head.state;
  const label = make("label");
  const box = make("input");
  box.type = "checkbox";
  box.checked = colour != null;
  box.addEventListener("change", () => onToggle(head.name, box.checked));
  const swatch = make("span", "swatch");
  if (colour != null) swatch.style.background = colour;
  label.append(box, swatch, make("span", "", head.name));
  const numbers = make("div", "numbers");
  for (const [name, value] of numbersOf(head)) {
    const entry = make("span", "", `${name} `);
    entry.append(make("b", "", value));
    entry.dataset.number = name;
    numbers.append(entry);
  }
  row.append(label, badge(head.state), progressBar(head.share), numbers);
  for (const note of head.notes) row.append(make("p", "notes", note));
  return row;
}

/** Draws the list of runs; `colourOf` gives the colour of a run shown, or null. Many old runs wait behind a button. */
export function listRuns(heads, colourOf, onToggle) {
  const list = document.getElementById("runs");
  const focused = document.activeElement?.closest?.("#runs > li")?.dataset.run; // redrawing must not throw a keyboard user out
  const isListed = (head, place) => areAllListed || place < MOST_RUNS || colourOf(head.name) != null;
  list.replaceChildren(...heads.filter(isListed).map((head) => runRow(head, colourOf(head.name), onToggle)));
  for (const row of list.children) if (row.dataset.run === focused) row.querySelector("input").focus({ preventScroll: true });
  document.getElementById("no-runs").hidden = heads.length > 0;
  document.getElementById("looking").hidden = true;
  const more = document.getElementById("more-runs");
  const numHidden = heads.length - list.children.length;
  more.hidden = numHidden === 0;
  more.textContent = `show ${numHidden} more`;
  more.onclick = () => {
    areAllListed = true;
    listRuns(heads, colourOf, onToggle);
  };
}

/** A sweep's or comparison's plan and how far it has come. */
export function listStudies(studies) {
  const cards = studies.map((study) => {
    const card = make("div", "study");
    const numDone = study.finished + study.failed;
    const title = make("h3", "", `${study.kind} ${study.name}`);
    const words = `${numDone} of ${study.total} runs done, ${study.running} running, ${study.failed} failed, ${study.waiting} to come`;
    card.append(title, progressBar(study.total ? numDone / study.total : 0), make("p", "fine", words));
    for (const failure of study.failures.slice(0, 5)) card.append(make("p", "notes", `${failure.cell} failed: ${failure.error}`));
    return card;
  });
  document.getElementById("studies").replaceChildren(...cards);
}

function message(text, level, t = null, run = "") {
  const item = make("li", "", [clock(t), run, text].filter(Boolean).join(" · "));
  item.dataset.level = level;
  return item;
}

/** What is wrong with the paths themselves. */
export function listProblems(problems, notes) {
  const items = [...problems.map((text) => message(text, "error")), ...notes.map((text) => message(text, "note"))];
  document.getElementById("problems").replaceChildren(...items);
}

/** Warnings of the runs shown, newest first; `runs` is [name, {warnings}]. */
export function listWarnings(runs) {
  const all = runs.flatMap(([name, run]) => run.warnings.map((warning) => ({ name, ...warning })));
  all.sort((one, other) => (other.t ?? 0) - (one.t ?? 0));
  const items = all.slice(0, 30).map((entry) => message(entry.text, entry.level, entry.t, runs.length > 1 ? entry.name : ""));
  document.getElementById("messages").replaceChildren(...items);
  document.getElementById("messages-section").hidden = items.length === 0;
}

/** Selectors of the runs shown, the newest first. */
export function listSelectors(runs) {
  const items = runs.flatMap(([name, run]) =>
    [...run.selectors].reverse().map((selector) => {
      const item = make("li");
      const who = runs.length > 1 ? `${name} · ${selector.name}` : selector.name;
      item.append(badge(selector.state), make("span", "mono", who), make("span", "", selector.device), make("span", "fine", selector.reason));
      return item;
    }),
  );
  document.getElementById("selectors").replaceChildren(...items);
  document.getElementById("no-selectors").hidden = items.length > 0;
}
