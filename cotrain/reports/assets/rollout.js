// One rollout on one screen: the problem, what was said turn by turn, each step with its verdicts and the truth, tokens
// shaded, rewards by source, and the group it was compared with.
import { useEffect, useMemo, useState } from "preact/hooks";
import { html, link, Text, number, ordinal, plain, finite } from "view/words";
import { kindOf } from "view/measures";
import { Heading, Row } from "view/rollouts";
import * as source from "view/source";

const TRUTH = { true: ["ok", "✓", "right"], false: ["bad", "✗", "wrong"], null: ["open", "·", "not judged"] };
const flag = (value) => (typeof value === "boolean" ? value : null);

export function Rollout({ at, table, list }) {
  const group = at.split(":").slice(0, 3).join(":"), [found, set] = useState(undefined);
  useEffect(() => {
    let wanted = true;
    set(undefined);
    source.rollout(group).then((one) => wanted && set(one), () => wanted && set(null));
    return () => { wanted = false; };
  }, [group]);
  if (found === undefined) return html`<p class="wait">reading …</p>`;
  if (found === null) return html`<p>There is no rollout <${Text} of=${group} /> here${source.live ? "" : ": this file holds a sample; `cotrain view` shows all"}.</p>`;
  return html`<${Screen} found=${found} at=${at} group=${group} table=${table} list=${list} />`;
}

function Screen({ found, at, group, table, list }) {
  const speeches = found.traces.filter((trace) => !trace.parent);
  const named = found.traces.find((trace) => trace.address === at);
  const speech = speeches.find((trace) => trace.address === (named?.parent ?? at)) ?? speeches[0];
  const place = list.findIndex((row) => row.at === speech?.address);
  const [before, after] = [list[place - 1], list[place + 1]];
  const row = table.rows.find((one) => one.at === speech?.address);
  const siblings = useMemo(() => table.rows.filter((one) => one.step === found.step && one.task === found.task && one.role === speech?.role)
    .sort((a, b) => b.reward - a.reward || a.member - b.member), [table, found, speech]);
  return html`<section class="rollout">
    <div class="bar"><h2>${row ? html`<span class=${`kind ${kindOf(row)[0]}`}>${kindOf(row)[1]}</span> ` : null}Rollout <${Text} of=${group} /></h2>
      <nav class="step-nav"><a href=${before ? link(before.at) : "#rollouts"} class=${before ? "" : "off"}>← previous</a>
        <span>${place >= 0 ? `${place + 1} of ${list.length}` : ""}</span>
        <a href=${after ? link(after.at) : "#rollouts"} class=${after ? "" : "off"}>next →</a></nav></div>
    <p class="soft">step ${ordinal(found.step)}, task <${Text} of=${found.task_id ?? found.task} />, member ${found.member}
      ${found.failure ? html` · <b class="poor">broke off: <${Text} of=${found.failure} /></b>` : null}</p>
    ${found.problem ? html`<div class="problem"><${Text} of=${found.problem} /></div>` : null}
    ${speeches.length > 1 ? html`<p class="chips">${speeches.map((one) => html`<a class="kind" aria-current=${one === speech} href=${link(one.address)}><${Text} of=${one.address.split(":").slice(3).join(" ")} /></a>`)}</p>` : null}
    ${speech ? html`<${Speech} key=${at} named=${named} speech=${speech} reviews=${found.traces.filter((trace) => trace.parent === speech.address)} />` : null}
    <h3>The group, by reward</h3><table class="rows"><${Heading} /><tbody>${siblings.map((one) => html`<${Row} key=${one.at} row=${one} here=${one.at === speech?.address} />`)}</tbody></table>
  </section>`;
}

// The first solution of a rollout in short: its steps with the verdicts, and its answer.
export function Solution({ found }) {
  const speech = found.traces.find((trace) => !trace.parent);
  if (!speech) return html`<p class="soft">Nothing was said${found.failure ? html`: <${Text} of=${found.failure} />` : null}.</p>`;
  const reviews = found.traces.filter((trace) => trace.parent === speech.address);
  return html`<${Steps} speech=${speech} reviews=${reviews} review=${reviews[0]} /><${Answer} speech=${speech} reviews=${reviews} review=${reviews[0]} />
    <details><summary>as it was written</summary><pre class="raw"><${Text} of=${speech.text} /></pre></details>`;
}

