// Who agrees with whom: verifier, rule and vote; what is gained by believing the verifier; generators against verifiers of other
// steps; how hard the problems are.
import { useMemo, useState } from "preact/hooks";
import { html, Text, number, counted, ordinal, signed, plain, finite } from "view/words";
import { Chart } from "view/charts";
import { joined, kappa, worse } from "view/measures";
import { PARTS, chosen } from "view/verifier";

const NAMES = { rule: "the rule (truth)", vote: "the vote of the group", reviews: "the verifier (most reviews)", "one review": "one review", another: "another review" };
const FILTER = { rule: "right", vote: "vote", reviews: "said" };

export function Interaction({ judged }) {
  const [part, choose] = useState(0), windows = judged?.more ?? [];
  const some = useMemo(() => chosen(windows, part), [windows, part]), total = useMemo(() => joined(some), [some]);
  const where = part && some.length ? `;steps=${some[0].from}-${some.at(-1).to}` : "";
  const pairs = Object.entries(total.pairs).filter(([, cells]) => cells.some(Boolean));
  const best = Object.entries(total.best), rates = Object.entries(total.rates);
  if (!windows.length && !judged?.xplay && !judged?.reviewed) return html`<p>No rollout has been read yet.</p>`;
  return html`<div class="bar"><p class="soft">Of rollouts of training${some.length ? `, steps ${ordinal(some[0].from)} to ${ordinal(some.at(-1).to)}` : ""}.</p><label>counted over <select value=${part} onChange=${(event) => choose(Number(event.target.value))}>
        ${PARTS.map((name, at) => html`<option value=${at}>${name}</option>`)}</select></label></div>
    ${pairs.length ? html`<section><h2>Who disagrees</h2><p class="soft">Solutions that each calls right or wrong. κ is Cohen's: 0 is the agreement of chance, 1 full agreement.</p>
      <div class="grid">${pairs.map(([name, cells]) => html`<${Pair} key=${name} name=${name} cells=${cells} where=${where} />`)}</div></section>` : null}
    ${best.map(([role, sizes]) => html`<${Best} key=${role} role=${role} sizes=${sizes} apart=${total.apart[role]} />`)}
    <${Reviewed} reviewed=${judged?.reviewed} /><${Crossed} xplay=${judged?.xplay} />
    ${rates.map(([role, bins]) => html`<${Rates} key=${role} role=${role} bins=${bins} where=${where} />`)}`;
}

function Pair({ name, cells, where }) {
  const [one, other] = name.split("|"), [agree, beyond] = kappa(cells), all = cells.reduce((sum, value) => sum + value, 0);
  const cell = (value, a, b) => {
    const linked = FILTER[one] && FILTER[other], text = number(value);
    return html`<td class=${a === b ? "ok" : "bad"}>${linked ? html`<a href=${`#rollouts:all;${FILTER[one]}=${a};${FILTER[other]}=${b}${where}`}>${text}</a>` : text}<small> ${number(value / all, true)}</small></td>`;
  };
  return html`<div><h3>${NAMES[one] ?? html`<${Text} of=${one} />`} and ${NAMES[other] ?? html`<${Text} of=${other} />`} <small>agree ${number(agree, true)}, κ ${finite(beyond) ? beyond.toFixed(2).replace("-", "−") : "–"}</small></h3>
    <table class="confusion"><thead><tr><th></th><th>${other === "another" ? "another" : other}: right</th><th>wrong</th></tr></thead><tbody>
    <tr><th scope="row">${one}: right</th>${cell(cells[0], 1, 1)}${cell(cells[1], 1, 0)}</tr><tr><th scope="row">wrong</th>${cell(cells[2], 0, 1)}${cell(cells[3], 0, 0)}</tr></tbody></table></div>`;
}

