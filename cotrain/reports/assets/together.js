// Runs side by side: what a comparison found, curves with bands over seeds, settings that differ, one problem in every arm.
import { useEffect, useMemo, useState } from "preact/hooks";
import { html, Text, number, counted, ordinal, plain, finite } from "view/words";
import { Chart, together, tone, named } from "view/charts";
import { Solution } from "view/rollout";
import * as source from "view/source";

export const SCREENS = { result: "Result", curves: "Curves", sides: "Side by side", settings: "Settings" };
export const screensOf = (document) =>
  Object.keys(SCREENS).filter((name) => name !== "result" || document.kind === "comparison");

export function Together({ document, screen, axis, setAxis, rest }) {
  return screen === "curves" ? html`<${Curves} ...${{ document, axis, setAxis }} />`
    : screen === "sides" ? html`<${Sides} ...${{ document, rest }} />`
    : screen === "settings" ? html`<${Settings} document=${document} />`
    : html`<${Result} document=${document} />`;
}

export function Result({ document }) {
  const [first, ...rest] = document.figures;
  return html`${document.said.length ? html`<div class="findings">${document.said.map((one) => html`<p><b><${Text} of=${one.recipe} /></b> against <${Text} of=${one.reference} />, <${Text} of=${one.label} />: <${Text} of=${one.words} />.</p>`)}</div>` : null}
    ${document.figures.length ? null : html`<p class="note">Not all runs have ended, so there is no table yet. Curves show what has been measured.</p>`}
    ${document.about.length ? html`<p class="soft"><${Text} of=${document.about.join(" ")} /></p>` : null}
    <${Runs} arms=${document.arms} />
    ${document.cells.filter((one) => !one.folded).slice(0, 2).map((one) => html`<${Cells} ...${one} />`)}
    ${first ? html`<${Figures} ...${first} />` : null}
    ${document.cells.filter((one) => !one.folded).slice(2).map((one) => html`<${Cells} ...${one} />`)}
    ${document.cells.filter((one) => one.folded).map((one) => html`<section><details><summary>${one.title}</summary><${Cells} ...${one} title="" /></details></section>`)}
    ${rest.map((one) => html`<section><details><summary><${Text} of=${one.title} />, on validation problems</summary><${Figures} ...${one} title="" /></details></section>`)}`;
}

function Runs({ arms }) {
  const live = arms.some((arm) => arm.runs.some((run) => run.number !== null)), open = arms.some((arm) => arm.runs.some((run) => !run.ended));
  if (!live && !open) return null;
  return html`<table class="runs"><tbody>${arms.map((arm) => html`<tr><th scope="row"><${Text} of=${arm.label} /></th><td class="chips">${arm.runs.length ? arm.runs.map((run) => {
    const words = html`seed ${run.seed} <i>${run.ended ? "" : run.planned ? `${number(run.steps)} of ${counted(run.planned, "step")}` : counted(run.steps, "step")}</i>`;
    return run.number === null ? html`<span class="kind">${words}</span>` : html`<a class="kind" href=${`#open:${run.number}`}>${words}</a>`;
  }) : html`<span class="soft">no run yet</span>`}</td></tr>`)}</tbody></table>`;
}

export function Cells({ title, lead, head, rows, kind }) {
  return html`<section>${title ? html`<h2><${Text} of=${title} /></h2>` : null}${lead ? html`<p class="soft"><${Text} of=${lead} /></p>` : null}
    <div class="scroll"><table class=${kind}><thead><tr>${head.map((cell) => html`<th scope="col"><${Text} of=${cell} limit=${100} /></th>`)}</tr></thead><tbody>
    ${rows.map((row) => html`<tr>${row.map((cell, at) => (at ? html`<td><${Text} of=${cell} limit=${300} /></td>` : html`<th scope="row"><${Text} of=${cell} limit=${160} /></th>`))}</tr>`)}</tbody></table></div></section>`;
}

function Figures({ title, lead, groups }) {
  const main = groups.filter((group) => group.headline), rest = groups.filter((group) => !group.headline);
  const body = (some) => html`<div class="scroll"><table class="compared"><thead><tr><th>recipe</th><th>before</th><th>then</th><th>difference</th></tr></thead><tbody>
    ${some.map((group) => html`<tr class="who"><th colspan="4" scope="rowgroup"><${Text} of=${group.label} />${group.against ? html` <small>against <${Text} of=${group.against} />, the first that has it</small>` : null}</th></tr>
      ${group.rows.map((row) => html`<tr><th scope="row"><${Text} of=${row.recipe} limit=${100} /></th><td>${number(row.before.value, group.share)}</td>
        <td><b>${number(row.after.value, group.share)}</b> <small>${spread(row.after, group.share)}</small></td>
        <td><${Verdict} words=${row.words} /></td></tr>`)}`)}</tbody></table></div>`;
  return html`<section>${title ? html`<h2><${Text} of=${title} /></h2>` : null}<p class="soft"><${Text} of=${lead} /></p>${body(main.length ? main : groups)}
    ${main.length && rest.length ? html`<details><summary>${counted(rest.length, "more figure")}</summary>${body(rest)}</details>` : null}</section>`;
}