function Answer({ speech, reviews, review }) {
  const truth = speech.metadata ?? {}, right = flag(truth.correct), [css, mark, word] = TRUTH[right];
  return html`<div class=${`step answer ${css}`}><b class="mark" title=${`truth: ${word}`}>${mark}</b>
      <span class="text">${speech.findings?.answer !== undefined && speech.findings?.answer !== null ? html`answer <b><${Text} of=${speech.findings.answer} /></b>` : "no answer"}
        ${truth.gold !== undefined && truth.gold !== null ? html` <span class="soft">gold answer <b><${Text} of=${truth.gold} /></b></span>` : null}</span>
      ${review ? html`<${Verdict} said=${flag(review.findings?.final)} truth=${right} probability=${review.findings?.score} votes=${tally(reviews, (one) => one.findings?.final)} why=${review.findings?.failure ?? review.failure} />` : null}</div>`;
}

// The review that the address names is shown first; else one that the truth contradicts, where there is one.
function first(reviews, named, truth) {
  const asked = reviews.indexOf(named), off = reviews.findIndex((one) => mistaken(one, truth));
  return Math.max(0, asked < 0 ? off : asked);
}

function mistaken(review, truth) {
  const said = flag(review.findings?.final), right = flag(truth?.correct);
  return said !== null && right !== null && said !== right;
}

// Whose a review is: its role, and which of that role's.
function byWhom(reviews, review) {
  const own = reviews.filter((one) => one.role === review.role);
  return own.length > 1 ? `${review.role} ${own.indexOf(review) + 1}` : review.role;
}

function Speech({ speech, reviews, named }) {
  const [shown, show] = useState(first(reviews, named, speech.metadata)), [shade, shadeBy] = useState("logprob");
  const review = reviews[Math.min(shown, reviews.length - 1)];
  return html`
    ${reviews.length > 1 ? html`<div class="chips"><span class="soft">reviews by</span>${reviews.map((one, at) => {
      const said = flag(one.findings?.final);
      return html`<button type="button" aria-pressed=${at === shown} onClick=${() => show(at)}><${Text} of=${byWhom(reviews, one)} limit=${60} /> <i>${mistaken(one, speech.metadata) ? "≠ " : ""}${said === null ? "unread" : said ? "says right" : "says wrong"}</i></button>`;
    })}</div>` : null}
    <${Steps} speech=${speech} reviews=${reviews} review=${review} />
    <${Answer} speech=${speech} reviews=${reviews} review=${review} />
    <${Trace} trace=${speech} shade=${shade} shadeBy=${shadeBy} open />
    ${review ? html`<${Trace} key=${review.address} trace=${review} shade=${shade} shadeBy=${shadeBy} open=${review === named} />` : null}`;
}

// Why the oracle calls a step wrong; tasks/words/oracle.py has the same words.
const REASONS = {
  malformed: "not of the form target = operand op operand = number op number = result target",
  relation: "the problem defines this quantity in another way, or not at all",
  repeated: "an earlier step has already worked this quantity out",
  unneeded: "this quantity does not lead to the question",
  premise: "a number is not the value given or worked out for its quantity, or two have changed places",
  arithmetic: "the numbers are combined by another operator, or to a wrong result",
};

// What a review wrote of each step, where it wrote as many as it judged.
function reasonsOf(review) {
  const told = [...String(review?.text ?? "").matchAll(/<step>([^]*?)<\/step>/g)].map(([, inside]) => inside.trim());
  return told.length && told.length === review.findings?.steps?.length ? told : [];
}

