// What came of the run, and is it healthy? In words, before and after with the alarms beside it, then what is earned against
// what is true, the judges, and everything else.
import { useEffect, useMemo, useState } from "preact/hooks";
import { html, link, Text, number, counted, ordinal, signed, plain, finite } from "view/words";
import { Chart, tone, named, smoothing } from "view/charts";
import { Solution } from "view/rollout";
import * as source from "view/source";

const LAST = 10; // points that "now" is the mean of
const SHOWN = 3; // alarms at once
const FIRST_PLOTS = 4; // the others are folded

export function tones(document) {
  const roles = document.run.settings?.roles ?? {}, found = {};
  document.roles.forEach((role, at) => {
    found[role] = tone(at);
    const policy = roles[role]?.policy;
    if (typeof policy === "string") found[policy] ??= tone(at);
  });
  for (const policy of Object.keys(document.training.trained)) found[policy] ??= tone(Object.keys(found).length);
  return found;
}

export function lanesOf(document, colours, axis) {
  const x = document.training.axes[axis] ?? document.training.axes.step ?? [];
  return Object.entries(document.training.trained).map(([label, values]) => ({ label, tone: colours[label] ?? "--quiet", x, values }));
}

export function AxisOf({ document, axis, setAxis }) {
  const axes = axesOf(document);
  return html`<label>x axis <select value=${axes.indexOf(axis)} onChange=${(event) => setAxis(axes[Number(event.target.value)])}>
        ${axes.map((name, place) => html`<option value=${place}>${plain(named(name))}</option>`)}
      </select></label>`;
}

// Steps, from 0, as places on the chosen axis.
export function placed(document, axis, stored) {
  const steps = stored.map((step) => step + 1), from = document.training.axes.step ?? [], to = document.training.axes[axis] ?? from;
  return steps.map((step) => {
    const after = from.findIndex((one) => one >= step), at = after < 0 ? from.length - 1 : after;
    if (at <= 0 || from[at] === step) return to[Math.max(at, 0)] ?? step;
    const share = Math.min(1, (step - from[at - 1]) / (from[at] - from[at - 1]));
    return to[at - 1] + share * (to[at] - to[at - 1]);
  });
}

export function axesOf(document) {
  return Object.keys(document.training.axes);
}

export function Overview({ document, axis, setAxis }) {
  const colours = useMemo(() => tones(document), [document]);
  const lanes = useMemo(() => lanesOf(document, colours, axis), [document, axis]);
  const x = document.training.axes[axis] ?? document.training.axes.step ?? [];
  const common = { x, axis, lanes, smooth: true }, width = smoothing(x.length);
  const plots = [...earned({ document, common, colours }), ...heldOut({ document, axis, lanes }), ...health({ document, common, colours })].filter(hasData);
  const first = plots.slice(0, FIRST_PLOTS), rest = plots.slice(FIRST_PLOTS);
  return html`
    <${Lead} document=${document} />
    <div class="outcome"><${Figures} figures=${document.figures} /><${Alarms} document=${document} /></div>
    <${Showcase} of=${document.showcase} />
    <div class="bar">
      <h2>While it trained</h2>
      <${AxisOf} ...${{ document, axis, setAxis }} />
    </div>
    ${lanes.length ? html`<p class="soft">Under each curve: when a policy was trained.
      ${lanes.map((lane) => html` <span class="swatch" style=${{ background: `var(${lane.tone})` }}></span> <${Text} of=${lane.label} />`)}
    </p>` : null}
    ${width > 1 ? html`<p class="soft">Thick lines are means over ${width} neighbouring points, thin ones the points.</p>` : null}
    ${document.training.every > 1 ? html`<p class="soft">Each point is the mean of ${document.training.every} steps.</p>` : null}
    ${x.length ? html`<${Plots} of=${first} css="charts first-plots" />
      ${rest.length ? html`<details class="more-plots"><summary>${counted(rest.length, "more plot")}</summary><${Plots} of=${rest} /></details>` : null}
      <${Any} ...${{ document, common }} /><${Processes} of=${document.processes ?? []} />` : html`<p>No step is finished yet.</p>`}
  `;
}

