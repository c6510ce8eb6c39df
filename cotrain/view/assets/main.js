// The frame: which screen the address names, what is read when, and the keys.
import { Component, render } from "preact";
import { useCallback, useEffect, useMemo, useState } from "preact/hooks";
import { html, link, Text, number, plain } from "view/words";
import { Overview, Setting, axesOf } from "view/overview";
import { Verifier } from "view/verifier";
import { Rollouts, listed } from "view/rollouts";
import { Rollout } from "view/rollout";
import * as source from "view/source";

const WAIT = 2000; // milliseconds between looks at a live run
const SCREENS = [["overview", "Overview"], ["verifier", "Verifier"], ["rollouts", "Rollouts"], ["made", "How it was made"]];

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

function Frame() {
  const [here, go] = useState(place()), [document, setDocument] = useState(null), [judged, setJudged] = useState(null);
  const [table, setTable] = useState(null), [error, setError] = useState(""), [runs, setRuns] = useState([]), [axis, setAxis] = useState("step");
  const [view, setView] = useState({ kind: "all", sort: "latest", query: "", page: 0 });

  useEffect(() => {
    const moved = () => {
      const next = place();
      go(next);
      if (next.screen === "rollouts" && next.rest) setView((old) => ({ ...old, kind: next.rest, page: 0 }));
      if (next.screen !== "rollouts") scrollTo(0, 0);
    };
    moved();
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);

  useEffect(() => {
    let known = null, last = "", timer = 0, gone = false;
    const look = async () => {
      try {
        const stamp = JSON.stringify(await source.stamp());
        if (stamp !== last) {
          last = stamp;
          setDocument(await source.overview());
          known = await source.rows(known);
          while (source.live && !gone && known.rows.length < known.all) known = await source.rows(known);
          setTable(known);
          setJudged(await source.verifier());
        }
        setError("");
      } catch (problem) {
        setError(problem instanceof Error ? problem.message : String(problem));
      }
      if (source.live && !gone) timer = setTimeout(look, WAIT);
    };
    source.runs().then(setRuns, () => setRuns([]));
    look();
    return () => { gone = true; clearTimeout(timer); };
  }, []);

  const list = useMemo(() => (table ? listed(table, view) : []), [table, view.kind, view.sort, view.query]);
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
  return html`<${Head} ...${{ document, here, runs, error }} /><main><${Guard} key=${here.screen + here.rest}>
    ${here.screen === "verifier" ? html`<${Verifier} document=${document} judged=${judged} axis=${shown} />`
      : here.screen === "made" ? html`<${Setting} document=${document} />`
      : here.screen === "rollouts" && table ? html`<${Rollouts} ...${{ table, view, setView, list }} />`
      : here.screen === "r" && table ? html`<${Rollout} at=${here.rest} table=${table} list=${list} />`
      : here.screen === "r" || here.screen === "rollouts" ? html`<p class="wait">reading …</p>`
      : html`<${Overview} document=${document} axis=${shown} setAxis=${setAxis} />`}
  </${Guard}></main>`;
}

function Head({ document, here, runs, error }) {
  const { run, training, alarms } = document, tokens = training.axes.tokens?.at(-1);
  const screen = here.screen === "r" ? "rollouts" : here.screen;
  const facts = [
    `${number(training.rows)}${run.planned ? ` of ${number(run.planned)}` : ""} steps`,
    tokens ? `${number(tokens)} tokens` : "", run.seed !== null && run.seed !== undefined ? `seed ${run.seed}` : "",
    run.ended ? "ended" : source.live ? "following" : "not ended",
  ].filter(Boolean);
  return html`<header class="top"><div>
      <h1><${Text} of=${run.name} limit=${80} /></h1><p class="soft"><${Text} of=${run.directory} limit=${80} /> · <${Text} of=${facts.join(" · ")} />
        ${error ? html` · <b class="poor">no answer: <${Text} of=${error} /></b>` : null}</p>
      ${runs.length > 1 ? html`<label>run <select value=${source.chosen()} onChange=${(event) => { location.search = `?run=${Number(event.target.value)}`; }}>
        ${runs.map((name, at) => html`<option value=${at}>${plain(name, 120)}</option>`)}</select></label>` : null}</div>
    <nav>${SCREENS.map(([name, label]) => html`<a href=${`#${name}`} aria-current=${screen === name ? "page" : undefined}>${label}${name === "overview" && alarms.length ? html` <b class="count">${alarms.length}</b>` : null}</a>`)}</nav>
  </header>`;
}

const root = globalThis.document.getElementById("page");
root.textContent = "";
render(html`<${Frame} />`, root);
