// The list of rollouts: filters, order, search, pages. What is listed is also where "next" goes.
import { useMemo } from "preact/hooks";
import { html, link, plain, Text, number, counted, ordinal } from "view/words";
import { KINDS, SORTS, CONDITIONS, kindOf } from "view/measures";
import { live, has } from "view/source";

const PAGE = 50;

export function listed(table, view) {
  const test = KINDS.find(([key]) => key === view.kind)?.[2] ?? (() => true);
  const order = SORTS.find(([key]) => key === view.sort)?.[2] ?? SORTS[0][2];
  const words = view.query.toLowerCase().split(/\s+/).filter(Boolean);
  const says = (row) => `${row.problem} ${row.answer ?? ""} ${row.at}`.toLowerCase();
  const open = live ? table.rows : table.rows.filter((row) => has(row.group));
  if (view.more.rate !== undefined) rated(table.rows);
  const conditions = Object.entries(view.more).map(([name, value]) => (row) => CONDITIONS[name][1](row, value));
  const found = open.filter((row) => test(row) && conditions.every((one) => one(row)) && (!words.length || words.every((word) => says(row).includes(word))));
  return found.sort(order);
}

// Writes into each row which eighth of its group is right.
function rated(rows) {
  const groups = new Map();
  for (const row of rows) {
    const key = `${row.step}:${row.task}:${row.role}`, held = groups.get(key) ?? [0, 0];
    if (row.right !== null) groups.set(key, [held[0] + row.right, held[1] + 1]);
  }
  for (const row of rows) {
    const [right, all] = groups.get(`${row.step}:${row.task}:${row.role}`) ?? [0, 0];
    row.rate = all > 1 ? Math.floor((8 * right) / all) : null;
  }
}

export function Rollouts({ table, view, setView, list }) {
  const counts = useMemo(() => table.counts ?? Object.fromEntries(KINDS.map(([key, , test]) => [key, table.rows.filter(test).length])), [table]);
  const several = useMemo(() => new Set(table.rows.map((row) => row.role)).size > 1, [table]);
  const pages = Math.max(1, Math.ceil(list.length / PAGE)), page = Math.min(view.page, pages - 1);
  const change = (more) => setView({ ...view, page: 0, ...more });
  return html`<section>
    <p class="soft">${counted(counts.all, "rollout")} of ${counted(table.read, "step")}${table.read < table.steps ? ` (of ${number(table.steps)}; reading on)` : ""}.
      ${live ? "" : html` This file holds ${number(new Set(table.rows.filter((row) => has(row.group)).map((row) => row.group)).size)} of them, those behind alarms and the rare kinds first; <code>cotrain view</code> shows all.`}
      ${" "}Beside its step stands the address of a rollout, STEP:TASK:MEMBER from 0, as <code>cotrain why</code> takes it. Keys: <kbd>n</kbd> next, <kbd>p</kbd> previous, <kbd>l</kbd> list.</p>
    <div class="chips" role="group" aria-label="kind">${KINDS.filter(([key]) => counts[key] || key === "all" || key === view.kind).map(([key, label]) =>
      html`<button type="button" class=${`kind ${key}`} aria-pressed=${view.kind === key} onClick=${() => change({ kind: key })}>${label} <i>${number(counts[key])}</i></button>`)}</div>
    ${Object.keys(view.more).length ? html`<p class="chips"><span class="soft">only</span>${Object.entries(view.more).map(([name, value]) => html`<button type="button" class="kind" title="show without it" onClick=${() => {
      const { [name]: gone, ...more } = view.more;
      change({ more });
    }}><${Text} of=${CONDITIONS[name][0](value, table)} limit=${80} /> ✕</button>`)}<span class="soft">${counted(list.length, "rollout")}</span></p>` : null}
    <div class="bar"><label>order <select value=${view.sort} onChange=${(event) => change({ sort: event.target.value })}>
        ${SORTS.map(([key, label]) => html`<option value=${key}>${label}</option>`)}</select></label>
      <label class="search">search <input type="search" value=${view.query} placeholder="problem, answer or address" onInput=${(event) => change({ query: event.target.value })} /></label></div>
    <table class="rows"><${Heading} several=${several} /><tbody>
      ${list.slice(page * PAGE, page * PAGE + PAGE).map((row) => html`<${Row} key=${row.at} row=${row} several=${several} />`)}</tbody></table>
    ${list.length ? null : html`<p>No rollout here is of this kind.</p>`}
    ${pages > 1 ? html`<p class="pages"><button type="button" disabled=${!page} onClick=${() => setView({ ...view, page: page - 1 })}>previous page</button>
      ${page + 1} of ${pages} <button type="button" disabled=${page + 1 >= pages} onClick=${() => setView({ ...view, page: page + 1 })}>next page</button></p>` : null}
  </section>`;
}

export function Heading({ several }) {
  return html`<thead><tr><th>kind</th><th>rollout</th>${several ? html`<th>role</th>` : null}<th>problem</th><th>answer</th><th>says right</th><th>reward</th><th>tokens</th></tr></thead>`;
}

export function Row({ row, here, several }) {
  const [css, label] = kindOf(row), open = has(row.group);
  const name = html`step ${ordinal(row.step)} <small><${Text} of=${`${row.step}:${row.task}:${row.member}`} /></small>`;
  return html`<tr class=${here ? "here" : ""}><td><span class=${`kind ${css}`}>${label}</span></td>
    <td class="at">${open ? html`<a href=${link(row.at)}>${name}</a>` : name}</td>
    ${several ? html`<td><${Text} of=${row.role} limit=${40} /></td>` : null}<td class="asked"><${Text} of=${row.problem} limit=${180} /></td><td class="said"><${Text} of=${row.answer ?? "none"} limit=${60} /></td>
    <td>${row.reviews ? `${row.yes} of ${row.reviews}` : "–"}</td>
    <td title=${plain(row.rewards.map(([signal, value]) => `${signal} ${value}`).join(", "))}>${number(row.reward)}</td><td>${number(row.tokens)}</td></tr>`;
}
