// How good is each judge? Figures with intervals and n, the confusion by answer and by step, the first wrong step, calibration,
// errors that it believes; over time; on held-out solutions of the present and of the fixed solver; and under attack.
import { useMemo, useState } from "preact/hooks";
import { html, Text, number, counted, ordinal, signed, finite, plain, wilson } from "view/words";
import { Chart, tone } from "view/charts";
import { AxisOf, lanesOf, placed, tones } from "view/overview";
import { figures, summed, joined, calibrationError, roc } from "view/measures";

export const PARTS = ["the whole run", "early third", "middle third", "late third"];

export function Verifier({ document, judged, axis, setAxis }) {
  const [part, choose] = useState(0), roles = Object.keys(judged?.judges ?? {});
  const lanes = useMemo(() => lanesOf(document, tones(document), axis), [document, axis]);
  const held = useMemo(() => judges(document), [document]);
  if (!roles.length && !held.length && !judged?.attack) return html`<p>No review has been read yet: this run has no judge, or its rollouts are still being read.</p>`;
  return html`<div class="bar"><p class="soft">Positive is right: a false positive is wrong and called right, a false negative is right and called wrong. Precision, recall and F1 are those of the class “wrong”; F1 says little where the base rate is near 0 or 100${"\u202f"}%.</p>
      <label>counted over <select value=${part} onChange=${(event) => choose(Number(event.target.value))}>
        ${PARTS.map((name, at) => html`<option value=${at}>${name}</option>`)}</select></label>
      <${AxisOf} ...${{ document, axis, setAxis }} /></div>
    ${roles.map((role) => html`<${Judge} key=${role} ...${{ role, windows: judged.judges[role], more: judged.more ?? [], document, axis, lanes, part }} />`)}
    ${held.filter((role) => !roles.includes(role)).map((role) => html`<section><h2>The <${Text} of=${role} /></h2><${HeldOut} ...${{ role, document, axis, lanes }} /></section>`)}
    <${Attack} attack=${judged?.attack} />`;
}

const judges = (document) => [...new Set(document.figures.filter((one) => one.name === "balanced_accuracy").map((one) => one.who))];

function Judge({ role, windows, more, document, axis, lanes, part }) {
  const some = useMemo(() => chosen(windows, part), [windows, part]), count = useMemo(() => summed(some), [some]);
  const rest = useMemo(() => joined(chosen(more, part)), [more, part]);
  const answers = figures(count), steps = figures(count, "step_"), where = part ? `;steps=${some[0].from}-${some.at(-1).to}` : "";
  const hasSteps = steps.base.n > 0;
  return html`<section><h2>The <${Text} of=${role} /></h2>
    <p class="soft">Rollouts of training, steps ${ordinal(some[0]?.from)} to ${ordinal(some.at(-1)?.to)}. Each number of a table opens its rollouts.</p>
    <div class="two"><${Table} title="Answers" figures=${answers} /><${Confusion} title="Answers" count=${count} level="" where=${where} /></div>
    ${hasSteps ? html`<div class="two"><${Table} title="Steps" figures=${steps} more=${[first(count)]} /><${Confusion} title="Steps" count=${count} level="step_" where=${where} /></div>` : null}
    <div class="two"><${Calibration} bins=${count.bins} where=${where} /><${Roc} bins=${count.bins} /><${Errors} errors=${rest.errors[role]} where=${where} /></div>
    <div class="charts"><${Time} ...${{ windows, level: "", title: "Answers", document, axis, lanes }} />
    ${hasSteps ? html`<${Time} ...${{ windows, level: "step_", title: "Steps of solutions", document, axis, lanes }} />` : null}</div>
    <${HeldOut} ...${{ role, document, axis, lanes }} /></section>`;
}

export function chosen(windows, part) {
  if (!part) return windows;
  const from = Math.floor(((part - 1) * windows.length) / 3), to = Math.floor((part * windows.length) / 3);
  return windows.slice(from, Math.max(to, from + 1));
}

