#!/usr/bin/python3
"""Opens every page of the book in headless Chromium: errors, links, headings, contrast, three widths; what the pages
compute is compared with the programs."""
import html
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

ROOT, HTML = Path(__file__).resolve().parents[3], Path(os.environ["BOOK"]) / "html"
PAGES = sorted(HTML.rglob("*.html"))
faults = []

def expect(right, message):
    if not right:
        faults.append(message)
        print(f"[  FAILED  ] {message}", flush=True)

def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--allow-file-access-from-files", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(service=Service(shutil.which("chromedriver")), options=options)
    chrome.set_script_timeout(60)
    return chrome

def resize(b, width, height=900):
    b.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                      {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})

# What is wrong with a page: headings that skip a level, images without text, a page wider than the window, words of a
# table that are broken, program lines that are cut or spaced.
LAYOUT = """
const wrong = [];
let level = 0;
for (const h of document.querySelectorAll("article h1, article h2, article h3, article h4")) {
    if (+h.tagName[1] > level + 1) wrong.push("heading " + h.textContent.slice(0, 40) + " skips a level");
    level = +h.tagName[1];
}
if (document.querySelectorAll("h1").length !== 1) wrong.push(document.querySelectorAll("h1").length + " h1");
for (const i of document.images) if (!i.alt) wrong.push("no alt: " + i.src);
const range = document.createRange();
for (const cell of document.querySelectorAll("article :is(td, th)")) {
    const walk = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (walk.nextNode())
        for (const word of walk.currentNode.data.matchAll(/[\\w.,]+/g)) {
            range.setStart(walk.currentNode, word.index), range.setEnd(walk.currentNode, word.index + word[0].length);
            if (new Set([...range.getClientRects()].map((r) => Math.round(r.top))).size > 1) wrong.push("broken in a table: " + word[0]);
        }
}
for (const table of innerWidth < 1280 ? [] : document.querySelectorAll("article table"))
    if (table.scrollWidth > table.closest("section").clientWidth) wrong.push("a table is cut: " + table.textContent.slice(0, 40));
const lines = document.querySelectorAll(".line");
if (lines.length > 1) {
    const apart = lines[1].offsetTop - lines[0].offsetTop, size = parseFloat(getComputedStyle(lines[0]).fontSize);
    if (apart > 1.6 * size) wrong.push("lines are " + apart + " pixels apart, of letters of " + size);
    const pre = lines[0].parentElement;
    if (innerWidth >= 1280 && pre.scrollWidth > pre.clientWidth + 1) wrong.push("lines are cut");
}
for (const row of document.querySelectorAll(".sides > div")) {
    const shown = [...row.children].filter((c) => c.getClientRects().length);
    if (shown.length !== 1 && innerWidth < 500 && shown[0].offsetLeft !== shown[1].offsetLeft) { wrong.push("two columns"); break; }
}
for (const i of document.querySelectorAll("form input, form select"))
    if (!i.closest("label") && !i.getAttribute("aria-label") && !i.placeholder && i.type !== "hidden") wrong.push("no label: " + i.name);
if (document.documentElement.scrollWidth > innerWidth) {
    const wide = [...document.querySelectorAll("article *")].find((e) => e.getBoundingClientRect().right > innerWidth + 1
        && !e.closest("pre, table, .sides, .toctree-wrapper"));
    wrong.push("scrolls sideways: " + document.documentElement.scrollWidth + " " + (wide ? wide.outerHTML.slice(0, 90) : ""));
}
return wrong;"""

# The texts of the article whose contrast with what is behind them is below 4.5 (WCAG 2.1, 1.4.3).
CONTRAST = """
const parts = (c) => (c.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
const light = (c) => { const [r, g, b] = parts(c).map((x) => (x /= 255) <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
                       return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const low = {};
const walk = document.createTreeWalker(document.querySelector("article"), NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
    const e = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || e.closest("script, style, svg") || !e.getClientRects().length) continue;
    let behind = e;
    while (behind && (parts(getComputedStyle(behind).backgroundColor)[3] ?? 1) === 0) behind = behind.parentElement;
    const a = light(getComputedStyle(e).color), b = light(behind ? getComputedStyle(behind).backgroundColor : "rgb(255,255,255)");
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low[e.tagName + "." + e.className + " " + getComputedStyle(e).color] = ratio.toFixed(2) + " " + e.textContent.slice(0, 30);
}
return Object.entries(low).map((x) => x.join(": "));"""

