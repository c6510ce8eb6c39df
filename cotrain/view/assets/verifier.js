// How good is each judge? Figures with intervals and n, the confusion by answer and by step, calibration, and over time;
// of the solutions in training, and on held-out ones of the present and of the fixed solver.
import { useMemo, useState } from "preact/hooks";
import { html, Text, number, finite, plain } from "view/words";
import { Chart } from "view/charts";
import { figures, summed, calibrationError } from "view/measures";

const PARTS = ["the whole run", "early third", "middle third", "late third"];

export function Verifier({ document, judged, axis }) {
  const roles = Object.keys(judged?.judges ?? {});
  if (!roles.length) return html`<p>No review has been read yet: this run has no judge, or its rollouts are still being read.</p>`;
  return roles.map((role) => html`<${Judge} key=${role} role=${role} windows=${judged.judges[role]} document=${document} axis=${axis} />`);
}

function Judge({ role, windows, document, axis }) {
  const [part, choose] = useState(0);
  const some = useMemo(() => chosen(windows, part), [windows, part]);
  const count = useMemo(() => summed(some), [some]);
  const answers = figures(count), steps = figures(count, "step_");
  const hasSteps = steps.base.n > 0, error = calibrationError(count.bins);
  return html`<section><div class="bar"><h2>The <${Text} of=${role} /></h2>
      <label>counted over <select value=${part} onChange=${(event) => choose(Number(event.target.value))}>
        ${PARTS.map((name, at) => html`<option value=${at}>${name}</option>`)}</select></label></div>
    <p class="soft">Steps ${some[0]?.from ?? 0} to ${some.at(-1)?.to ?? 0}, rollouts of training. F1 says little where the base rate is near 0 or 100 %.</p>
    <div class="two"><${Table} title="Answers" figures=${answers} /><${Confusion} title="Answers" count=${count} level="" link /></div>
    ${hasSteps ? html`<div class="two"><${Table} title="Steps" figures=${steps} /><${Confusion} title="Steps" count=${count} level="step_" /></div>` : null}
    <${Calibration} bins=${count.bins} error=${error} />
    <${Time} windows=${windows} level="" title="Answers, over steps" />
    ${hasSteps ? html`<${Time} windows=${windows} level="step_" title="Steps of solutions, over steps" />` : null}
    <${HeldOut} role=${role} document=${document} /></section>`;
}

function chosen(windows, part) {
  if (!part) return windows;
  const from = Math.floor(((part - 1) * windows.length) / 3), to = Math.floor((part * windows.length) / 3);
  return windows.slice(from, Math.max(to, from + 1));
}

function Table({ title, figures: found }) {
  return html`<table><thead><tr><th>${title}</th><th>value</th><th>95 %</th><th>n</th></tr></thead><tbody>
    ${Object.values(found).map((one) => html`<tr><th scope="row">${one.label}</th><td>${number(one.value, true)}</td>
      <td><small>${finite(one.interval[0]) && one.n ? `${number(one.interval[0], true)} to ${number(one.interval[1], true)}` : "–"}</small></td><td>${number(one.n)}</td></tr>`)}
  </tbody></table>`;
}

function Confusion({ title, count, level, link }) {
  const all = ["tp", "fn", "tn", "fp"].reduce((sum, key) => sum + count[level + key], 0);
  const cell = (key, css, words) => {
    const value = count[level + key], share = number(all ? value / all : null, true);
    const kind = { fp: "fooled", fn: "doubted" }[key] ?? key;
    return html`<td class=${css}>${link ? html`<a href=${`#rollouts:${kind}`}>${number(value)}</a>` : number(value)}<small> ${share}<br />${words}</small></td>`;
  };
  return html`<table class="confusion"><thead><tr><th>${title}</th><th>called right</th><th>called wrong</th></tr></thead><tbody>
    <tr><th scope="row">right</th>${cell("tp", "ok", "accepted")}${cell("fn", "bad", "false negatives")}</tr>
    <tr><th scope="row">wrong</th>${cell("fp", "bad", "false positives")}${cell("tn", "ok", "caught")}</tr></tbody></table>`;
}

function Calibration({ bins, error }) {
  const used = bins.filter(([n]) => n > 0);
  if (!used.length) return null;
  return html`<div><h3>Calibration of the probability of CORRECT <small>expected calibration error ${number(error, true)}</small></h3>
    <div class="calibration" role="img" aria-label=${plain(used.map(([n, said, right]) => `said ${number(said / n, true)}, right ${number(right / n, true)}, n ${n}`).join("; "))}>
      <i class="diagonal"></i>
      ${used.map(([n, said, right]) => html`<i class="dot" title=${`said ${number(said / n, true)}, right ${number(right / n, true)}, n ${n}`}
        style=${{ left: `${(100 * said) / n}%`, bottom: `${(100 * right) / n}%`, width: `${size(n, bins)}px`, height: `${size(n, bins)}px` }}></i>`)}
    </div><p class="soft">Across: what it said on average. Up: the share that was right. On the line it is calibrated; the larger a dot, the more reviews.</p></div>`;
}

function size(n, bins) {
  const most = Math.max(...bins.map((bin) => bin[0]));
  return 8 + 26 * Math.sqrt(n / most);
}

function Time({ windows, level, title }) {
  const [x, lines] = useMemo(() => {
    const each = windows.map((window) => figures(window, level));
    const line = (label, key, tone, more = {}) => ({ label, values: each.map((one) => one[key].value), tone, share: true, ...more });
    return [windows.map((window) => (window.from + window.to) / 2), [
      line("precision", "precision", "--a"), line("recall", "recall", "--b"), line("F1", "f1", "--c"),
      line("balanced accuracy", "balanced", "--d", { dash: [6, 3] }), line("base rate", "base", "--quiet", { dash: [2, 3] }),
    ]];
  }, [windows, level]);
  return windows.length > 1 ? html`<${Chart} title=${title} x=${x} axis="step" lines=${lines} range=${[0, 1]} height=${240} />` : null;
}

function HeldOut({ role, document }) {
  const mine = document.figures.filter((one) => one.who === role), splits = [...new Set(mine.map((one) => one.split))];
  if (!mine.length) return null;
  const names = [...new Set(mine.map((one) => one.name))];
  const value = (one, side) => (one?.[side] ? `${number(one[side].value, one.share)}` : "–");
  const bounds = (one) => (one?.after && finite(one.after.low) ? `${number(one.after.low, one.share)} to ${number(one.after.high, one.share)}, n ${one.after.n}` : "");
  return html`<div class="scroll"><h3>On held-out problems: before → after</h3><table><thead><tr><th></th>
    ${splits.map((split) => html`<th><${Text} of=${split === "" ? "present solutions" : split === "fixed" ? "fixed solutions, of the start" : split.replaceAll("_", " ")} /></th>`)}</tr></thead><tbody>
    ${names.map((name) => html`<tr><th scope="row"><${Text} of=${mine.find((one) => one.name === name).label} /></th>
      ${splits.map((split) => { const one = mine.find((other) => other.name === name && other.split === split);
        return html`<td>${value(one, "before")} → <b>${value(one, "after")}</b> <small>${bounds(one)}</small></td>`; })}</tr>`)}
  </tbody></table></div>`;
}