// What the run was and what came of it, a line for each role, and where it can be seen. While one of its ends is measured, the
// page says so.
function Lead({ document }) {
  const { said, outcome, showcase, run } = document;
  const seen = showcase?.kind === "fooled" ? "Look at a wrong answer that it believes" : "Look at a wrong answer that it caught";
  const measured = { start: "The start is being measured: held-out problems are answered before the first step. The steps follow.", end: "All steps are done. The end is being measured, on the same held-out problems as the start." }[run.measuring];
  const look = showcase ? html`<a href=${link(showcase.wrong)}>${seen} →</a>` : null;
  return html`${said ? html`<p class="soft about"><${Text} of=${said} /></p>` : null}
    ${outcome.length ? html`<ul class="lead">${outcome.map((one) => html`<li><${Text} of=${one} /></li>`)}${look ? html`<li>${look}</li>` : null}</ul>` : look ? html`<p>${look}</p>` : null}
    ${measured ? html`<p class="measuring" role="status"><b>● ${measured}</b></p>` : null}`;
}

// A right answer beside a wrong one to the same problem, with what the judge said of each step.
function Showcase({ of }) {
  const [found, set] = useState({}), wanted = of ? [of.wrong, of.right] : [], key = wanted.join(" ");
  useEffect(() => {
    let shown = true;
    Promise.all(wanted.map((at) => source.rollout(at))).then((all) => shown && set({ key, all }), () => shown && set({}));
    return () => { shown = false; };
  }, [key]);
  if (!of || found.key !== key || !found.all.every(Boolean)) return null;
  const [wrong, right] = found.all, titles = [of.kind === "fooled" ? "wrong, and believed" : "wrong, and caught", "right, and called right"];
  return html`<section class="showcase"><h2>One problem, two answers</h2>
    <p class="soft">From step ${ordinal(wrong.step)}. The marks on the left are the truth, the words on the right the verdicts; “≠” marks a verdict that is wrong.</p>
    ${wrong.problem ? html`<div class="problem"><${Text} of=${wrong.problem} /></div>` : null}
    <div class="two">${[wrong, right].map((one, place) => html`<div><h3>${titles[place]} <small><a href=${link(wanted[place])}>the whole rollout →</a></small></h3><${Solution} found=${one} /></div>`)}</div></section>`;
}

const Plots = ({ of, css = "charts" }) => html`<div class=${css}>${of.map((plot) => html`<${Chart} key=${plot.name} ...${plot} />`)}</div>`;
const hasData = (plot) => plot.x.length && plot.lines.some((line) => line.values.some((value) => value !== null));

function Alarms({ document }) {
  const { alarms, bands, run } = document;
  const outside = alarms.length ? [] : leaving(document), first = alarms.slice(0, SHOWN), rest = alarms.slice(SHOWN);
  return html`<section class="alarms" aria-label="alarms">
    ${alarms.length || run.stopped ? null : html`<p class="calm"><b>● no alarm</b> ${document.unwatched ? html`so far; ${counted(document.unwatched, "step")} still to be looked at. ` : ""}${bands.watched.length} of ${bands.all} bands have data in this run.</p>`}
    ${first.map((alarm) => html`<${Alarm} alarm=${alarm} />`)}
    ${rest.length ? html`<details><summary>${counted(rest.length, "more alarm")}</summary>${rest.map((alarm) => html`<${Alarm} alarm=${alarm} />`)}</details>` : null}
    ${outside.length ? html`<details><summary>${counted(outside.length, "figure")} outside of ${outside.length === 1 ? "its" : "their"} healthy range now</summary><ul>
      ${outside.map((one) => html`<li><b><${Text} of=${`${one.who} ${one.label}`} /></b> ${number(one.now, one.share)}. <${Text} of=${one.advice} /></li>`)}
    </ul></details>` : null}
    ${document.notes.map((note) => html`<p class="note"><${Text} of=${note} />.</p>`)}
  </section>`;
}

