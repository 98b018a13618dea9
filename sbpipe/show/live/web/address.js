// What the address remembers: the runs shown with their colours, and what curves are drawn against.
// #show=0:name&show=3:other&x=step   (0 and 3 are places in the palette)

export const MAX_SHOWN = 10;

/** Reads the hash; `shown` is a Map from a run's name to its place in the palette, in the order of choosing. */
export function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const shown = new Map();
  for (const entry of given.getAll("show").slice(0, MAX_SHOWN)) {
    const at = entry.indexOf(":");
    shown.set(entry.slice(at + 1), Number.parseInt(entry.slice(0, at), 10) || 0);
  }
  const x = given.get("x");
  return { shown, x: ["time", "step", "candidates"].includes(x) ? x : "time", isChosen: given.has("show") };
}

/** Writes the hash without a new entry in the browser's history. */
export function writeAddress(shown, x, isChosen) {
  const parts = new URLSearchParams();
  if (isChosen) for (const [name, colour] of shown) parts.append("show", `${colour}:${name}`);
  if (x !== "time") parts.set("x", x);
  history.replaceState(null, "", parts.size ? `#${parts}` : location.pathname);
}

/** The first colour nobody has yet, so that a run keeps its own when others come and go. */
export function freeColour(shown) {
  const taken = new Set(shown.values());
  for (let place = 0; place < MAX_SHOWN; place += 1) if (!taken.has(place)) return place;
  return 0;
}

/** What a new page shows: every run that goes on, up to four, or else the newest. */
export function firstChoice(heads) {
  const going = heads.filter((head) => ["running", "stalled"].includes(head.state)).slice(0, 4);
  const chosen = going.length ? going : heads.slice(0, 1);
  return new Map(chosen.map((head, place) => [head.name, place]));
}