function Steps({ speech, reviews, review }) {
  const steps = (Array.isArray(speech.findings?.steps) ? speech.findings.steps : []).map((step) => (Array.isArray(step) ? step.at(-1) : step)).filter((step) => typeof step === "string");
  const ok = speech.metadata?.step_ok ?? [], reasons = speech.metadata?.step_reasons ?? [], because = reasonsOf(review), first = speech.metadata?.first_wrong ?? ok.indexOf(false);
  const paid = speech.rewards.filter(([name, , tokens]) => name === "step" && tokens).sort((a, b) => a[2][0] - b[2][0]);
  if (!steps.length) return html`<p class="soft">Not in steps${speech.findings?.failure || speech.failure ? html`: <${Text} of=${speech.findings?.failure ?? speech.failure} />` : null}.</p>`;
  return html`<ol class="steps">${steps.slice(0, 200).map((text, at) => {
    const [css, mark, word] = TRUTH[flag(ok[at])];
    return html`<li class=${`step ${css}`}><b class="mark" title=${`truth: ${word}`}>${mark}</b>
      <span class="text"><${Text} of=${text.trim()} />${at === first ? html` <b class="first" title="first wrong step">▲ first wrong step</b>` : null}
        ${reasons[at] ? html` <small class="reason" title=${Object.hasOwn(REASONS, reasons[at]) ? REASONS[reasons[at]] : undefined}><${Text} of=${reasons[at]} /></small>` : null}</span>
      ${review ? html`<${Verdict} said=${flag(review.findings?.steps?.[at])} truth=${flag(ok[at])} votes=${tally(reviews, (one) => one.findings?.steps?.[at])} reward=${paid[at]?.[1]} because=${because[at]} />` : null}</li>`;
  })}</ol>${glossary(reasons)}`;
}

// The reasons that occur, in words, for those who read them for the first time.
function glossary(reasons) {
  const there = Object.keys(REASONS).filter((name) => Array.isArray(reasons) && reasons.includes(name));
  return there.length ? html`<dl class="glossary">${there.map((name) => html`<div><dt>${name}:</dt> <dd>${REASONS[name]}</dd></div>`)}</dl>` : null;
}

function tally(reviews, pick) {
  const said = reviews.map((one) => flag(pick(one))).filter((one) => one !== null);
  return reviews.length > 1 && said.length ? `${said.filter(Boolean).length} of ${said.length}` : "";
}

function Verdict({ said, truth, probability, votes, reward, why, because }) {
  if (said === null) return html`<span class="verdict none">unread${why ? html`: <${Text} of=${why} limit=${120} />` : null}</span>`;
  const off = truth !== null && said !== truth;
  return html`<span class=${`verdict ${off ? "off" : ""}`} title=${because ? plain(because, 400) : undefined}>${off ? "≠ " : ""}says ${said ? "right" : "wrong"}
    <small>${finite(probability) ? ` p ${number(probability, true)}` : ""}${votes ? ` ${votes} say right` : ""}${finite(reward) ? ` reward ${number(reward)}` : ""}</small>${because ? html`<small class="because"><${Text} of=${because} limit=${200} /></small>` : null}</span>`;
}

// What one role said: rewards by source, then its words, turn by turn, with each token shaded.
function Trace({ trace, shade, shadeBy, open }) {
  const paid = new Map();
  for (const [name, value] of trace.rewards) paid.set(name, [...(paid.get(name) ?? []), value]);
  const weight = (name) => (Object.hasOwn(trace.weights, name) ? ` × ${number(trace.weights[name])}` : Object.keys(trace.weights).length ? " × 0" : "");
  return html`<details class="trace" open=${open}><summary><b><${Text} of=${trace.role} /></b> <${Text} of=${trace.policy} />, weights of version ${trace.version}, ${trace.prompt_tokens} + ${trace.token_count} tokens, ended by <${Text} of=${trace.finish} /></summary>
    <table class="paid"><tbody>${[...paid].map(([name, values]) => html`<tr><th scope="row"><${Text} of=${name} /></th><td>${values.map((value) => number(value)).join(", ")}<small>${weight(name)}</small></td></tr>`)}
      <tr><th scope="row">in training</th><td>${trace.failure ? html`<b class="poor"><${Text} of=${trace.learned} /></b>` : html`<${Text} of=${trace.learned} />`}</td></tr></tbody></table>
    ${trace.tokens ? html`<${Tokens} trace=${trace} shade=${shade} shadeBy=${shadeBy} />` : html`<pre class="raw"><${Text} of=${trace.text} /></pre>`}
    <details><summary>what was read in it, and what is true of it</summary><pre class="raw"><${Text} of=${JSON.stringify({ findings: trace.findings, metadata: trace.metadata }, null, 1)} /></pre></details></details>`;
}