function Alarm({ alarm }) {
  return html`<article class="alarm">
    <h3>■ <${Text} of=${alarm.band} /> <small><${Text} of=${alarm.key} />, ${alarm.last > alarm.step ? `steps ${ordinal(alarm.step)}–${ordinal(alarm.last)}` : `step ${ordinal(alarm.step)}`}</small></h3>
    <p>Read <b><${Text} of=${alarm.reading} /></b>; healthy: <${Text} of=${alarm.healthy} />.</p>
    <p><${Text} of=${alarm.advice} /></p>
    ${alarm.examples.length ? html`<p class="examples">Rollouts that show it: ${alarm.examples.map((at) => html`<a href=${link(at)}>step ${ordinal(Number(at.split(":")[0]))} <small><${Text} of=${at} /></small></a> `)}</p>` : null}
  </article>`;
}

function leaving(document) {
  return Object.entries(document.metrics).flatMap(([name, metric]) => {
    const [low, high] = metric.healthy, tail = (document.training.series[name] ?? []).slice(-LAST).filter(finite);
    if ((low === null && high === null) || !tail.length) return [];
    const now = tail.reduce((sum, value) => sum + value, 0) / tail.length;
    return now < (low ?? -Infinity) || now > (high ?? Infinity) ? [{ ...metric, now }] : [];
  });
}

// What each role earns, beside what is true: the rewards that its objective weighs, and its accuracy.
function earned({ document, common, colours }) {
  const { series } = document.training, plots = [];
  for (const said of document.roles.filter((role) => series[`${role}/predicted_positive`])) {
    plots.push({ ...common, name: `called ${said}`, title: html`Called right by the <${Text} of=${said} />, and right`, label: `called right by the ${said}, and right`, note: "shaded: more is called right than is",
      gap: [0, 1], lines: [
        { label: `called right by ${said}`, values: series[`${said}/predicted_positive`], tone: colours[said], share: true },
        { label: "right", values: series[`${said}/base_rate`] ?? [], truth: true, share: true },
      ] });
  }
  for (const role of document.roles) {
    // Undefined where no answer is known.
    const truth = ["accuracy", "balanced_accuracy"].find((name) => series[`${role}/${name}`]);
    const rewards = Object.keys(series).filter((name) => name.startsWith(`${role}/reward/`) && name.split("/").length === 3);
    const paid = rewards.filter((name) => !name.endsWith("/class_label") && !name.endsWith("/label"));
    const lines = paid.map((name, at) => ({ label: name.split("/")[2], values: series[name], tone: tone(at), share: document.metrics[name]?.share }));
    const right = [];
    if (truth) {
      const label = `truth: ${truth.replace("_", " ")}`;
      right.push({ label, values: series[`${role}/${truth}`], truth: true, share: true });
    }
    const main = lines.findIndex((line) => line.label !== "format");
    if (lines.length) {
      const title = html`What the <${Text} of=${role} /> earns${truth ? ", and what is true" : ""}`;
      plots.push({ ...common, name: `earned ${role}`, title,
        gap: main >= 0 && truth === "accuracy" ? [main, lines.length] : null, lines: [...lines, ...right] });
    }
    const noted = Object.keys(series).filter((name) => name.startsWith(`${role}/metadata/`) && document.metrics[name]?.share);
    if (noted.length) {
      plots.push({ ...common, name: `noted ${role}`, title: html`What is true of the <${Text} of=${role} />'s turns`, note: "what the protocol noted as truth",
        lines: noted.map((name, at) => ({ label: name.split("/").at(-1).replaceAll("_", " "), values: series[name], tone: tone(at), share: true })) });
    }
  }
  return plots;
}