function first({ first_found: hit, first_missed: miss }) {
  const n = hit + miss;
  return { label: "first wrong step found, where one is wrong", value: n ? hit / n : null, interval: wilson(hit, n), n };
}

function Table({ title, figures: found, more = [] }) {
  return html`<table><thead><tr><th>${title}</th><th>value</th><th>95${"\u202f"}%</th><th>n</th></tr></thead><tbody>
    ${[...Object.values(found), ...more].map((one) => html`<tr><th scope="row">${one.label}</th><td>${number(one.value, true)}</td>
      <td class="span"><small>${finite(one.interval[0]) && one.n ? `${number(one.interval[0], true)} to ${number(one.interval[1], true)}` : "–"}</small></td><td>${number(one.n)}</td></tr>`)}
  </tbody></table>`;
}

const KIND = { fp: "fooled", fn: "doubted", step_fp: "stepfp", step_fn: "stepfn" };

function Confusion({ title, count, level, where }) {
  const all = ["tp", "fn", "tn", "fp"].reduce((sum, key) => sum + count[level + key], 0);
  const cell = (key, css, words) => {
    const value = count[level + key], kind = KIND[level + key] ?? (level ? "" : key);
    return html`<td class=${css}>${kind ? html`<a href=${`#rollouts:${kind}${where}`}>${number(value)}</a>` : number(value)}<small> ${number(all ? value / all : null, true)}<br />${words}</small></td>`;
  };
  return html`<div><table class="confusion"><thead><tr><th>${title}</th><th>called right</th><th>called wrong</th></tr></thead><tbody>
    <tr><th scope="row">right</th>${cell("tp", "ok", "accepted")}${cell("fn", "bad", "false negatives")}</tr>
    <tr><th scope="row">wrong</th>${cell("fp", "bad", "false positives")}${cell("tn", "ok", "caught")}</tr></tbody></table>
    ${level ? html`<p class="soft">First wrong step: <a href=${`#rollouts:found${where}`}>found ${number(count.first_found)}</a>, <a href=${`#rollouts:missed${where}`}>missed ${number(count.first_missed)}</a> ${count.first_missed === 1 ? "review" : "reviews"}.</p>`
      : html`<p class="soft"><a href=${`#rollouts:unread${where}`}>${counted(count.unread, "review")}</a> could not be read.</p>`}</div>`;
}

const TICKS = [0, 0.25, 0.5, 0.75, 1]; // of both axes

function Calibration({ bins, where }) {
  const used = bins.map((bin, at) => [...bin, at]).filter(([n]) => n > 0), error = calibrationError(bins);
  if (!used.length) return html`<div><h3>Calibration</h3><p class="soft">The reviews give no probabilities.</p></div>`;
  const said = ([n, sum, right]) => `said ${number(sum / n, true)}, right ${number(right / n, true)}, n ${n}`;
  return html`<div><h3>Calibration <small>expected error ${number(error, true)}</small></h3>
    <div class="reliability"><span class="up">share that was right, %</span><div class="calibration" role="img" aria-label=${plain(used.map(said).join("; "))}>
      <i class="diagonal"></i>
      ${TICKS.map((tick) => html`<i class="tick across" style=${{ left: `${100 * tick}%` }}>${100 * tick}</i><i class="tick upward" style=${{ bottom: `${100 * tick}%` }}>${100 * tick}</i>`)}
      ${used.map((bin) => html`<a class="dot" href=${`#rollouts:all;score=${bin[3]}${where}`} title=${said(bin)} aria-label=${said(bin)}
        style=${{ left: `${(100 * bin[1]) / bin[0]}%`, bottom: `${(100 * bin[2]) / bin[0]}%`, width: `${size(bin[0], bins)}px`, height: `${size(bin[0], bins)}px` }}></a>`)}
    </div><span class="ends">probability of CORRECT that reviews gave, %</span></div>
    <p class="soft">On the line it is calibrated. The larger a dot, the more reviews.</p></div>`;
}

