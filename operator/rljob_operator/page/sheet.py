"""The style of the status page: one sheet, written into each page and allowed by its digest alone.

Colours by what they mean: one for samplers, one for trainers, one for what is measured; grey for what is predicted. Each pair is told apart
without colour, too, by its place, its dash or its name. Contrast is at least 4.5 to 1 for text in both schemes.
"""

from __future__ import annotations

import base64
import hashlib

SHEET = """
:root { color-scheme: light dark; --ink: #17202e; --soft: #566173; --paper: #f5f7fa; --card: #ffffff; --rule: #dde2ea;
  --samplers: #0b63c4; --trainers: #b9500f; --measured: #0f766e; --good: #1a7f37; --bad: #b42318; --wait: #8a5a00;
  --move: rgba(120, 80, 200, .20); --link: #0b57c2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf1; --soft: #9aa6b8; --paper: #0f141b; --card: #171e28; --rule: #2b3442;
  --samplers: #62aefc; --trainers: #f2985c; --measured: #4fd1c0; --good: #5bd184; --bad: #ff8a80; --wait: #f0c060;
  --move: rgba(170, 140, 255, .28); --link: #8cbcff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif;
  overflow-wrap: break-word; }
a { color: var(--link); } a:focus-visible, summary:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
header, main, footer { max-width: 1240px; margin: 0 auto; padding: 0 1rem; }
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: .2rem 1.2rem; padding-top: 1rem; }
header h1 { font-size: 1.3rem; margin: 0; } header p, footer p { margin: 0; color: var(--soft); font-size: .87rem; }
footer { padding: 1rem 1rem 2.5rem; }
h2 { font-size: 1.05rem; margin: 1.6rem 0 .5rem; } h3 { font-size: .95rem; margin: 0; }
small, .soft { color: var(--soft); font-size: .87rem; font-weight: normal; }
.card { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: .9rem 1.1rem; margin: .9rem 0; }
.lead { font-size: 1.05rem; margin: .3rem 0; } .card p { margin: .25rem 0; }
.badge { display: inline-block; border: 1px solid currentColor; border-radius: 99px; padding: 0 .6em; font-size: .8rem; line-height: 1.6;
  white-space: nowrap; margin: 0 .35em .2em 0; }
.good { color: var(--good); } .bad { color: var(--bad); } .wait { color: var(--wait); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .45rem .9rem .45rem 0; border-bottom: 1px solid var(--rule); }
thead th { color: var(--soft); font-size: .82rem; font-weight: 600; white-space: nowrap; }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; } tbody tr:last-child > * { border-bottom: 0; }
th[scope=row] { font-weight: 600; min-width: 9rem; } .number { font-variant-numeric: tabular-nums; white-space: nowrap; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(max(118px, 21%), 1fr)); gap: .7rem 1rem; margin: .7rem 0 0; }
dt { color: var(--soft); font-size: .82rem; } dd { margin: 0; font-size: 1.25rem; font-variant-numeric: tabular-nums; line-height: 1.35; }
dd small { display: block; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: .9rem; }
figure { margin: 0; background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: .8rem 1rem .6rem; min-width: 0; }
figcaption { display: flex; flex-wrap: wrap; justify-content: space-between; gap: .1rem 1rem; margin-bottom: .5rem; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 0 1rem; margin: 0; padding: 0; font-size: .84rem; }
.legend b { font-variant-numeric: tabular-nums; }
.key { display: inline-block; width: 1.3em; height: 0; border-top: 3px solid; vertical-align: middle; margin-right: .4em; }
.plot { display: grid; grid-template: 170px auto / auto 1fr; gap: .3rem .5rem; }
.y, .x { display: flex; justify-content: space-between; color: var(--soft); font-size: .75rem; font-variant-numeric: tabular-nums; }
.y { flex-direction: column; text-align: right; line-height: 1; min-width: 2.7rem; } .x { grid-column: 2; }
svg { display: block; width: 100%; height: 100%; overflow: visible; }
.plot svg { grid-column: 2; grid-row: 1; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; vector-effect: non-scaling-stroke; }
.rule { stroke: var(--rule); vector-effect: non-scaling-stroke; } .move { fill: var(--move); }
.samplers { stroke: var(--samplers); color: var(--samplers); } .trainers { stroke: var(--trainers); color: var(--trainers); }
.measured { stroke: var(--measured); color: var(--measured); } .largest { stroke: var(--trainers); color: var(--trainers); }
.predicted { stroke: var(--soft); color: var(--soft); stroke-dasharray: 6 4; } .key.predicted, .key.limit { border-top-style: dashed; }
.limit { stroke: var(--bad); color: var(--bad); stroke-dasharray: 2 4; }
.area { stroke: none; fill-opacity: .22; } .area.samplers, .shares .samplers { fill: var(--samplers); }
.area.trainers, .shares .trainers { fill: var(--trainers); }
.shares { height: .5rem; min-width: 110px; background: var(--rule); margin-top: .3rem; } .shares rect { stroke: none; }
.spark { height: 1.9rem; width: 130px; }
.swatch { display: inline-block; width: 1.3em; height: .8em; background: var(--move); margin-right: .4em; vertical-align: middle; }
details { margin-top: .9rem; } summary { cursor: pointer; color: var(--link); }
@media (max-width: 760px) {
  table.stack, table.stack tbody { display: block; }
  table.stack thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  table.stack tr { display: block; padding: .5rem 0; border-bottom: 1px solid var(--rule); } table.stack tr:last-child { border-bottom: 0; }
  table.stack th, table.stack td { display: grid; grid-template-columns: 7.2rem 1fr; gap: .5rem; border: 0; padding: .15rem 0; white-space: normal; }
  table.stack th::before, table.stack td::before { content: attr(data-label); color: var(--soft); font-size: .82rem; font-weight: normal; }
  dd { font-size: 1.1rem; } table.stack { overflow-wrap: anywhere; }
}
@media print { body { background: none; } figure, .card { break-inside: avoid; } }
""".strip()
"""All of it; no selector or value comes from outside."""

DIGEST = f"sha256-{base64.b64encode(hashlib.sha256(SHEET.encode()).digest()).decode()}"
"""By which the content security policy allows this sheet and no other."""