function spread(estimate, share) {
  return finite(estimate.low) && finite(estimate.high) ? `${number(estimate.low, share)} to ${number(estimate.high, share)}` : finite(estimate.value) ? "no interval" : "";
}

function Verdict({ words }) {
  if (!words) return html`<span class="soft">the others are compared with it</span>`;
  const css = words.startsWith("better") ? "good" : words.startsWith("worse") ? "poor" : "";
  const [, called, rest] = /^((?:better|worse|higher|lower) by [^(]*)?(.*)$/s.exec(words);
  return html`${called ? html`<b class=${css}>${called}</b>` : null}<${Text} of=${rest} />`;
}

function Curves({ document, axis, setAxis }) {
  const { held_out: held, training } = document, axes = [...new Set([...training.axes, ...held.axes])];
  const shown = axes.includes(axis) ? axis : axes[0];
  if (!axes.length) return html`<p>No step is finished yet.</p>`;
  const count = Math.max(0, ...document.arms.map((arm) => arm.runs.length));
  return html`<div class="bar"><h2>On held-out problems</h2><label>x axis <select value=${axes.indexOf(shown)} onChange=${(event) => setAxis(axes[Number(event.target.value)])}>
      ${axes.map((name, at) => html`<option value=${at}>${plain(named(name))}</option>`)}</select></label></div>
    <p class="soft">Lines are means over seeds, shades their 95${"\u202f"}% bands${count < 3 ? " (none with fewer than three seeds)" : ""}, over the range that all seeds have passed.</p>
    <p class="chips">${document.arms.map((arm, at) => html`<span><span class="swatch" style=${{ background: `var(${tone(at)})` }}></span> <${Text} of=${arm.label} limit=${110} /></span>`)}</p>
    <${Panels} ...${{ document, bands: held, axis: shown, differences: true }} />
    <h2 class="part">On training problems</h2><${Panels} ...${{ document, bands: training, axis: shown }} />`;
}

function Panels({ document, bands, axis, differences }) {
  const [all, more] = useState(false), names = document.arms.map((arm) => [arm.label, arm.short]);
  const main = bands.metrics.filter((metric) => metric.main), first = main.length ? main : bands.metrics.slice(0, 6);
  const rest = bands.metrics.filter((metric) => !first.includes(metric));
  const draw = (metric) => html`<${Panel} key=${metric.key} ...${{ metric, names, axis, found: bands.curves[axis]?.[metric.key] ?? {} }} />
    ${differences && bands.apart[axis]?.[metric.key] ? html`<${Panel} key=${`${metric.key} apart`} ...${{ metric, names, axis, found: bands.apart[axis][metric.key].arms, against: bands.apart[axis][metric.key].reference }} />` : null}`;
  if (!bands.metrics.length) return html`<p class="soft">Nothing was measured here.</p>`;
  return html`<div class="charts">${first.map(draw)}</div>
    ${rest.length ? html`<p><button type="button" aria-pressed=${all} onClick=${() => more(!all)}>${all ? "fewer" : counted(rest.length, "more figure")}</button></p>` : null}
    ${all ? html`<div class="charts">${rest.map(draw)}</div>` : null}`;
}

function Panel({ metric, names, axis, found, against }) {
  const [x, lines] = useMemo(() => together(names.flatMap(([name, short], at) => (Object.hasOwn(found, name)
    ? [{ ...found[name], label: short, tone: tone(at), share: metric.share, dash: [undefined, [8, 4], [2, 4]][at % 3] }] : []))), [found, metric]);
  const title = html`<${Text} of=${metric.label} />${against && metric.share ? " in points" : ""}${against ? html`, minus <${Text} of=${names.find(([name]) => name === against)?.[1] ?? against} limit=${60} />` : null}`;
  return html`<${Chart} title=${title} label=${metric.label} x=${x} axis=${axis} lines=${lines} zero=${Boolean(against)} />`;
}

function Settings({ document }) {
  const [head, rows] = document.settings;
  return html`${rows.length ? html`<${Cells} kind="unlike" title="Settings that differ between the arms" lead="Of the first run of each arm; what is not here is the same." head=${head} rows=${rows} />`
    : html`<p>All runs have the same settings${document.arms.length > 1 ? "" : ", but for the seed"}.</p>`}<h2 class="part">Runs</h2><${Runs} arms=${document.arms} />`;
}

// One problem, and what each arm's group said to it.
function Sides({ document, rest }) {
  const seeds = [...new Set(document.arms.flatMap((arm) => arm.runs.map((run) => run.seed)))].sort((a, b) => a - b);
  const [seed, choose] = useState(seeds[0]), [sides, set] = useState(null), [query, ask] = useState("");
  useEffect(() => {
    let wanted = true, timer = 0;
    const look = () => source.sides(seed ?? 0).then((found) => {
      if (!wanted) return;
      set(found);
      if (found.reading > 0) timer = setTimeout(look, 1000);
    }, () => wanted && set({ problems: [], all: 0, reading: 0 }));
    if (seed !== undefined) look();
    return () => { wanted = false; clearTimeout(timer); };
  }, [seed]);
  if (seed === undefined) return html`<p>No run has begun.</p>`;
  if (!sides) return html`<p class="wait">reading …</p>`;
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const found = sides.problems.map((one, at) => [one, at]).filter(([one]) => words.every((word) => one.problem.toLowerCase().includes(word)));
  const at = Math.min(Number(rest) || 0, sides.problems.length - 1), one = sides.problems[at];
  return html`<div class="bar"><h2>One problem in every arm</h2><label>${source.live ? "seed" : "seed (others: cotrain view)"} <select value=${seed} onChange=${(event) => choose(Number(event.target.value))}>
      ${(source.live ? seeds : [sides.seed]).map((name) => html`<option value=${name}>${name}</option>`)}</select></label>
      <label class="search">search <input type="search" value=${query} placeholder="words of a problem" onInput=${(event) => ask(event.target.value)} /></label></div>
    <p class="soft">${counted(sides.all, "problem")} of training that the arms met with this seed${sides.reading > 0 ? "; reading on" : ""}; those on which they differ most first. Each group is the latest on the problem.</p>
    <div class="scroll short"><table class="sides"><thead><tr><th>problem</th>${document.arms.map((arm) => html`<th><${Text} of=${arm.short} limit=${60} /></th>`)}</tr></thead><tbody>
      ${found.slice(0, 40).map(([row, place]) => html`<tr class=${place === at ? "here" : ""}><td class="asked"><a href=${`#sides:${place}`}><${Text} of=${row.problem} limit=${180} /></a></td>
        ${document.arms.map((arm) => html`<td>${row.arms[arm.label] ? right(row.arms[arm.label]) : "–"}</td>`)}</tr>`)}</tbody></table></div>
    ${one ? html`<div class="problem"><${Text} of=${one.problem} /></div><div class="two columns">
      ${document.arms.map((arm, place) => html`<${Column} key=${`${seed} ${at} ${arm.label}`} arm=${arm.short} place=${place} found=${one.arms[arm.label]} />`)}</div>` : html`<p>No problem was met by two arms yet.</p>`}`;
}

function right(group) {
  const graded = group.members.filter(([, correct]) => correct !== null);
  return graded.length ? `${graded.filter(([, correct]) => correct === 1).length} of ${graded.length} right` : "not graded";
}

function Column({ arm, place, found }) {
  const [shown, show] = useState(0), [rollout, set] = useState(undefined);
  const member = found?.members[shown]?.[0], at = found ? `${found.step}:${found.task}:${member}` : "";
  useEffect(() => {
    let wanted = true;
    if (found) source.rolloutOf(found.run, place, at).then((one) => wanted && set(one), () => wanted && set(null));
    return () => { wanted = false; };
  }, [at]);
  if (!found) return html`<section><h3><${Text} of=${arm} limit=${110} /></h3><p class="soft">It did not meet this problem.</p></section>`;
  return html`<section><h3><${Text} of=${arm} limit=${110} /></h3><p class="soft">step ${ordinal(found.step)}, ${right(found)}${found.run === null ? null : html` · <a href=${`#open:${found.run}:r:${at}`}>open it in its run</a>`}</p>
    <p class="chips">${found.members.map(([name, correct], one) => html`<button type="button" aria-pressed=${one === shown} onClick=${() => show(one)}>${correct === 1 ? "✓" : correct === 0 ? "✗" : "·"} ${name}</button>`)}</p>
    ${rollout === undefined ? html`<p class="wait">reading …</p>` : rollout ? html`<${Solution} found=${rollout} />` : html`<p class="soft">This file holds the first of each group; <code>cotrain view</code> shows all.</p>`}</section>`;
}

export function Study({ document, axis, setAxis, rest }) {
  const part = document.parts.find((one) => one.name === rest);
  if (part) return html`<p><a href="#study">← the study</a></p><h2><${Text} of=${part.name} /></h2><${Result} document=${part.document} /><${Curves} document=${part.document} axis=${axis} setAxis=${setAxis} />`;
  return html`<ul class="standing">${document.standing.map((line) => html`<li><${Text} of=${line} /></li>`)}</ul>
    ${document.cells.map((one) => html`<${Cells} ...${one} />`)}
    <section><h2>Each part</h2>${document.parts.length ? html`<ul>${document.parts.map((one) => html`<li><a href=${`#study:${encodeURI(one.name.replace(/\p{Cs}/gu, "\ufffd"))}`}><${Text} of=${one.name} /></a></li>`)}</ul>` : html`<p class="soft">No part has been run.</p>`}</section>`;
}