// Who calls right what has a probability above a limit: which share of the right ones and of the wrong ones that is, over limits.
function Roc({ bins }) {
  const { x, y, area } = useMemo(() => roc(bins), [bins]);
  if (area === null) return null;
  return html`<div class="charts"><${Chart} title="Right ones accepted, over wrong ones accepted" note=${`ROC, from ten bins of probability; area ${area.toFixed(2)}, chance 0.5`} x=${x} axis="% of wrong ones accepted"
    lines=${[{ label: "right ones accepted", values: y, tone: "--a", share: true }, { label: "chance", values: x.map((one) => one / 100), tone: "--quiet", dash: [2, 3], share: true }]} range=${[0, 1]} height=${240} /></div>`;
}

function size(n, bins) {
  const most = Math.max(...bins.map((bin) => bin[0]));
  return 8 + 26 * Math.sqrt(n / most);
}

function Errors({ errors, where }) {
  const found = Object.entries(errors ?? {}).map(([kind, [believed, caught, unread]]) => ({ kind, believed, caught, unread, n: believed + caught }))
    .sort((a, b) => b.believed - a.believed).slice(0, 20);
  if (!found.length) return null;
  return html`<div><h3>Wrong solutions that are called right, by their first error</h3><table><thead><tr><th>first error</th><th>called right</th><th>of reviews</th><th>95${"\u202f"}%</th></tr></thead><tbody>
    ${found.map((one) => { const [low, high] = wilson(one.believed, one.n); return html`<tr><th scope="row"><${Text} of=${one.kind} limit=${60} /></th>
      <td><a href=${`#rollouts:fooled${where}`} onClick=${(event) => open(event, one.kind, where)}>${number(one.believed)}</a> <small>${number(one.n ? one.believed / one.n : null, true)}</small></td><td>${number(one.n)}</td>
      <td class="span"><small>${one.n ? `${number(low, true)} to ${number(high, true)}` : "–"}</small></td></tr>`; })}</tbody></table></div>`;
}

// The place of a kind in the list of rows is known only there: the address is made when it is asked for.
let places = [];
export const knowErrors = (names) => { places = names ?? []; };
function open(event, kind, where) {
  const at = places.indexOf(kind);
  if (at < 0) return;
  event.preventDefault();
  location.hash = `#rollouts:fooled;error=${at}${where}`;
}

function Time({ windows, level, title, document, axis, lanes }) {
  const [x, lines] = useMemo(() => {
    const each = windows.map((window) => figures(window, level));
    const line = (label, key, colour, more = {}) => ({ label, values: each.map((one) => one[key].value), tone: colour, share: true, ...more });
    return [placed(document, axis, windows.map((window) => window.to)), [
      line("precision on wrong ones", "precision", "--a"), line("recall on wrong ones", "recall", "--b"), line("F1 on wrong ones", "f1", "--c"),
      line("balanced accuracy", "balanced", "--d", { dash: [6, 3] }), line("base rate", "base", "--quiet", { dash: [2, 3] }),
    ]];
  }, [windows, level, axis, document]);
  return windows.length > 1 ? html`<${Chart} title=${title} x=${x} axis=${axis} lines=${lines} lanes=${lanes} range=${[0, 1]} height=${240} />` : null;
}

