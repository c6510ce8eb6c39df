// The frame: which screen the address names, what is read when, and the keys.
import { Component, render } from "preact";
import { useCallback, useEffect, useMemo, useState } from "preact/hooks";
import { html, link, Text, number, counted, plain } from "view/words";
import { Overview, Setting, axesOf } from "view/overview";
import { Verifier, knowErrors } from "view/verifier";
import { Rollouts, listed } from "view/rollouts";
import { Rollout } from "view/rollout";
import { Together, Study, SCREENS as TOGETHER, screensOf } from "view/together";
import { Folder } from "view/folder";
import { Interaction } from "view/interaction";
import { asked } from "view/measures";
import * as source from "view/source";

const WAIT = 2000; // milliseconds between looks at a live run, at least
const SHARE = 0.005; // of a core, which looking at a run may cost it: a dear look is followed by a long wait
const LONGEST = 60000; // milliseconds
const SCREENS = [["overview", "Overview"], ["verifier", "Verifier"], ["interaction", "Interaction"], ["rollouts", "Rollouts"], ["made", "How it was made"]];

function place() {
  let hash = location.hash.slice(1);
  try {
    hash = decodeURI(hash);
  } catch {
    hash = "";
  }
  const [screen, ...rest] = hash.split(":");
  return { screen: screen || "overview", rest: rest.join(":") };
}

// A screen that cannot be drawn says so, and leaves the others alone.
class Guard extends Component {
  constructor() {
    super();
    this.state = { error: null };
  }
  static getDerivedStateFromError(error) {
    return { error };
  }
  render() {
    const { error } = this.state;
    return error ? html`<p class="note">This screen could not be drawn: <${Text} of=${error.message ?? error} />.</p>` : this.props.children;
  }
}

// Read whenever there is something new; in a report once. `read` says whether to look again soon: there is no run to be disturbed,
// or the server is still reading.
function useDocument(read) {
  const [error, setError] = useState("");
  useEffect(() => {
    let last = "", timer = 0, gone = false;
    const look = async () => {
      const before = source.spent;
      let soon = false;
      if (globalThis.document.hidden && last) {
        timer = setTimeout(look, WAIT); // nobody sees it
        return;
      }
      try {
        const stamp = JSON.stringify(await source.stamp());
        if (stamp !== last) {
          soon = await read(() => gone);
          last = stamp;
        }
        setError("");
      } catch (problem) {
        setError(problem instanceof Error ? problem.message : String(problem));
      }
      if (source.live && !gone) timer = setTimeout(look, soon ? WAIT : Math.max(WAIT, Math.min(LONGEST, (source.spent - before) / SHARE)));
    };
    look();
    return () => { gone = true; clearTimeout(timer); };
  }, []);
  return error;
}