def open_page(b, page, theme=None):
    b.get(page.as_uri())
    if theme:
        b.execute_script(f'document.body.dataset.theme = "{theme}"')

def test_pages(b):
    for page in PAGES:
        name = page.relative_to(HTML)
        open_page(b, page)
        for line in b.get_log("browser"):
            expect(line["level"] != "SEVERE", f"{name}: {line['message']}")
        for width in () if name.name in ("genindex.html", "search.html") else (390, 1280, 1600):
            resize(b, width)
            for wrong in b.execute_script(LAYOUT):
                expect(False, f"{name}, {width} wide: {wrong}")
    for name in ("index", "06_pipeline_parallel/index", "09_combined/DIFF", "08_fused_kernels/fused_cuda/flash_forward.cuh",
                 "play/schedules", "play/memory", "play/planner", "play/timelines"):
        behind = {}
        for theme, system in (("light", "dark"), ("dark", "light"), ("auto", "light"), ("auto", "dark")):
            b.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": system}]})
            open_page(b, HTML / f"{name}.html", theme)
            behind[theme, system] = b.execute_script("return getComputedStyle(document.body).backgroundColor")
            for low in b.execute_script(CONTRAST):
                expect(False, f"{name}, {theme} on a {system} system: contrast {low}")
        expect(behind["auto", "dark"] == behind["dark", "light"] != behind["auto", "light"] == behind["light", "dark"],
               f"{name}: its background does not follow theme and system: {behind}")

def test_links():
    ids, links = {}, []
    for page in PAGES:
        text = page.read_text()
        ids[page] = set(re.findall(r'\bid="([^"]+)"', text))
        links += [(page, html.unescape(x)) for x in re.findall(r'(?:href|src)="([^"]+)"', text)]
    for page, link in links:
        target, _, anchor = link.partition("#")
        if re.match(r"(https?|mailto|data):", target):
            expect(re.search(r"<(a|link rel=.(?!style))[^>]*" + re.escape(link), html.unescape(page.read_text())),
                   f"{page.relative_to(HTML)}: loads {link} from elsewhere")
            continue
        there = (page.parent / target.split("?")[0]).resolve() if target else page
        expect(there.exists(), f"{page.relative_to(HTML)}: dead link {link}")
        if anchor and there in ids:
            expect(anchor in ids[there], f"{page.relative_to(HTML)}: no anchor {link}")

def answer(b, page, values):
    """What a page prints for these values of its form: its error, or the program's output."""
    open_page(b, HTML / f"play/{page}.html")
    return change(b, values)

def change(b, values):
    return b.execute_async_script("""const [values, done] = arguments, play = document.querySelector(".play");
        const form = play.querySelector("form");
        const after = (runs, then) => +play.dataset.runs > runs ? then() : setTimeout(after, 20, runs, then);
        after(0, () => {
            for (const [k, v] of Object.entries(values)) { const i = form.elements[k];
                if (i.type === "checkbox") i.checked = !!v; else i.value = "power" in i.dataset ? Math.log2(v) : v; }
            form.dispatchEvent(new Event("input"));
            after(+play.dataset.runs, () => done(play.querySelector(".error").textContent
                                                 || play.querySelector(".answer pre").textContent));
        });""", values)

def program(*command):
    r = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return r.stdout or r.stderr

