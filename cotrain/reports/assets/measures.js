// What is counted of rollouts: kinds of a row, and figures of a judge. One place, for every screen.
import { wilson } from "view/words";

export const FLAGS = { unread: 1, reviewUnread: 2, truncated: 4, tool: 8, left: 16, unsound: 32, stepBelieved: 64, stepDoubted: 128, firstFound: 256, firstMissed: 512 };

// Filters in order of interest. A verdict is what most of the readable reviews say.
export const KINDS = [
  ["all", "all", () => true],
  ["fp", "false positive", (r) => r.said === 1 && r.right === 0],
  ["fn", "false negative", (r) => r.said === 0 && r.right === 1],
  ["fooled", "fooled a review", (r) => r.yes > 0 && r.right === 0],
  ["doubted", "doubted by a review", (r) => r.yes < r.readable && r.right === 1],
  ["tn", "error caught", (r) => r.said === 0 && r.right === 0],
  ["tp", "agreed: right", (r) => r.said === 1 && r.right === 1],
  ["split", "reviews split", (r) => r.readable > 0 && r.said === null],
  ["unsound", "right answer, wrong step", (r) => (r.flags & FLAGS.unsound) > 0],
  ["stepfp", "wrong step believed", (r) => (r.flags & FLAGS.stepBelieved) > 0],
  ["stepfn", "right step doubted", (r) => (r.flags & FLAGS.stepDoubted) > 0],
  ["found", "first error found", (r) => (r.flags & FLAGS.firstFound) > 0],
  ["missed", "first error missed", (r) => (r.flags & FLAGS.firstMissed) > 0],
  ["unread", "unread", (r) => (r.flags & (FLAGS.unread | FLAGS.reviewUnread)) > 0],
  ["truncated", "truncated", (r) => (r.flags & FLAGS.truncated) > 0],
  ["tool", "tool failed", (r) => (r.flags & FLAGS.tool) > 0],
  ["left", "kept from training", (r) => (r.flags & FLAGS.left) > 0],
];

// Further conditions that an address may name: `#rollouts:fooled;error=3;steps=0-40`.
export const CONDITIONS = {
  error: [(value, table) => `first error: ${table.errors?.[Number(value)] ?? value}`, (row, value) => row.error === Number(value)],
  steps: [(value) => { const [from, to] = value.split("-").map((step) => Number(step) + 1); return from === to ? `step ${from}` : `steps ${from} to ${to}`; }, (row, value) => { const [from, to] = value.split("-").map(Number); return row.step >= from && row.step <= to; }],
  score: [(value) => `P(right) from ${Number(value) / 10} to ${(Number(value) + 1) / 10}`, (row, value) => row.score !== null && Math.min(9, Math.floor(row.score * 10)) === Number(value)],
  said: [(value) => `reviews say ${value === "1" ? "right" : "wrong"}`, (row, value) => row.said === Number(value)],
  right: [(value) => (value === "1" ? "right" : "wrong"), (row, value) => row.right === Number(value)],
  vote: [(value) => `vote says ${value === "1" ? "right" : "wrong"}`, (row, value) => row.vote === Number(value)],
  rate: [(value) => `groups with ${value === "8" ? "all" : `${value}/8 up to ${Number(value) + 1}/8`} right`, (row, value) => row.rate === Number(value)],
};

// "fooled;error=3" → {kind, more: {error: "3"}}; what is not known is left out.
export function asked(rest) {
  const [kind, ...parts] = rest.split(";");
  const more = Object.fromEntries(parts.map((part) => part.split("=")).filter(([name, value]) => Object.hasOwn(CONDITIONS, name) && /^[\d-]{1,20}$/.test(value ?? "")));
  return { kind: KINDS.some(([key]) => key === kind) ? kind : "all", more };
}

export const SORTS = [
  ["latest", "latest first", (a, b) => b.step - a.step || a.task - b.task || a.member - b.member],
  ["earliest", "earliest first", (a, b) => a.step - b.step || a.task - b.task || a.member - b.member],
  ["paid", "highest reward", (a, b) => b.reward - a.reward],
  ["unpaid", "lowest reward", (a, b) => a.reward - b.reward],
  ["believed", "most believed", (a, b) => b.yes / (b.readable || 1) - a.yes / (a.readable || 1) || (b.score ?? 0) - (a.score ?? 0) || b.readable - a.readable],
  ["long", "longest", (a, b) => b.tokens - a.tokens],
  ["short", "shortest", (a, b) => a.tokens - b.tokens],
];

export function kindOf(row) {
  const found = KINDS.slice(1).find(([key, , test]) => ["fp", "fn", "tn", "tp", "split", "unread"].includes(key) && test(row));
  return found ? [found[0], found[1]] : row.right === 1 ? ["plain", "right"] : row.right === 0 ? ["plain", "wrong"] : ["plain", "not judged"];
}

const KEYS = ["tp", "fn", "tn", "fp", "unread", "step_tp", "step_fn", "step_tn", "step_fp", "first_found", "first_missed"];