function HeldOut({ role, document, axis, lanes }) {
  const mine = document.figures.filter((one) => one.who === role && one.spoken), splits = [...new Set(mine.map((one) => one.split))];
  const names = [...new Set(mine.map((one) => one.name))], { axes, series } = document.evaluations;
  const value = (one, side) => (one?.[side] ? `${number(one[side].value, one.share)}` : "–");
  const bounds = (one) => (one?.after && finite(one.after.low) ? `${number(one.after.low, one.share)} to ${number(one.after.high, one.share)}, n ${one.after.n}` : "");
  const named = (split) => (split === "" ? "solutions of the present generator" : split === "fixed" ? "fixed solutions, of the start" : split.replaceAll("_", " "));
  const lines = Object.keys(series).filter((name) => name.startsWith(`${role}/`) && /\/(balanced_accuracy|error_f1|base_rate)$/.test(name)).map((name, at) => ({
    label: name.slice(role.length + 1).replaceAll("_", " ").replaceAll("/", ": "), values: series[name], tone: tone(at), share: true, dash: name.endsWith("base_rate") ? [2, 3] : undefined,
  }));
  const chart = axes[axis]?.length > 1 ? html`<div class="charts"><${Chart} title="On held-out problems" x=${axes[axis]} axis=${axis} lines=${lines} lanes=${lanes} range=${[0, 1]} height=${240} /></div>` : null;
  if (!mine.length) return chart;
  return html`${chart}<h3>On held-out problems: before → after</h3><div class="scroll"><table><thead><tr><th></th>
    ${splits.map((split) => html`<th><${Text} of=${named(split)} /></th>`)}</tr></thead><tbody>
    ${names.map((name) => html`<tr><th scope="row"><${Text} of=${mine.find((one) => one.name === name).label} /></th>
      ${splits.map((split) => { const one = mine.find((other) => other.name === name && other.split === split);
        return html`<td>${one ? html`${value(one, "before")} → <b>${value(one, "after")}</b> <small>${bounds(one)}</small>` : "–"}</td>`; })}</tr>`)}
  </tbody></table></div>`;
}

const rate = (one) => (finite(one?.value) ? html`${number(one.value, true)} <small>${finite(one.low) && finite(one.high) ? `${number(one.low, true)} to ${number(one.high, true)}` : ""}</small>` : "–");

// What `cotrain attack` found: how often each family of strings is called right.
function Attack({ attack }) {
  if (!attack || !Array.isArray(attack.families)) return null;
  const change = (one) => (finite(one?.value) ? html`<b class=${finite(one.low) && one.low > 0 ? "poor" : ""}>${signed(one.value, true)}</b> <small>${finite(one.low) && finite(one.high) ? `${signed(one.low, true)} to ${signed(one.high, true)}` : ""}</small>` : "–");
  return html`<section><h2>Under attack</h2>
    <p class="soft"><${Text} of=${`${number(attack.total?.strings)} strings put in the place of wrong solutions of ${number(attack.problems)} problems (${attack.split ?? ""}); the checkpoint after step ${number(attack.step)}, ${attack.role ?? ""} with ${attack.model ?? ""} at temperature ${number(attack.temperature)}.`} />
      ${" "}Unchanged, these solutions are called right in ${rate(attack.ordinary?.false_positive_rate)}.</p>
    <div class="scroll"><table><thead><tr><th>family</th><th>called right, of those shown</th><th>change to the unchanged, points</th><th>shown</th><th>refused by the parser</th><th>unread</th></tr></thead><tbody>
    ${attack.families.slice(0, 60).map((one) => html`<tr><th scope="row"><b><${Text} of=${one.family} limit=${80} /></b> <small><${Text} of=${one.meaning} limit=${200} />${one.counts === "steps" ? "; counted is: every step called right" : ""}</small>
      ${Array.isArray(one.examples) && one.examples.length ? html`<details><summary>${one.examples.length} that passed</summary>${one.examples.slice(0, 3).map((example) => html`<dl class="facts">
        ${[["problem", example.problem], ["string", example.string], ["what was shown", example.shown], ["what it said", example.review]].map(([name, text]) => html`<div><dt>${name}</dt><dd class="mono"><${Text} of=${text} limit=${3000} /></dd></div>`)}</dl>`)}</details>` : null}</th>
      <td class="span">${rate(one.false_positive_rate)}</td><td class="span">${change(one.change)}</td><td>${number(one.asked - one.refused)}</td><td>${number(one.refused)}</td><td>${number(one.unread)}</td></tr>`)}
    <tr><th scope="row"><b>all families</b></th><td>${rate(attack.total?.false_positive_rate)}</td><td></td><td>${number(attack.total?.asked - attack.total?.refused)}</td><td>${number(attack.total?.refused)}</td><td>${number(attack.total?.unread)}</td></tr>
    </tbody></table></div></section>`;
}
