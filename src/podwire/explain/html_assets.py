"""The style and the script of every page. Both are named by their hash in the page's Content-Security-Policy: nothing else runs.

The script only lights and scrolls; all it shows is in the page, and readable, without it.
"""

CSS = """
:root{--ink:#1c2733;--soft:#5a6875;--line:#d5dce3;--page:#f6f8fa;--card:#fff;--blue:#1f5fae;--blue-soft:#e6effa;--good:#1a7446;--good-soft:#e3f4ea;
--bad:#b3261e;--bad-soft:#fbe9e7;--open:#8a5a00;--open-soft:#fdf3dc;--path:#eef1f4;--now:#d97706}
@media(prefers-color-scheme:dark){:root{--ink:#e4e9ee;--soft:#9aa8b5;--line:#36424e;--page:#12181f;--card:#1a222b;--blue:#82b6f5;--blue-soft:#1d3149;
--good:#76d3a0;--good-soft:#173626;--bad:#ff9d94;--bad-soft:#45201d;--open:#f2c063;--open-soft:#3d2f10;--path:#242e38;--now:#fbbf24}}
*{box-sizing:border-box}
html{color-scheme:light dark;scroll-padding-top:1rem;-webkit-text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:82rem;margin:0 auto;padding:1.5rem clamp(.8rem,3vw,2rem) 3rem}
header p.kind{margin:0;color:var(--soft);font-size:.85rem;letter-spacing:.02em;overflow-wrap:anywhere}
h1{font-size:clamp(1.15rem,1rem + 1vw,1.5rem);line-height:1.35;margin:.2rem 0 1.2rem;font-weight:650;text-wrap:pretty;overflow-wrap:anywhere}
h1.long{font-size:clamp(1rem,.95rem + .3vw,1.12rem);font-weight:600;max-width:62rem}
h2{font-size:1.05rem;margin:2rem 0 .6rem}
h3{font-size:.95rem;margin:1.2rem 0 .3rem;overflow-wrap:anywhere}
code,.rule,td.m,svg text.t{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:10px;overflow:hidden}
.scroll{overflow:auto;max-height:max(26rem,calc(100vh - 8rem));padding:.4rem}
.scroll svg{display:block;margin:0 auto}
.bar{display:flex;flex-wrap:wrap;gap:.5rem;align-items:center;padding:.55rem .7rem;border-top:1px solid var(--line);min-height:3.2rem}
.bar button{font:inherit;font-size:.85rem;color:var(--blue);background:var(--blue-soft);border:1px solid transparent;border-radius:7px;padding:.3rem .75rem;cursor:pointer}
.bar button:hover{border-color:var(--blue)}
.bar button:disabled{opacity:.45;cursor:default;border-color:transparent}
.bar .said{flex:1 1 16rem;font-size:.85rem;margin:0;overflow-wrap:anywhere}
html:not(.js) .bar{display:none}
svg text{fill:var(--ink);text-anchor:middle;pointer-events:none}
svg text.t{font-size:12px;font-weight:600}
svg text.s{font-size:10.5px;fill:var(--soft)}
svg .arrow{fill:none;stroke:var(--soft);stroke-width:1.4;opacity:.75}
svg .tip{fill:var(--soft)}
svg .box{cursor:pointer}
svg .box rect{fill:var(--card);stroke:var(--line);stroke-width:1.4}
svg .start rect{fill:var(--blue-soft);stroke:var(--blue)}
svg .path rect{fill:var(--path)}
svg .good rect{fill:var(--good-soft);stroke:var(--good)}
svg .bad rect{fill:var(--bad-soft);stroke:var(--bad)}
svg .open rect{fill:var(--open-soft);stroke:var(--open)}
svg .box:hover rect,svg .box:focus-visible rect{stroke:var(--blue);stroke-width:2.4}
svg a:focus,svg g:focus{outline:none}
svg .off{opacity:.22}
svg .arrow.on{stroke:var(--blue);stroke-width:2.2;opacity:1}
svg .box.now rect{stroke:var(--now);stroke-width:3}
.ways{display:grid;gap:.9rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,27rem),1fr));margin-top:1rem}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:.8rem 1rem;min-width:0}
.card>h3{margin-top:0}
.tag{display:inline-block;font-size:.78rem;font-weight:650;border-radius:99px;padding:.05rem .6rem;margin-right:.4rem;background:var(--open-soft);color:var(--open)}
.tag.good{background:var(--good-soft);color:var(--good)}.tag.bad{background:var(--bad-soft);color:var(--bad)}
ol.steps{list-style:none;margin:.5rem 0 0;padding:0;font-size:.82rem}
ol.steps li{padding:.32rem .5rem;border-left:3px solid var(--line);margin:.15rem 0;border-radius:0 6px 6px 0}
ol.steps li.lit{border-left-color:var(--blue)}
ol.steps li.now,:target:not(.card):not(section){background:var(--blue-soft);border-left-color:var(--now)}
.place{display:block;color:var(--soft);font-size:.76rem}
.rule{overflow-wrap:anywhere;font-size:.8rem}
table{border-collapse:collapse;min-width:min(100%,30rem);font-size:.88rem}
th{text-align:left;font-weight:600;color:var(--soft);font-size:.8rem}
th,td{padding:.35rem 1.6rem .35rem 0;border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:anywhere}
td.m{font-size:.82rem}
.wide{overflow-x:auto}
details{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:.5rem .9rem;margin:.6rem 0}
details details{border:0;border-left:2px solid var(--line);border-radius:0;padding:.1rem 0 .1rem .8rem;margin:.2rem 0;background:none}
details figure{margin-top:.7rem}
summary{cursor:pointer;overflow-wrap:anywhere}
ul.notes{margin:.2rem 0;padding-left:1.2rem;font-size:.88rem;overflow-wrap:anywhere}
ul.tree{list-style:none;margin:.2rem 0;padding-left:.2rem;font-size:.85rem}
ul.tree li{margin:.2rem 0;overflow-wrap:anywhere}
.bang{color:var(--bad)}
footer{margin-top:2.5rem;color:var(--soft);font-size:.8rem;overflow-wrap:anywhere}
a{color:var(--blue)}
@media(max-width:40rem){.scroll{max-height:70vh}th,td{padding-right:.4rem}}
@media print{.scroll{max-height:none;overflow:visible}.bar{display:none}}
"""

