// Where documents come from: inside the page, or from the server that it came from. Readers see no difference.

const inside = {};
for (const script of document.querySelectorAll("script.document")) inside[script.dataset.name] = script;

function kept(name) {
  const script = inside[name];
  return script ? JSON.parse(script.textContent) : null;
}

export const live = Object.keys(inside).length === 0;
const run = () => Number(new URLSearchParams(location.search).get("run") ?? 0) || 0;
export const named = () => new URLSearchParams(location.search).has("run");

// Milliseconds of the processor that the server has spent on this page's questions.
export let spent = 0;

async function ask(path) {
  let answer;
  try {
    answer = await fetch(`api/${path}`, { cache: "no-store", credentials: "omit" });
  } catch {
    throw new Error("the viewer does not run any more; start it again, and open the address that it prints");
  }
  if (answer.status === 404 && path.endsWith("/stamp")) throw new Error("another viewer is at this address now; open the address that it printed");
  if (!answer.ok) throw new Error(`the server said ${answer.status}`);
  spent += Number(/dur=([\d.]+)/.exec(answer.headers.get("Server-Timing") ?? "")?.[1] ?? 0);
  return answer.json();
}

export const places = async () => (live ? ask("runs") : { places: [{ kind: inside.together ? "together" : "run", name: "" }], folder: false });
export const folder = () => ask("folder");
export const together = () => (live ? ask(`${run()}/together`) : Promise.resolve(kept("together")));
export const sides = (seed) => (live ? ask(`${run()}/sides?seed=${seed}`) : Promise.resolve(kept("sides")));
export const chosen = run;
export const stamp = () => (live ? ask(`${run()}/stamp`) : Promise.resolve([0]));
export const overview = () => (live ? ask(`${run()}/overview`) : Promise.resolve(kept("overview")));
export const verifier = () => (live ? ask(`${run()}/verifier`) : Promise.resolve(kept("verifier")));

let details = null;
export async function rollout(at) {
  if (live) return ask(`${run()}/rollout?at=${at}`);
  details ??= kept("details") ?? {};
  return Object.hasOwn(details, at) ? details[at] : null;
}

// Of one of several runs: by its number in the viewer, or by the place of its arm in this file.
export async function rolloutOf(number, arm, at) {
  if (live) return ask(`${number}/rollout?at=${at}`);
  details ??= kept("details") ?? {};
  return Object.hasOwn(details, `${arm}|${at}`) ? details[`${arm}|${at}`] : null;
}

// Which rollouts can be opened here: all of them beside a server.
export function has(at) {
  if (live) return true;
  details ??= kept("details") ?? {};
  return Object.hasOwn(details, at);
}

// Rows as they are read; `known` is what an earlier call returned.
export async function rows(known) {
  if (!live) return known ?? shaped(kept("rows"), []);
  const page = await ask(`${run()}/rows?from=${known?.rows.length ?? 0}`);
  if (known && page.generation !== known.generation) return shaped(await ask(`${run()}/rows?from=0`), []);
  return shaped(page, known?.rows ?? []);
}

function shaped(page, before) {
  if (!page) return { rows: [], generation: 0, read: 0, steps: 0, all: 0, counts: null };
  const place = Object.fromEntries(page.fields.map((name, at) => [name, at]));
  const more = page.rows.map((row) => {
    const found = Object.fromEntries(page.fields.map((name) => [name, row[place[name]]]));
    found.problem = page.problems[found.problem];
    found.role = page.roles[found.role];
    found.rewards = found.rewards.map(([name, value]) => [page.signals[name], value]);
    found.group = `${found.step}:${found.task}:${found.member}`;
    found.at = `${found.group}:${found.role}:${found.call}`;
    return found;
  });
  return { ...page, rows: before.concat(more) };
}