export function summed(windows) {
  const total = Object.fromEntries(KEYS.map((key) => [key, 0]));
  const bins = Array.from({ length: 10 }, () => [0, 0, 0]);
  for (const window of windows) {
    for (const key of KEYS) total[key] += window[key];
    window.bins.forEach((bin, at) => bin.forEach((value, part) => (bins[at][part] += value)));
  }
  return { ...total, bins };
}

// Right is the positive class: tp is right and called right, fp wrong and called right. Precision, recall and F1 are those of
// the other class, as the metrics have them; each figure with its interval and n.
export function figures(count, level = "") {
  const [tp, fn, tn, fp] = ["tp", "fn", "tn", "fp"].map((key) => count[level + key]);
  const unread = level ? 0 : count.unread, share = (hits, all) => (all ? hits / all : null);
  const precision = share(tn, tn + fn), recall = share(tn, tn + fp), accept = share(tp, tp + fn);
  const f1 = precision + recall > 0 ? (2 * precision * recall) / (precision + recall) : null;
  const one = (label, hits, all) => ({ label, value: share(hits, all), interval: wilson(hits, all), n: all });
  const both = (label, value) => ({ label, value, interval: [null, null], n: tp + fn + tn + fp });
  return {
    precision: one("precision on wrong ones: of those called wrong", tn, tn + fn),
    recall: one("recall on wrong ones: of those that are wrong", tn, tn + fp),
    f1: both("F1 on wrong ones", f1),
    accepted: one("true positive rate: of those that are right", tp, tp + fn),
    balanced: both("balanced accuracy", accept === null || recall === null ? null : (accept + recall) / 2),
    base: one("base rate: ones that are right", tp + fn, tp + fn + tn + fp),
    said: one("called right", tp + fp, tp + fn + tn + fp),
    ...(level ? {} : { unread: one("reviews that cannot be read", unread, tp + fn + tn + fp + unread) }),
  };
}

export function calibrationError(bins) {
  const all = bins.reduce((sum, [n]) => sum + n, 0);
  return all ? bins.reduce((sum, [, said, right]) => sum + Math.abs(said - right), 0) / all : null;
}

// Windows of everything but the judges' own counts, added up.
export function joined(windows) {
  const total = { errors: {}, pairs: {}, best: {}, apart: {}, rates: {} };
  const add = (held, values) => (held ? held.map((value, at) => value + values[at]) : values);
  for (const window of windows) {
    for (const what of ["pairs", "rates"]) for (const [name, values] of Object.entries(window[what])) total[what][name] = add(total[what][name], values);
    for (const what of ["errors", "best", "apart"]) {
      for (const [name, inner] of Object.entries(window[what])) {
        total[what][name] ??= {};
        for (const [key, values] of Object.entries(inner)) total[what][name][key] = add(total[what][name][key], values);
      }
    }
  }
  return total;
}

// Where the choice among more is worse than the one among fewer, of the same groups: for every smaller n the difference to the
// largest, with Student's t shared among as many comparisons (Bonferroni); the one that is furthest below zero.
export function worse(apart, ns) {
  const most = ns.at(-1), smaller = ns.slice(0, -1), z = SHARED_Z[Math.min(smaller.length, SHARED_Z.length) - 1];
  const found = smaller.flatMap((n) => {
    const [groups, few, many, sum, squares] = apart?.[`${n}-${most}`] ?? [0];
    if (groups < 8) return [];
    const value = sum / groups, spread = Math.sqrt(Math.max(0, squares - groups * value * value) / (groups - 1) / groups), free = groups - 1;
    const t = z + (z ** 3 + z) / (4 * free) + (5 * z ** 5 + 16 * z ** 3 + 3 * z) / (96 * free * free);
    return [{ n, most, groups, few: few / groups, many: many / groups, value, low: value - t * spread, high: value + t * spread }];
  });
  return found.sort((a, b) => a.value - b.value)[0] ?? null;
}
const SHARED_Z = [1.96, 2.241, 2.394, 2.498, 2.576, 2.638]; // of 95 % in all, for one comparison to six

// Cohen's kappa: agreement beyond what the two shares of "right" give by chance.
export function kappa([both, one, other, none]) {
  const n = both + one + other + none;
  if (!n) return [null, null];
  const agree = (both + none) / n, a = (both + one) / n, b = (both + other) / n, chance = a * b + (1 - a) * (1 - b);
  return [agree, chance < 1 ? (agree - chance) / (1 - chance) : null];
}

// From bins of [n, sum of probabilities, right ones], the highest first; the area under it, null where there is only one class.
export function roc(bins) {
  const right = bins.reduce((sum, bin) => sum + bin[2], 0), wrong = bins.reduce((sum, bin) => sum + bin[0] - bin[2], 0);
  const x = [0], y = [0];
  let tp = 0, fp = 0, area = 0;
  for (const [n, , hits] of [...bins].reverse()) {
    if (!n) continue;
    tp += hits;
    fp += n - hits;
    x.push((100 * fp) / wrong);
    y.push(tp / right);
    area += ((x.at(-1) - x.at(-2)) / 100) * ((y.at(-1) + y.at(-2)) / 2);
  }
  return right && wrong ? { x, y, area } : { x: [], y: [], area: null };
}