const FULL = 70; // percent of the colour, of the token with the largest value
const LEAST = { logprob: 0.05, entropy: 0.05 }; // values below it are never shaded fully
const LEFT_BLANK = { logprob: "unshaded: certain", entropy: "unshaded: nothing to choose" };

// From no shade to the darkest, with the value of each.
function scaleOf(colour, value, backwards = false) {
  const ends = [html`<span>0</span>`, html`<i style=${{ background: `linear-gradient(to ${backwards ? "left" : "right"}, transparent, color-mix(in srgb, var(--${colour}) ${FULL}%, transparent))` }}></i>`, html`<span>${number(value)}</span>`];
  return html`<span class="ramp">${backwards ? ends.reverse() : ends}</span>`;
}

function Tokens({ trace, shade, shadeBy }) {
  const turns = trace.turns.length ? trace.turns : [[0, trace.tokens.length, trace.finish]], parts = [];
  let at = 0;
  for (const [start, end, finish] of turns) {
    if (start > at) parts.push(["given", at, start]);
    parts.push([`sampled, ended by ${finish}`, start, end]);
    at = end;
  }
  const worth = Object.entries(trace.advantages ?? {}), paid = worth.find(([name]) => shade === `advantage of ${name}`)?.[1];
  const spread = trace.entropies, shades = [["logprob", "log-probability"], ...(spread ? [["entropy", "entropy"]] : []),
    ...worth.map(([name]) => [`advantage of ${name}`, worth.length > 1 ? `advantage of ${name}` : "advantage"]), ["mask", "mask: sampled or given"], ["none", "nothing"]];
  const sampled = turns.flatMap(([start, end]) => Array.from({ length: end - start }, (_, place) => start + place));
  const values = paid ?? { logprob: trace.logprobs, entropy: spread }[shade], sizes = values ? sampled.map((place) => Math.abs(values[place] ?? 0)) : [];
  const most = Math.max(LEAST[shade] ?? 1e-9, ...sizes);
  return html`<div class="chips"><span class="soft">tokens shaded by</span>${shades.map(([key, label]) =>
      html`<button type="button" aria-pressed=${shade === key} onClick=${() => shadeBy(key)}>${label}</button>`)}</div>
    ${values ? html`<p class="soft scale">${paid ? scaleOf("b", -most, true) : null}${scaleOf(paid ? "a" : "b", shade === "logprob" ? -most : most)} ${LEFT_BLANK[shade] ?? "unshaded: 0"}</p>` : null}
    ${parts.map(([label, start, end]) => html`<div class=${`turn ${label === "given" ? "given" : ""}`}>${parts.length > 1 ? html`<small><${Text} of=${label} /></small>` : null}
      <pre class="tokens">${trace.tokens.slice(start, end).map((piece, place) => {
        const logprob = trace.logprobs[start + place], given = label === "given", gain = paid?.[start + place] ?? null, open = spread?.[start + place];
        const strength = shade === "mask" ? (given ? 0 : 25) : values && !given ? (FULL * Math.abs(values[start + place] ?? 0)) / most : 0;
        const colour = shade === "mask" || (paid && gain > 0) ? "a" : "b";
        const told = worth.map(([name, values]) => (finite(values[start + place]) ? ` · advantage of ${name} ${number(values[start + place])}` : "")).join("");
        return html`<span class="token" title=${plain(`${piece} · token ${trace.ids[start + place]}${given ? " · given" : ` · log-probability ${number(logprob)}${finite(open) ? ` · entropy ${number(open)} nats` : ""}`}${told}`)}
          style=${strength > 1 ? { background: `color-mix(in srgb, var(--${colour}) ${Math.round(strength)}%, transparent)` } : undefined}><${Text} of=${piece} /></span>`;
      })}</pre></div>`)}`;
}