def test_computed(b):
    for kind, ranks, m, chunks, times in (
            ("afab", 4, 8, 1, "1,1,1,0"), ("1f1b", 4, 8, 1, "1,1,1,0"), ("1f1b", 3, 5, 1, "2,3,1,1"),
            ("interleaved", 4, 8, 2, "1,1,1,0"), ("interleaved", 2, 6, 3, "3,4,2,1"), ("zero-bubble", 4, 8, 1, "1,1,1,0"),
            ("zero-bubble", 8, 3, 1, "2,2,1,0"), ("zb-v", 4, 6, 1, "1,1,1,0"), ("zb-v", 6, 12, 1, "4,4,3,1"),
            ("dualpipe-v", 4, 10, 1, "1,1,1,0")):
        shown = answer(b, "schedules", {"kind": kind, "ranks": ranks, "micro-batches": m, "chunks": chunks, "times": times})
        native = program("mpiexec", "-n", str(ranks), "build/cpu/06_pipeline_parallel", "--schedule", kind, "--accumulate",
                         str(m), "--chunks", str(chunks), "--times", times, "--print-schedule", "--quiet", "--layers",
                         str(2 * ranks * max(chunks, 2)))
        expect("bubble" in shown and native.endswith(shown), f"schedules: {kind}, {ranks}, {m}: {shown}is not\n{native}")
    for values in ({"model": "8b", "gpus": 64}, {"model": "1.3b", "gpus": 8}, {"model": "70b", "gpus": 512, "tp": "<=8"},
                   {"model": "mixtral-8x7b", "gpus": 128, "ep": 8}, {"model": "llama3-405b", "gpus": 1024, "seq": "128K"},
                   {"model": "175b", "gpus": 256, "hardware": "a100"}, {"model": "124m", "gpus": 4, "dtype": "fp32"},
                   {"model": "7b", "gpus": 16, "zero": 3, "recompute": "full"}, {"model": "8b", "gpus": 0},
                   {"model": "3b", "gpus": 24, "batch": "2M"}):
        shown = answer(b, "planner", values)
        words = [x for k, v in values.items() for x in (f"--{k}", str(v))]
        native = program("build/cpu/plan", *words)
        expect(shown.strip() == re.sub("^plan: ", "", native).strip(), f"planner: {values}: {shown[:300]} is not {native[:300]}")
    shown = answer(b, "memory", {"model": "1.3b", "tp": 2, "pp": 2, "dp": 4, "zero": "1"})
    native = program("build/cpu/plan", "--model", "1.3b", "--gpus", "16", "--explain", "tp=2,pp=2,dp=4,micro-batch=1,zero=1")
    expect(shown.strip() == native.strip(), f"memory: {shown[:300]} is not {native[:300]}")