// The address of the page, and what to do when it changes: `#open:N` goes to another place of the folder.
function useHere() {
  const [here, go] = useState(place());
  useEffect(() => {
    const moved = () => {
      const next = place(), [number, ...more] = next.rest.split(":");
      if (next.screen === "open" && source.live && /^\d{1,5}$/.test(number)) location.replace(`?run=${number}#${encodeURI(more.join(":"))}`);
      else {
        go(next);
        if (next.screen !== "rollouts" && next.screen !== "sides") scrollTo(0, 0);
      }
    };
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  return here;
}

function App() {
  const [found, set] = useState(null), [error, setError] = useState("");
  useEffect(() => { source.places().then(set, (problem) => setError(String(problem.message))); }, []);
  if (!found) return html`<p class="wait">${error ? html`Nothing could be read: <${Text} of=${error} />` : "reading …"}</p>`;
  if (source.live && !source.named() && found.folder && found.places.length > 1) return html`<${FolderFrame} />`;
  const kind = found.places[source.chosen()]?.kind ?? "run";
  return kind === "run" ? html`<${Frame} places=${found.places} />` : html`<${TogetherFrame} places=${found.places} />`;
}

function FolderFrame() {
  const [found, set] = useState(null);
  useHere();
  useEffect(() => { source.folder().then(set, () => set({ places: [], left_out: 0 })); }, []);
  return html`<header class="top"><div><h1>Runs and comparisons</h1></div></header><main>${found ? html`<${Folder} ...${found} />` : html`<p class="wait">reading …</p>`}</main>`;
}

function TogetherFrame({ places }) {
  const here = useHere(), [document, set] = useState(null), [axis, setAxis] = useState("batches");
  const error = useDocument(async () => { set(await source.together()); });
  if (!document) return html`<p class="wait">${error ? html`Nothing could be read: <${Text} of=${error} />` : "reading …"}</p>`;
  const study = document.kind === "study", screens = study ? [] : screensOf(document);
  const screen = screens.includes(here.screen) ? here.screen : screens[0];
  const runs = study ? [] : document.arms.flatMap((arm) => arm.runs), ended = runs.filter((run) => run.ended).length;
  const facts = study ? `study · ${document.name}` : [
    document.kind === "comparison" ? "comparison" : "seeds of one recipe", document.name,
    `${counted(runs.length, "run")}${ended < runs.length ? `, ${ended} ended` : ""}`,
  ].filter(Boolean).join(" · ");
  return html`<header class="top"><div><h1><${Text} of=${document.title} limit=${200} /></h1><p class="soft"><${Text} of=${facts} />${error ? html` · <b class="poor">no answer: <${Text} of=${error} /></b>` : null}</p><${Places} places=${places} /></div>
    <nav>${screens.map((name) => html`<a href=${`#${name}`} aria-current=${screen === name ? "page" : undefined}>${TOGETHER[name]}</a>`)}</nav></header>
    <main><${Guard} key=${screen ?? here.rest}>${study ? html`<${Study} ...${{ document, axis, setAxis, rest: here.rest }} />` : html`<${Together} ...${{ document, screen, axis, setAxis, rest: here.rest }} />`}</${Guard}></main>`;
}

function Places({ places }) {
  return places.length > 1 ? html`<label>shown <select value=${source.chosen()} onChange=${(event) => { location.hash = `#open:${Number(event.target.value)}`; }}>
        ${places.map((one, at) => html`<option value=${at}>${plain(`${one.kind === "run" ? "" : `${one.kind}: `}${one.name}`, 120)}</option>`)}</select></label>` : null;
}

function Frame({ places }) {
  const here = useHere(), [document, setDocument] = useState(null), [judged, setJudged] = useState(null);
  const [table, setTable] = useState(null), [axis, setAxis] = useState("step");
  const [view, setView] = useState({ kind: "all", more: {}, sort: "latest", query: "", page: 0 });
  const error = useDocument(useMemo(() => {
    let known = null;
    return async (gone) => {
      const found = await source.overview();
      setDocument(found);
      known = await source.rows(known);
      while (source.live && !gone() && known.rows.length < known.all) known = await source.rows(known);
      setTable(known);
      knowErrors(known.errors);
      setJudged(await source.verifier());
      return found.run.ended || known.read < known.steps;
    };
  }, []));
  useEffect(() => {
    if (here.screen === "rollouts" && here.rest) setView((old) => ({ ...old, ...asked(here.rest), page: 0 }));
  }, [here]);

  const list = useMemo(() => (table ? listed(table, view) : []), [table, view.kind, view.more, view.sort, view.query]);
  const key = useCallback((event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(input|select|textarea)$/i.test(event.target.tagName)) return;
    const at = list.findIndex((row) => row.at === here.rest || row.group === here.rest);
    const move = { n: 1, j: 1, ArrowRight: 1, p: -1, k: -1, ArrowLeft: -1 }[event.key];
    if (event.key === "l") location.hash = "#rollouts";
    if (move && (here.screen === "r" || here.screen === "rollouts")) {
      const next = here.screen === "r" ? list[at + move] : list[move > 0 ? 0 : list.length - 1];
      if (next) location.hash = link(next.at);
    }
  }, [list, here]);
  useEffect(() => {
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, [key]);

  if (!document) return html`<p class="wait">${error ? html`Nothing could be read: <${Text} of=${error} />` : "reading …"}</p>`;
  const shown = axesOf(document).includes(axis) ? axis : "step";
  return html`<${Head} ...${{ document, here, places, error }} /><main><${Guard} key=${here.screen + here.rest}>
    ${here.screen === "verifier" ? html`<${Verifier} document=${document} judged=${judged} axis=${shown} setAxis=${setAxis} />`
      : here.screen === "interaction" ? html`<${Interaction} judged=${judged} document=${document} />`
      : here.screen === "made" ? html`<${Setting} document=${document} />`
      : here.screen === "rollouts" && table ? html`<${Rollouts} ...${{ table, view, setView, list }} />`
      : here.screen === "r" && table ? html`<${Rollout} at=${here.rest} table=${table} list=${list} />`
      : here.screen === "r" || here.screen === "rollouts" ? html`<p class="wait">reading …</p>`
      : html`<${Overview} document=${document} axis=${shown} setAxis=${setAxis} />`}
  </${Guard}></main>`;
}

function Head({ document, here, places, error }) {
  const { run, training, alarms } = document, tokens = training.axes.tokens?.at(-1);
  const screen = here.screen === "r" ? "rollouts" : here.screen;
  const facts = [
    run.planned ? `${number(training.rows)} of ${counted(run.planned, "step")}` : counted(training.rows, "step"),
    tokens ? `${number(tokens)} tokens` : "", run.seed !== null && run.seed !== undefined ? `seed ${run.seed}` : "",
    run.ended ? "ended" : run.stopped ? "stopped by an error" : run.measuring ? `measuring the ${run.measuring}` : source.live ? "following" : "not ended",
  ].filter(Boolean);
  return html`<header class="top"><div>
      <h1><${Text} of=${run.name} limit=${80} /></h1><p class="soft"><${Text} of=${run.directory} limit=${80} /> · <${Text} of=${facts.join(" · ")} />
        ${error ? html` · <b class="poor">no answer: <${Text} of=${error} /></b>` : null}</p>
      <${Places} places=${places} /></div>
    <nav>${SCREENS.map(([name, label]) => html`<a href=${`#${name}`} aria-current=${screen === name ? "page" : undefined}>${label}${name === "overview" && alarms.length ? html` <b class="count">${alarms.length}</b>` : null}</a>`)}</nav>
  </header>`;
}

const root = globalThis.document.getElementById("page");
root.textContent = "";
render(html`<${App} />`, root);