function heldOut({ document, axis, lanes }) {
  const { axes, series } = document.evaluations, x = axes[axis] ?? [];
  const wanted = /^[^/]+\/(pass@1|greedy|majority@\d+|balanced_accuracy|step_balanced_accuracy|error_f1)$/;
  const lines = Object.keys(series).filter((name) => wanted.test(name)).map((name, at) => ({
    label: name.replaceAll("_", " "), values: series[name], tone: tone(at), share: true,
  }));
  return x.length > 1 ? [{ name: "held out", title: "On held-out problems", x, axis, lines, lanes }] : [];
}

// In order of interest: the first ones are seen without unfolding.
const PANELS = [
  ["Judges", "", /\/(balanced_accuracy|true_positive_rate|true_negative_rate|step_balanced_accuracy)$/],
  ["Entropy", "what is left to explore", /\/(entropy|surprisal)$/],
  ["Groups without spread", "they teach nothing", /\/zero_spread_groups$/],
  ["Lengths", "tokens of a turn", /\/length$/],
  ["Unreadable and cut off", "", /\/(parse_failures|truncated)$/],
  ["KL to the reference", "nats a token", /\/kl$/],
  ["Sampler against trainer", "difference of log-probabilities", /\/sampler_trainer_diff$/],
  ["Clip fraction", "", /\/clip_fraction$/],
  ["Gradient norm", "", /\/grad_norm$/],
  ["Loss", "", /\/loss$/],
];

function health({ document, common, colours }) {
  const { series } = document.training;
  return PANELS.map(([title, note, pattern]) => {
    const names = Object.keys(series).filter((name) => pattern.test(name));
    const many = new Set(names.map((name) => name.split("/").at(-1))).size > 1;
    const own = names.map((name) => colours[document.metrics[name]?.who]), alike = new Set(own).size < own.length;
    const lines = names.map((name, at) => {
      const metric = document.metrics[name] ?? {};
      return { label: many ? `${metric.who} ${metric.label}` : metric.who, values: series[name], share: metric.share, tone: many || alike ? tone(at) : (own[at] ?? tone(at)) };
    });
    const healthy = many ? null : (document.metrics[names[0]]?.healthy ?? null);
    return { ...common, name: title, title, note, lines, healthy };
  });
}

function Any({ document, common }) {
  const names = Object.keys(document.training.series), [at, choose] = useState(-1), name = names[at];
  const metric = document.metrics[name];
  return html`<section><label>any other figure <select value=${at} onChange=${(event) => choose(Number(event.target.value))}>
      <option value="-1">choose one of ${names.length}</option>
      ${names.map((one, place) => html`<option value=${place}>${plain(one)}</option>`)}
    </select></label>
    ${metric ? html`<p class="soft"><${Text} of=${metric.meaning} /></p><div class="charts"><${Chart} ...${common} title=${html`<${Text} of=${name} />`}
      healthy=${metric.healthy} lines=${[{ label: name, values: document.training.series[name], tone: "--a", share: metric.share }]} /></div>` : null}
  </section>`;
}

// Four figures, each with the direction that is better; the others are folded. Beside one that got worse stands why it may have.
function Figures({ figures }) {
  if (!figures.length) return null;
  const main = figures.filter((one) => finite(one.lead)).sort((a, b) => a.lead - b.lead);
  const rest = figures.filter((one) => !finite(one.lead));
  const body = (some) => html`<table class="figures"><thead><tr><th>held-out problems</th><th>before</th><th>after</th><th>change, 95 % interval</th></tr></thead>
    <tbody>${some.map((one) => html`<tr>
      <th scope="row"><b><${Text} of=${one.who} /></b> <${Text} of=${one.label} />${one.split ? html` <small><${Text} of=${ON[one.split] ?? one.split.replaceAll("_", " ")} /></small>` : null}
        ${one.direction ? html` <small class="direction"><${Text} of=${one.direction} /></small>` : null}</th>
      <${Cell} estimate=${one.before} share=${one.share} /><${Cell} estimate=${one.after} share=${one.share} />
      <td><${Changed} ...${one} />${one.worse_because ? html`<span class="because"><${Text} of=${one.worse_because} /></span>` : null}</td>
    </tr>`)}</tbody></table>`;
  return html`<section class="before-after"><h2>Before and after</h2>
    ${main.length ? body(main) : html`<p class="soft">There is no final evaluation yet.</p>`}
    ${rest.length ? html`<details><summary>${counted(rest.length, "more figure")}</summary>${body(rest)}</details>` : null}</section>`;
}