SCRIPT = """
(function () {
  document.documentElement.classList.add('js');
  document.querySelectorAll('figure[data-name]').forEach(function (figure) {
    var name = figure.dataset.name;
    var marked = Array.from(figure.querySelectorAll('[data-p]'));
    var boxes = marked.filter(function (one) { return one.dataset.b; });
    var items = Array.from(document.querySelectorAll('li[data-b^="' + name + '-"]'));
    var said = figure.querySelector('.said');
    var back = figure.querySelector('.back'), on = figure.querySelector('.on'), all = figure.querySelector('.all');
    var way = null, at = -1;
    function ways(one) { return one.dataset.p.split(' '); }
    function route() {
      return boxes.filter(function (one) { return ways(one).indexOf(way) >= 0; }).sort(function (one, two) {
        var a = one.getBBox(), b = two.getBBox();
        return figure.dataset.across ? a.x - b.x : a.y - b.y;
      });
    }
    function light(lit) {
      marked.forEach(function (one) {
        var hit = !lit || ways(one).some(function (number) { return lit.indexOf(number) >= 0; });
        one.classList.toggle('off', !hit);
        one.classList.toggle('on', Boolean(lit) && hit);
      });
    }
    function show(box, lit) {
      boxes.forEach(function (one) { one.classList.toggle('now', one === box); });
      light(lit);
      var first = null;
      items.forEach(function (one) {
        var hit = Boolean(box) && one.dataset.b === box.dataset.b;
        one.classList.toggle('now', hit);
        one.classList.toggle('lit', Boolean(lit) && lit.indexOf(one.dataset.w) >= 0);
        if (hit && (!first || one.dataset.w === way)) { first = one; }
      });
      said.textContent = box ? (first ? first.textContent : box.querySelector('title').textContent) : said.dataset.hint;
      if (box) { keep(box); }
      var steps = way === null ? [] : route();
      back.disabled = at <= 0;
      on.disabled = way !== null && at >= steps.length - 1;
      all.disabled = !box;
    }
    function keep(box) {
      var room = figure.querySelector('.scroll'), a = box.getBoundingClientRect(), b = room.getBoundingClientRect();
      room.scrollTop += a.top < b.top || a.bottom > b.bottom ? a.top - b.top - b.height / 2 : 0;
      room.scrollLeft += a.left < b.left || a.right > b.right ? a.left - b.left - b.width / 2 + a.width / 2 : 0;
    }
    function choose(box) {
      var mine = ways(box);
      if (way === null || mine.indexOf(way) < 0) { way = mine[0]; }
      at = route().indexOf(box);
      show(box, mine);
    }
    function step(by) {
      if (way === null) { way = '0'; }
      var steps = route();
      at = Math.max(0, Math.min(steps.length - 1, at + by));
      show(steps[at], [way]);
    }
    boxes.forEach(function (box) {
      box.addEventListener('click', function (event) { event.preventDefault(); choose(box); });
      box.addEventListener('keydown', function (event) { if (event.key === 'Enter') { event.preventDefault(); choose(box); } });
    });
    back.addEventListener('click', function () { step(-1); });
    on.addEventListener('click', function () { step(1); });
    all.addEventListener('click', function () { way = null; at = -1; show(null, null); });
    show(null, null);
    var room = figure.querySelector('.scroll');
    if (!figure.dataset.across) { room.scrollLeft = (room.scrollWidth - room.clientWidth) / 2; }
  });
})();
"""