function Best({ role, sizes, apart }) {
  const ns = Object.keys(sizes).map(Number).sort((a, b) => a - b), mean = (n, at) => sizes[n][at] / sizes[n][0];
  if (ns.length < 2) return null;
  const truth = ns.map((n) => mean(n, 2)), least = worse(apart, ns);
  const lines = [
    { label: "verifier says of its choice", values: ns.map((n) => mean(n, 1)), tone: "--b", share: true },
    { label: "its choice is right", values: truth, truth: true, share: true },
    { label: "any of n is right (pass@n)", values: ns.map((n) => mean(n, 3)), tone: "--quiet", dash: [2, 3], share: true },
  ];
  return html`<section><h2>Best of n, chosen by the verifier: <${Text} of=${role} /></h2>
    <p class="soft">From groups of training, an expectation over subsets. <${Fall} of=${least} />
      ${" "}<a href="#rollouts:fooled">The wrong ones that it believes</a>.</p>
    <div class="two"><${Chart} title="Best of n" x=${ns.map((n) => Math.log2(n))} axis="n" ticks=${(value) => String(2 ** value)} lines=${lines} gap=${[0, 1]} height=${240} />
    <table><thead><tr><th>n</th><th>says</th><th>is right</th><th>pass@n</th><th>groups</th></tr></thead><tbody>${ns.map((n) => html`<tr><th scope="row">${n}</th><td>${number(mean(n, 1), true)}</td><td><b>${number(mean(n, 2), true)}</b></td><td>${number(mean(n, 3), true)}</td><td>${number(sizes[n][0])}</td></tr>`)}</tbody></table></div></section>`;
}

// A fall is called one where its interval, of the same groups, lies below zero.
function Fall({ of }) {
  if (!of) return "Too few groups to say whether its choice gets worse with n.";
  const figures = `${number(of.few, true)} right at n ${of.n}, ${number(of.many, true)} at n ${of.most}, of the same ${counted(of.groups, "group")}: ${signed(of.value, true)} points, 95 % ${signed(of.low, true)} to ${signed(of.high, true)}`;
  return of.high < 0 ? html`<b class="poor">Past n ${of.n} its choice gets worse: the more it may choose, the more it is fooled.</b> ${figures}.`
    : of.value < 0 ? `No fall with n is shown: ${figures}.` : `Its choice does not fall with n: ${figures}.`;
}

const CROSSED = [["balanced_accuracy", "balanced accuracy"], ["false_positive_rate", "false positives"], ["true_positive_rate", "right ones accepted"], ["best_of_n", "best of n is right"]];
const REVIEWED = [["balanced_accuracy", "balanced accuracy"], ["error_precision", "precision on wrong ones"], ["error_recall", "recall on wrong ones"], ["error_f1", "F1 on wrong ones"], ["false_positive_rate", "false positives"]];

// What `cotrain xplay` measured, on held-out problems and, with --on-rollouts, on solutions of training.
function Crossed({ xplay }) {
  const text = `Generators down, verifiers across; the frame marks pairs of one step. ${counted(xplay?.problems, "problem")} (${xplay?.split ?? ""}), ${counted(xplay?.n, "solution")} each.`;
  return html`<${Heat} title="Cross-play" text=${text} found=${xplay} measures=${CROSSED} />`;
}

function Reviewed({ reviewed }) {
  const text = "Solutions of training down, by step; stored verifiers across. A column that sinks downwards: the generator gets past this verifier. A row that sinks to the right: it forgets. A number of rollouts opens those of the step.";
  return html`<${Heat} title="What stored verifiers say of this run's rollouts" text=${text} found=${reviewed} measures=${REVIEWED} rollouts /><${Apart} reviewed=${reviewed} />`;
}

// The gap that needs no truth: of each step its own verifier beside each judge from outside.
function Apart({ reviewed }) {
  const judges = reviewed?.verifiers, steps = reviewed?.generators;
  const pairs = [judges, steps, reviewed?.pairs].every(Array.isArray) ? reviewed.pairs.slice(0, 400) : [];
  if (!pairs.length) return null;
  const name = (place) => (place === null ? "the truth" : judges[place]?.model ?? "the verifier of the step");
  const share = (one) => html`<td>${number(one?.value, true)}</td>`, beyond = (one) => (finite(one?.value) ? one.value.toFixed(2).replace("-", "−") : "–");
  return html`<section><h2>Judges beside each other</h2><p class="soft">The gap is the share that the first calls right minus the share that the second does, over solutions that both could judge. Against a judge from outside it needs no truth.</p>
    <div class="scroll"><table><thead><tr><th>first</th><th>second</th><th>rollouts</th><th>n</th><th>first calls right</th><th>second</th><th>gap, points</th><th>95 %</th><th>agree</th><th>κ</th></tr></thead><tbody>
    ${pairs.map((one) => html`<tr><td><${Text} of=${name(one.verifier)} limit=${60} /></td><td><${Text} of=${name(one.reference)} limit=${60} /></td><td>step ${ordinal(steps[one.generator]?.step)}</td><td>${number(one.n)}</td>
      ${share(one.called_right)}${share(one.reference_called_right)}<td><b>${signed(one.gap?.value, true)}</b></td><td>${signed(one.gap?.low, true)} to ${signed(one.gap?.high, true)}</td>${share(one.agreement)}<td>${beyond(one.kappa)}</td></tr>`)}</tbody></table></div></section>`;
}

