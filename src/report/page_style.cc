#include "report/page_assets.h"

namespace reprise::report {

std::string_view page_style() {
  return R"css(
:root {
  color-scheme: light dark;
  --page: #ffffff; --panel: #f6f7f8; --ink: #1c2126; --soft: #59636e; --line: #dfe3e7; --grid: #e8ebee;
  --accent: #1f5fa8; --good: #1a7f4b; --bad: #b3261e;
  --fixed: #a9b2bc; --input: #7d8894; --state: #9a86c9; --gradient: #e39a3b; --activation: #62a0dd;
  --saved: #2c69ad; --workspace: #d9c24a;
  --forward: #3f7fc4; --loss: #7a5cc0; --recompute: #d4513f; --backward: #2f9479; --periodic: #8a6d1a;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14181c; --panel: #1c2227; --ink: #e6eaee; --soft: #9aa6b2; --line: #333c45; --grid: #262d34;
    --accent: #7ab3ef; --good: #58c48c; --bad: #f0857b;
    --fixed: #56606b; --input: #7f8a96; --state: #8f7cc2; --gradient: #cf8a33; --activation: #5795d3;
    --saved: #2f62a0; --workspace: #c2ac3d;
    --forward: #5b9be0; --loss: #a58be6; --recompute: #ea6f5c; --backward: #45b394; --periodic: #d1b25a;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", "Noto Sans", "Liberation Sans", sans-serif; }
main, header, footer { max-width: 1060px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 44px; }
.eyebrow { margin: 0; color: var(--soft); font-size: 14px; letter-spacing: .02em; }
h1 { margin: 2px 0 10px; font-size: 34px; line-height: 1.2; font-weight: 650; overflow-wrap: anywhere; }
h2 { margin: 52px 0 6px; font-size: 22px; line-height: 1.3; font-weight: 620; }
h3 { margin: 26px 0 4px; font-size: 15px; font-weight: 620; }
p { margin: 0 0 12px; max-width: 74ch; }
.lead { font-size: 19px; line-height: 1.5; }
.note { color: var(--soft); font-size: 14px; }
a { color: var(--accent); }
code { font: .92em ui-monospace, "SFMono-Regular", Consolas, "DejaVu Sans Mono", monospace;
  overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(185px, 1fr)); gap: 12px;
  margin: 24px 0 0; }
.tiles.six { grid-template-columns: repeat(3, 1fr); }
.tiles div { background: var(--panel); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px; }
.tiles dt { color: var(--soft); font-size: 13.5px; }
.tiles dd { margin: 0; }
.tiles .figure { font-size: 21px; white-space: nowrap; font-weight: 620; line-height: 1.3; font-variant-numeric: tabular-nums; }
.tiles .aside { color: var(--soft); font-size: 13.5px; line-height: 1.4; }
.warning { border: 1px solid var(--bad); border-left-width: 5px; border-radius: 8px; padding: 12px 16px;
  margin: 24px 0 0; }
.warning strong { color: var(--bad); }
.warning ul { margin: 6px 0 0; padding-left: 20px; overflow-wrap: anywhere; }
figure { margin: 0 0 10px; }
figcaption { font-size: 15px; font-weight: 620; margin: 20px 0 2px; }
figcaption span { color: var(--soft); font-weight: 400; }
.scroll { overflow-x: auto; }
.scroll:focus-visible, .table:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
svg { display: block; }
.chart { width: 100%; min-width: 820px; height: auto; overflow: hidden;
  font-size: 12px; font-variant-numeric: tabular-nums; }
.chart text { fill: var(--soft); }
.chart .on-plot { fill: var(--ink); paint-order: stroke; stroke: var(--page); stroke-width: 3px; }
.chart path, .chart line { fill: none; }
.plot { overflow: hidden; }
.plot path, .plot rect, .plot line { vector-effect: non-scaling-stroke; }
.grid { stroke: var(--grid); }
.axis { stroke: var(--soft); }
.chart .kind-fixed, .key.kind-fixed { fill: var(--fixed); background: var(--fixed); }
.chart .kind-input, .key.kind-input { fill: var(--input); background: var(--input); }
.chart .kind-state, .key.kind-state { fill: var(--state); background: var(--state); }
.chart .kind-gradient, .key.kind-gradient { fill: var(--gradient); background: var(--gradient); }
.chart .kind-activation, .key.kind-activation { fill: var(--activation); background: var(--activation); }
.chart .kind-saved, .key.kind-saved { fill: var(--saved); background: var(--saved); }
.chart .kind-workspace, .key.kind-workspace { fill: var(--workspace); background: var(--workspace); }
.chart .run.forward, .key.forward { fill: var(--forward); background: var(--forward); }
.chart .run.loss, .key.loss { fill: var(--loss); background: var(--loss); }
.chart .run.recompute, .key.recompute { fill: var(--recompute); background: var(--recompute); }
.chart .run.backward, .key.backward { fill: var(--backward); background: var(--backward); }
.chart .run.copy { fill: var(--accent); }
.chart .run.waiting { fill: var(--bad); }
.run { stroke: var(--page); stroke-width: .5; }
.trail { stroke-width: 3.2; stroke-linecap: round; }
.trail.forward { stroke: var(--forward); } .trail.loss { stroke: var(--loss); }
.trail.recompute { stroke: var(--recompute); } .trail.backward { stroke: var(--backward); }
.block.edged { stroke: var(--page); stroke-width: .5; }
.outline { stroke: var(--ink); stroke-width: .8; stroke-opacity: .55; }
.level.budget { stroke: var(--bad); stroke-width: 1.6; stroke-dasharray: 7 4; }
.measured { stroke: var(--ink); stroke-width: 2; }
.peak { stroke: var(--bad); stroke-width: 9; stroke-linecap: round; }
.curve { stroke: var(--accent); stroke-width: 2.2; }
.compared0 { stroke: var(--backward); stroke-width: 1.6; stroke-dasharray: 7 4; }
.compared1 { stroke: var(--periodic); stroke-width: 1.6; stroke-dasharray: 2 4; }
.bound { stroke: var(--accent); stroke-width: 1.3; stroke-dasharray: 2 3; }
.mark { stroke: var(--soft); stroke-dasharray: 5 4; }
.nothing { fill: var(--line); fill-opacity: .45; }
.point { stroke-width: 1.8; }
.point.plain { fill: var(--bad); stroke: var(--bad); }
.point.periodic { fill: var(--page); stroke: var(--periodic); }
.point.chosen { fill: var(--accent); stroke: var(--ink); }
.diagonal { stroke: var(--soft); stroke-dasharray: 4 4; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; list-style: none; margin: 8px 0; padding: 0;
  font-size: 14px; color: var(--soft); }
.key { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 7px;
  vertical-align: -1px; }
.key.rule { height: 0; width: 20px; border-top: 2px dashed var(--bad); border-radius: 0; vertical-align: 4px; }
.key.solid { height: 0; width: 20px; border-top: 2px solid var(--ink); border-radius: 0; vertical-align: 4px; }
.table { overflow: auto; max-height: 620px; border: 1px solid var(--line); border-radius: 8px; margin: 10px 0 14px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: 10px 12px; color: var(--soft); font-size: 14px; }
th, td { text-align: left; padding: 5px 12px; border-top: 1px solid var(--line); vertical-align: top; }
thead th { position: sticky; top: 0; background: var(--panel); font-weight: 600; white-space: nowrap; }
tbody th { font-weight: 500; overflow-wrap: anywhere; min-width: 11em; max-width: 26em; }
tfoot th, tfoot td { font-weight: 600; background: var(--panel); }
td:last-child:not(.n) { min-width: 17em; }
.n { text-align: right; white-space: nowrap; }
.verdict { display: inline-block; min-width: 8em; overflow-wrap: anywhere; }
.verdict.again { color: var(--recompute); font-weight: 600; }
.verdict.kept { color: var(--good); }
.bar { display: inline-block; height: 9px; border-radius: 2px; background: var(--accent); vertical-align: 0; }
.zoom { display: flex; flex-wrap: wrap; gap: 6px; align-items: center; margin: 10px 0; font-size: 14px;
  color: var(--soft); }
.zoom button { font: inherit; font-size: 14px; color: var(--ink); background: var(--panel);
  border: 1px solid var(--line); border-radius: 6px; padding: 3px 11px; cursor: pointer; }
.zoom button:hover { border-color: var(--soft); }
.tip { position: fixed; z-index: 2; pointer-events: none; max-width: 380px; background: var(--panel);
  color: var(--ink); border: 1px solid var(--line); border-radius: 8px; padding: 8px 12px; font-size: 13px;
  line-height: 1.45; box-shadow: 0 4px 18px rgb(0 0 0 / .18); overflow-wrap: anywhere; white-space: pre-line;
  font-variant-numeric: tabular-nums; }
.cross { stroke: var(--ink); stroke-width: 1; stroke-opacity: .6; }
.select { fill: var(--accent); fill-opacity: .18; }
.drag { cursor: crosshair; }
footer { margin-top: 60px; padding-bottom: 50px; color: var(--soft); font-size: 14px; }
footer dl { display: grid; grid-template-columns: max-content 1fr; gap: 3px 18px; margin: 8px 0; }
footer dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 600px) {
  h1 { font-size: 27px; } .lead { font-size: 17px; } header { padding-top: 24px; }
  .tiles, .tiles.six { grid-template-columns: 1fr 1fr; gap: 8px; } .tiles div { padding: 10px 12px; }
  .tiles .figure { font-size: 18px; }
  tbody th { min-width: 8em; max-width: 9.5em; overflow-wrap: anywhere; } th, td { padding: 5px 9px; }
  footer dl { grid-template-columns: 1fr; } footer dt { font-weight: 600; }
}
@media print {
  :root { --page: #fff; --panel: #f6f7f8; --ink: #000; --soft: #444; --line: #ccc; --grid: #e4e4e4; }
  body { font-size: 10.5pt; } main, header, footer { max-width: none; padding: 0; }
  .table { max-height: none; overflow: visible; } .scroll { overflow: visible; } .chart { min-width: 0; }
  figure, .tiles div, tr { break-inside: avoid; } h2, h3, figcaption { break-after: avoid; }
  thead th { position: static; } .zoom, .tip { display: none; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
)css";
}

}  // namespace reprise::report