def test_charts(b):
    """Headlines, what stays when a question is wrong, sizes, and that each chapter has what its comments ask for."""
    resize(b, 1280)
    chart = "return document.querySelector('.chart').innerHTML"
    headline = "return document.querySelector('.headline').textContent"
    answer(b, "schedules", {"kind": "interleaved", "ranks": 8, "micro-batches": 40})
    expect("bubble is 8.8%" in b.execute_script(headline), f"schedules, 8 x 40: {b.execute_script(headline)}")
    expect(b.execute_script("return document.querySelector('.scrolls g rect').getBoundingClientRect().width") >= 14,
           "schedules, 8 x 40: too small to read")
    expect(b.execute_script("return [...document.querySelectorAll('.scrolls g text')].filter((t) => t.textContent == 39).length")
           == 32, "schedules, 8 x 40: the last micro-batch lacks a forward or a backward of a rank's chunk")
    change(b, {"kind": "zb-v"})
    expect(b.execute_script("return document.querySelector('[name=chunks]').getClientRects().length") == 0, "schedules: zb-v has a "
           "number of chunks")
    answer(b, "memory", {"tp": 8})
    before = b.execute_script(chart)
    wrong = change(b, {"tp": 64, "pp": 64})
    expect(before == b.execute_script(chart) and len(wrong) > 10, f"memory: a wrong grid changes the chart: {wrong}")
    expect("GiB" in before and b.execute_script("return document.querySelectorAll('.chart rect').length") > 12, "memory: no bars")
    answer(b, "planner", {})
    expect(b.execute_script("return [...document.querySelectorAll('.play label')].filter((l) => !l.closest('details')).length") == 5
           and b.execute_script("return document.querySelectorAll('.chart svg').length") >= 5, "planner: not five fields and a chart")
    for readme in ROOT.glob("[0-9][0-9]_*/README.md"):
        asked = re.findall("<!-- play: .*?: (.*?) -->", readme.read_text(), re.S)
        open_page(b, HTML / readme.parent.name / "index.html")
        shown = b.execute_script("""return [...document.querySelectorAll(".question")].map((q) => [q.textContent,
            (q.closest(".play") || document.querySelector(".timeline")).querySelectorAll("rect").length])""")
        expect([" ".join(q.split()) for q in asked] == [q for q, rects in shown if rects > 8], f"{readme}: asks {asked}, has {shown}")
    for number, rank in (("03", 3), ("06", 3), ("09", 7)):
        open_page(b, HTML / "play/timelines.html")
        count = f"return document.querySelectorAll('#trace-{number} rect').length"
        expect(b.execute_script(count) > 100, f"timelines: {number} has few spans")
        names = b.execute_script(f"return document.querySelector('#trace-{number} .rows').textContent")
        expect(f"rank {rank}" in names and names.count(" ms") == 5, f"timelines: {number} lacks a rank or an axis")
        wide = f"return document.querySelector('#trace-{number} .scrolls svg').clientWidth"
        before = b.execute_script(wide)
        b.execute_script(f"document.querySelector('#trace-{number} button').click()")
        expect(b.execute_script(wide) == 2 * before, f"timelines: {number} does not zoom")

def test_front(b):
    """The step draws itself under one technique, then the next one does; a chosen one stays."""
    open_page(b, HTML / "index.html")
    shown = "return [...document.querySelectorAll('.steps figure')].findIndex((f) => f.getClientRects().length)"
    count = b.execute_script("return document.querySelectorAll('.steps figure img').length")
    expect(count >= 7 and b.execute_script(shown) == 0, "front page: the first technique is not shown")
    end = "document.querySelectorAll('.curtain')[arguments[0]].dispatchEvent(new Event('animationend', {bubbles: true}))"
    b.execute_script(end, 0)
    time.sleep(4)
    expect(b.execute_script(shown) == 1, "front page: the second technique does not follow")
    b.execute_script("document.querySelectorAll('.names button')[3].click()")
    expect(b.execute_script(shown) == 3 and b.execute_script("return document.getAnimations().length") == 1,
           "front page: a chosen technique is not drawn")
    links = b.execute_script("return [...document.querySelectorAll('td:first-child a')].map((a) => a.textContent)")
    expect(len(links) == len(list(ROOT.glob("[0-9][0-9]_*/README.md"))), f"front page: the path is {links}")

def test_diffs(b):
    for diff in sorted(ROOT.glob("[0-9][0-9]_*/DIFF.md")):
        lines = Counter(x for block in re.findall(r"^```diff\n(.*?)^```", diff.read_text(), re.M | re.S)
                        for x in block.split("\n") if re.match("[-+]", x))
        open_page(b, HTML / diff.parent.name / "DIFF.html")
        shown = Counter(b.execute_script("""return [...document.querySelectorAll(".sides code.add, .sides code.del")].map(
            (e) => (e.className === "add" ? "+" : "-") + e.textContent.replace(/^\\u00a0$/, ""))"""))
        expect(lines == shown, f"{diff.parent.name}: {sum((lines - shown).values())} changed lines missing, "
               f"{sum((shown - lines).values())} too many: {list(((lines - shown) + (shown - lines)))[:3]}")

chromium = browser()
test_links()
for test in (test_diffs, test_computed, test_charts, test_front, test_pages):
    test(chromium)
chromium.quit()
print(f"test_book: {len(PAGES)} pages, {len(faults)} faults")
sys.exit(1 if faults else 0)