const ON = { fixed: "on solutions that did not change" };

// What each process of a run did in a step, on average; nothing where the run had none of its own.
function Processes({ of }) {
  const told = (value, unit) => html`<td>${finite(value) ? `${number(value)} ${unit}` : "–"}</td>`;
  return !of.length ? null : html`<section><h2>Processes</h2><table class="figures"><thead><tr><th>mean of ${counted(of[0].steps, "step")}</th><th>holds</th>
    <th>tokens a second</th><th>published</th><th>on their way</th><th>asleep</th></tr></thead>
    <tbody>${of.map((one) => html`<tr><th scope="row"><b><${Text} of=${one.name} /></b></th><td><${Text} of=${one.policies} /></td>
      ${told(one.tokens_per_second, "")}${told(one.published_bytes / 1e6, "MB")}${told(one.publish_seconds, "s")}${told(one.asleep_seconds, "s")}</tr>`)}</tbody></table></section>`;
}

function Cell({ estimate, share }) {
  if (!estimate || !finite(estimate.value)) return html`<td>–</td>`;
  const bounds = finite(estimate.low) && finite(estimate.high) ? `${number(estimate.low, share).replace("\u202f%", "")} to ${number(estimate.high, share)}` : "";
  return html`<td>${number(estimate.value, share)} <small>${bounds}${estimate.n ? `, n\u00a0${estimate.n}` : ""}</small></td>`;
}

// A change is one where its interval leaves out zero.
export function Changed({ change, share, better }) {
  if (!change || !finite(change.value)) return "–";
  const known = finite(change.low) && finite(change.high);
  const bounds = known ? `${signed(change.low, share)} to ${signed(change.high, share)}` : "interval unknown";
  if (!known || (change.low <= 0 && change.high >= 0)) return html`<span class="soft">no change shown</span> <small>${bounds}</small>`;
  const css = !better ? "" : change.value > 0 === better > 0 ? "good" : "poor";
  return html`<b class=${css}>${change.value > 0 ? "▲" : "▼"} ${signed(change.value, share)}${share ? " points" : ""}</b> <small>${bounds}</small>`;
}

export function Setting({ document }) {
  const { description, settings, provenance, arguments: given } = document.run;
  return html`<section><h2>How it was made</h2>
    ${description.split("\n\n").map((part) => html`<p class="about"><${Text} of=${part.replaceAll("``", "").replaceAll("\n", " ")} /></p>`)}
    <h3>Arguments</h3><${Facts} of=${given} /><h3>Settings</h3><${Facts} of=${settings} /><h3>Provenance</h3><${Facts} of=${provenance} /></section>`;
}

// Nested settings as an outline, one line each.
function Facts({ of, depth = 0 }) {
  if (!of || typeof of !== "object") return html`<${Text} of=${of === null ? "none" : of} />`;
  const entries = Object.entries(of).filter(([key]) => key !== "is");
  if (Array.isArray(of) && of.every((one) => one === null || typeof one !== "object")) return html`<${Text} of=${of.join(", ") || "none"} />`;
  if (!entries.length) return "none";
  const kind = typeof of.is === "string" ? html`<small><${Text} of=${of.is} /></small>` : null;
  return html`${kind}<dl class="facts">${entries.map(([key, value]) => html`<div><dt><${Text} of=${key} /></dt>
    <dd>${depth < 8 ? html`<${Facts} of=${value} depth=${depth + 1} />` : "…"}</dd></div>`)}</dl>`;
}