// Each cell with its n; generators down, verifiers across.
function Heat({ title, text, found: table, measures, rollouts }) {
  const [key, choose] = useState(measures[0][0]);
  if (!table || !Array.isArray(table.generators) || !Array.isArray(table.verifiers) || !Array.isArray(table.cells)) return null;
  const at = (row, column) => table.cells.find((cell) => cell.generator === row && cell.verifier === column)?.[key];
  const values = table.cells.map((cell) => cell[key]?.value).filter(finite), low = Math.min(...values), high = Math.max(...values);
  const runs = new Set([...table.generators, ...table.verifiers].filter((one) => !one.model).map((one) => one.run)), several = runs.size > 1;
  const from = (one) => (several ? `${one.run} ` : ""), after = (one) => one.model ?? `${from(one)}after step ${number(one.step)}`;
  const named = (one) => (rollouts ? `${from(one)}step ${ordinal(one.step)}` : after(one)), own = (one, other) => !rollouts && one.run === other.run && one.step === other.step;
  return html`<section><div class="bar"><h2>${title}</h2><label>shown <select value=${measures.findIndex(([name]) => name === key)} onChange=${(event) => choose(measures[Number(event.target.value)][0])}>
      ${measures.map(([, label], place) => html`<option value=${place}>${label}</option>`)}</select></label></div>
    <p class="soft"><${Text} of=${text} /></p>
    <div class="scroll"><table class="heat"><thead><tr><th>${rollouts ? "rollouts" : "generator"}</th>${rollouts ? html`<th>n</th>` : null}<th>${rollouts ? "are right" : "pass@1"}</th>${table.verifiers.slice(0, 40).map((one) => html`<th scope="col"><${Text} of=${after(one)} limit=${60} /></th>`)}</tr></thead><tbody>
    ${table.generators.slice(0, 40).map((one, row) => html`<tr><th scope="row"><${Text} of=${named(one)} limit=${60} /></th>
      ${rollouts ? html`<td><a href=${`#rollouts:all;steps=${Number(one.step)}-${Number(one.step)}`}>${number(one.n)}</a></td>` : null}<td>${number(one.pass_at_1?.value, true)}</td>
      ${table.verifiers.slice(0, 40).map((other, column) => { const found = at(row, column), value = found?.value, share = finite(value) ? (value - low) / (high - low || 1) : 0;
        return html`<td class=${own(one, other) ? "own" : ""} style=${finite(value) ? { background: `color-mix(in srgb, var(--a) ${Math.round(8 + 52 * share)}%, transparent)` } : undefined}
          title=${plain(finite(found?.low) ? `${number(found.low, true)} to ${number(found.high, true)}` : "")}>${number(value, true)}${finite(found?.n) ? html`<small>n ${number(found.n)}</small>` : null}</td>`; })}</tr>`)}</tbody></table></div></section>`;
}

function Rates({ role, bins, where }) {
  const most = Math.max(...bins), all = bins.reduce((sum, value) => sum + value, 0);
  if (!all) return null;
  const label = (at) => (at === 8 ? "all" : at === 0 ? "< 1/8" : `${at}/8`);
  return html`<section><h2>Solve rates of the groups: <${Text} of=${role} /></h2><p class="soft">Share of a group that is right. Groups where all or none are right teach a group-relative method nothing.</p>
    <div class="bars">${bins.map((value, at) => html`<a href=${`#rollouts:all;rate=${at}${where}`} title=${plain(`${label(at)}: ${counted(value, "group")}`)}><b>${number(value)}</b><i style=${{ height: `${most ? (90 * value) / most : 0}px` }}></i><span>${label(at)}</span></a>`)}</div></section>`;
}
