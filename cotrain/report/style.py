"""How the pages of comparisons look, and the little script they carry.

One sheet for all pages, light and dark by the reader's preference,
no fonts and no pictures from anywhere. The palette
is blue, orange and ink, which every common kind of colour blindness tells apart; right and wrong also differ in shape
and hatching. The script moves chart titles into a box that follows the pointer; without it the page shows everything.
"""

from __future__ import annotations

CSS = """
:root{color-scheme:light dark;--paper:#fcfbf8;--card:#fff;--ink:#1c1d20;--soft:#5f6168;--rule:#e3e0d8;--faint:#f2f0ea;
--truth:#1c1d20;--a:#2463b0;--b:#b4580a;--c:#0b7d74;--d:#8a3f8f;--e:#7a6a12;--f:#4d6680;--quiet:#9a9ca3;
--ok:#0b7d74;--bad:#b3261e;--okbg:#e6f3f0;--badbg:#fbe9e5;--gapfill:#b4580a;--band:#dcefe6;
--serif:"Iowan Old Style","Palatino Linotype",Palatino,"Book Antiqua",Georgia,"Liberation Serif",serif;
--sans:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue","Liberation Sans",Arial,sans-serif;
--mono:ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace}
@media (prefers-color-scheme:dark){:root{--paper:#16171a;--card:#1d1f23;--ink:#e9e7e1;--soft:#a3a5ab;--rule:#33363c;
--faint:#22252a;--truth:#f3f1ea;--a:#7fb2f2;--b:#f0a25a;--c:#5cc7bb;--d:#d79adb;--e:#cdbd62;--f:#a2b9d0;
--quiet:#70747c;
--ok:#5cc7bb;--bad:#ff8a7e;--okbg:#16302d;--badbg:#3a211e;--gapfill:#f0a25a;--band:#1c332b}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 var(--sans);font-variant-numeric:tabular-nums}
main{max-width:1120px;margin:0 auto;padding:2.6rem 1.4rem 4rem}
h1,h2{font-family:var(--serif);font-weight:600;line-height:1.15;letter-spacing:-.01em;text-wrap:balance}
h1{font-size:clamp(2rem,6vw,3rem);margin:.15rem 0 .6rem}
h2{font-size:1.55rem;margin:0 0 .4rem}h3{font-size:1rem;margin:1.2rem 0 0}
section{margin-top:3.2rem;border-top:1px solid var(--rule);padding-top:1.3rem}
p{margin:.5rem 0}
small{color:var(--soft);font-size:.82em;font-weight:400}
.kicker{color:var(--soft);font-size:.86rem;margin:0;overflow-wrap:anywhere}
.about{color:var(--soft);max-width:46rem;overflow-wrap:anywhere}
.say{margin-top:1.6rem;font-family:var(--serif);font-size:1.28rem;line-height:1.42;max-width:52rem}
.say p{margin:.7rem 0}.say small{font-family:var(--sans);font-size:.62em;white-space:normal}
.say.list{font-size:1.12rem}
.say em{font-style:normal;border-bottom:2px dotted var(--b)}
.lead,.note,.why{color:var(--soft);max-width:46rem}
.lead{margin:.1rem 0 1rem}
.notes{border-left:3px solid var(--b);padding:.1rem 0 .1rem .9rem;margin-top:1.4rem;color:var(--soft);font-size:.9rem}
a{color:var(--a);text-underline-offset:.2em;text-decoration-thickness:1px}
.ctl{font:.78em var(--mono);color:var(--bad);border:1px solid currentColor;border-radius:3px;padding:0 .25em;
margin:0 .1em;
white-space:nowrap;display:inline-block;line-height:1.3;unicode-bidi:isolate;direction:ltr}
.scroll{overflow-x:auto;margin-top:1.6rem}
table{border-collapse:collapse;width:100%;font-size:.93rem}
th,td{text-align:left;padding:.42rem .7rem .42rem 0;border-bottom:1px solid var(--rule);vertical-align:middle}
thead th{font-size:.78rem;color:var(--soft);font-weight:500;vertical-align:bottom}
tbody th{font-weight:400}
tr.who th{font-family:var(--serif);font-size:1.08rem;font-weight:600;padding-top:1.15rem}
td.num{white-space:nowrap}td.num small{display:block;line-height:1.25}
td.change{white-space:nowrap;padding-right:0}td.change small{display:block;line-height:1.25}
.good{color:var(--ok);font-weight:600}.poor{color:var(--bad);font-weight:600}.same{color:var(--soft)}
td.drawn{width:32%;min-width:8rem}td.drawn svg{width:100%;height:30px;display:block}
svg{overflow:visible}
svg path{fill:none;vector-effect:non-scaling-stroke;stroke-linecap:round;stroke-linejoin:round}
path.grid{stroke:var(--rule);stroke-width:1}
path.ref{stroke:var(--soft);stroke-width:1.2;stroke-dasharray:2 4}
path.line{stroke-width:2}path.line.thin{stroke-width:1;opacity:.75}
path.dash1{stroke-dasharray:7 4}path.dash2{stroke-dasharray:.1 4.5}
path.dots{stroke-width:3.2;opacity:.2}
path.mark{stroke-width:9}path.hole{stroke-width:5;stroke:var(--paper)}
path.area{stroke:none;opacity:.15}path.gap{fill:var(--gapfill);opacity:.16;stroke:none}
rect.healthy{fill:var(--band)}
rect.hit{fill:transparent}rect.hit:hover{fill:var(--ink);fill-opacity:.07}
path.move{stroke:var(--soft);stroke-width:2}path.whisker{stroke:var(--soft);stroke-width:1.4}
path.was{stroke:var(--soft)}path.now{stroke:var(--a)}
.truth{stroke:var(--truth)}.a{stroke:var(--a)}.b{stroke:var(--b)}.c{stroke:var(--c)}.d{stroke:var(--d)}
.e{stroke:var(--e)}
.f{stroke:var(--f)}.quiet{stroke:var(--quiet)}span.quiet{stroke:none;color:var(--soft)}
path.area.a{fill:var(--a)}path.area.b{fill:var(--b)}path.area.c{fill:var(--c)}path.area.d{fill:var(--d)}
path.area.e{fill:var(--e)}path.area.f{fill:var(--f)}path.area.truth{fill:var(--truth)}
figure{margin:0;min-width:0}.pair .chart,.grid .chart{display:flex;flex-direction:column}.pair .plot,
.grid .plot{margin-top:auto;flex:none}
.chart{--gutter:3.1rem}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:2.2rem 2.4rem;
margin-top:1rem}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,19rem),1fr));gap:1.8rem 2rem;
margin-top:1rem}
figcaption{display:flex;flex-wrap:wrap;align-items:baseline;gap:0 .6rem}
figcaption b{font-weight:600;overflow-wrap:anywhere}figcaption .note{flex-basis:100%;font-size:.84rem;line-height:1.4}
.legend{display:flex;flex-wrap:wrap;gap:.1rem 1rem;font-size:.82rem;color:var(--soft);margin:.3rem 0 .9rem}
.legend svg{width:26px;height:8px;margin-right:.4em;vertical-align:middle}.legend i{font-style:normal;
color:var(--ink);font-weight:600}
.legend span{overflow-wrap:anywhere}
.plot{position:relative;margin-left:var(--gutter);height:15rem}.small .plot{height:8rem}
.plot>svg{position:absolute;inset:0;width:100%;height:100%}
.tick{position:absolute;right:100%;margin-right:.5rem;transform:translateY(-50%);font-size:.74rem;color:var(--soft);
white-space:nowrap}
.reflabel{position:absolute;right:0;transform:translateY(-100%);font-size:.74rem;color:var(--soft)}
.x{position:relative;height:1.5rem;margin-left:var(--gutter);font-size:.74rem;color:var(--soft)}
.x span{position:absolute;transform:translateX(-50%);top:.2rem}.x em{position:absolute;right:100%;margin-right:.9rem;
top:.2rem;font-style:normal}
details>summary{cursor:pointer;color:var(--soft);font-size:.88rem}details>summary h2{display:inline;color:var(--ink)}
:focus-visible{outline:2px solid var(--a);outline-offset:2px}
#tip{position:fixed;z-index:9;pointer-events:none;background:var(--ink);color:var(--paper);font-size:.8rem;
line-height:1.4;border-radius:6px;padding:.35rem .6rem;max-width:min(20rem,80vw);white-space:pre-line}
#tip[hidden]{display:none}
@media (max-width:640px){main{padding:1.6rem 1rem 3rem}section{margin-top:2.4rem}.say{font-size:1.14rem}
.say small{font-size:.7em}
.chart{--gutter:2.7rem}.plot{height:12.5rem}}
@media print{figure{break-inside:avoid}}
"""

SCRIPT = """
"use strict";
(() => {
  const tip = document.getElementById("tip"), said = new WeakMap();
  const show = (event) => {
    const cell = event.target.closest ? event.target.closest("rect.hit") : null;
    if (!cell) { tip.hidden = true; return; }
    const title = cell.querySelector("title");
    if (title) { said.set(cell, title.textContent.split(" \\u00b7 ").join("\\n")); title.remove(); }
    tip.textContent = said.get(cell) || "";
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(8, Math.min(event.clientX + 14, innerWidth - box.width - 8)) + "px";
    tip.style.top = Math.max(8, event.clientY - box.height - 14) + "px";
  };
  addEventListener("pointermove", show, { passive: true });
  addEventListener("pointerdown", show, { passive: true });
  addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
})();
"""
