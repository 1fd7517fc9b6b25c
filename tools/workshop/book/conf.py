"""The book, built by Sphinx with MyST and Furo from the READMEs as they are. This file writes Sphinx's sources to
$BOOK/source: a page for each README, exercises.md and NOTATION.md, with links turned to pages; a page for each source
file, with a link at every line; and for each DIFF.md a page with the two programs side by side."""
import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import CLexer, CudaLexer

ROOT = Path(__file__).resolve().parents[3]
BOOK = Path(os.environ["BOOK"])
SOURCE, EXTRA = BOOK / "source", BOOK / "extra"

project, html_title, root_doc = "ultrascale.c", "ultrascale.c", "index"
extensions = ["myst_parser"]
myst_heading_anchors = 4
myst_enable_extensions = ["html_image"]
html_theme = "furo"
html_static_path = ["static"]
html_css_files, html_js_files = ["book.css"], ["book.js"]
html_extra_path = [str(EXTRA)]
html_copy_source = html_show_sourcelink = html_show_sphinx = html_show_copyright = False
pygments_style, pygments_dark_style = "default", "github-dark"
highlight_language = "none"
suppress_warnings = ["myst.header", "toc.excluded"]
html_theme_options = {"light_css_variables": {"color-brand-primary": "#0a58a5", "color-brand-content": "#0a58a5",
                                              "color-foreground-muted": "#595959"},
                      "dark_css_variables": {"color-brand-primary": "#7db8f5", "color-brand-content": "#7db8f5",
                                             "color-foreground-muted": "#adadad"}}

FILES = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
CHAPTERS = sorted({f.split("/")[0] for f in FILES if re.match(r"\d\d_", f)})
CODE = [f for f in FILES if re.match(r"(\d\d_\w+|common|tools/planner)/.*\.(c|h|cu|cuh)$", f)]
BASES = {"04": "03_data_parallel", "08": "02_mixed_precision", "09": "05_tensor_parallel"}
PLAY = ["schedules", "memory", "planner", "timelines"]

def doc_of(path):
    """The page of a file or directory of the project, without its ending; None: it has none."""
    path = path.rstrip("/")
    if f"{path}/README.md" in FILES or path in (".", ""):
        path = os.path.normpath(f"{path}/README.md")
    if path in CODE:
        return path
    if path not in FILES or not path.endswith(".md"):
        return None
    return {"README": "index"}.get(Path(path).stem, Path(path).stem) if "/" not in path else \
        re.sub("README$", "index", path[:-3])

def relative(doc, target):
    return os.path.relpath(target, os.path.dirname(doc) or ".")

def link_to(path, doc, target):
    """The link from page `doc`, made of file `path`, to what the file links to; its files are copied beside the pages."""
    name, _, anchor = target.partition("#")
    there = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
    page = doc_of(there)
    if page:
        return relative(doc, page) + ".md" + (f"#{anchor}" if anchor else "")
    if not (ROOT / there).exists():
        raise SystemExit(f"{path}: links to {target}, which does not exist")
    if (ROOT / there).is_dir():                 # a directory without a README: its first file stands for it
        first = next(f for f in FILES if f.startswith(there + "/"))
        return link_to(path, doc, os.path.relpath(first, os.path.dirname(path) or "."))
    (EXTRA / "files" / there).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / there, EXTRA / "files" / there)
    return relative(doc, f"files/{there}")

def linked(text, path, doc):
    """A README's text with its links turned to pages, outside of fences; images are copied beside the page."""
    def turn(match):
        image, words, target = match.groups()
        if re.match(r"\w+:", target):           # a badge becomes its words: pages load nothing from elsewhere
            return re.sub(r"!\[([^\]]*)\]\([^)]*\)", r"\1", match[0])
        if image:
            to = SOURCE / os.path.dirname(doc) / target
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / os.path.dirname(path) / target, to)
            return match[0]
        to = link_to(path, doc, target)
        return f"[{words}]({to})" if ".md" in to else f'<a href="{html.escape(to)}">{words}</a>'

    parts = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)
    return "".join(p if p.startswith("```") else re.sub(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)", turn, p)
                   for p in parts)

def write(doc, text):
    to = SOURCE / f"{doc}.md"
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(text)

def raw(text):
    return f"```{{raw}} html\n{text}\n```\n"

# ---- programs ----
OPERATORS = {}                                  # an operator's line in ops.h
for number, line in enumerate((ROOT / "common/ops.h").read_text().split("\n"), 1):
    found = re.match(r"(?:void|double|Batch) (\w+)\(", line)
    if found:
        OPERATORS[found[1]] = number

def colored(text, path, doc):
    """The lines of a program as HTML, each operator with a link to its line in ops.h."""
    lexer = CudaLexer(stripnl=False) if ".cu" in path else CLexer(stripnl=False)
    out = highlight(text, lexer, HtmlFormatter(nowrap=True))
    ops = relative(doc, "common/ops.h") + ".html"

    def link(match):
        line = OPERATORS.get(match[2])
        return f'<a href="{ops}#L{line}">{match[0]}</a>' if line and path != "common/ops.h" else match[0]
    out = re.sub(r'<span class="(nf|n)">(\w+)</span>', link, out)
    return re.sub(r'<span class="[wpn]">(.*?)</span>', r"\1", out).split("\n")         # these have no color

def code_page(path):
    lines = colored((ROOT / path).read_text().rstrip("\n"), path, path)
    while lines and not lines[-1]:
        lines.pop()
    body = "\n".join(f'<span class="line" id="L{i}"><a class="number" href="#L{i}">{i}</a>{line}'
                     f'</span>' for i, line in enumerate(lines, 1))
    chapter = path.split("/")[0]
    up = f"[{chapter}]({relative(path, chapter + '/index')}.md)"
    write(path, f"---\norphan: true\nhide-toc: true\n---\n# {path.split('/', 1)[1]}\n\n{up}\n\n"
          + raw(f'<div class="highlight wide"><pre tabindex="0">{body}\n</pre></div>'))

# ---- diffs, side by side ----
def sides(lines):
    """Rows (old, new) of a function's full diff: a run of removed lines beside the added lines that follow it."""
    rows, removed = [], []
    for line in lines + [" "]:
        if line.startswith("-"):
            removed.append(line[1:])
        elif line.startswith("+"):
            rows.append((removed.pop(0) if removed else None, line[1:]))
        else:
            rows += [(r, None) for r in removed]
            removed = []
            rows.append((line[1:], line[1:]))
    return rows[:-1]

def row_html(row, left, right):
    def side(text, other, name, colors):
        kind = "none" if text is None else "same" if text == other else name
        return f'<code class="{kind}">{(next(colors) if text is not None else "") or "&nbsp;"}</code>'
    return f'<div>{side(*row, "del", left)}{side(*row[::-1], "add", right)}</div>'

def table_html(rows, doc, path):
    """Rows, with unchanged runs of more than eight folded, except for the three next to a change."""
    left, right = (iter(colored("\n".join(r[k] for r in rows if r[k] is not None), path, doc)) for k in (0, 1))
    out, i = [], 0
    while i < len(rows):
        end = i
        while end < len(rows) and rows[end][0] == rows[end][1]:
            end += 1
        first, last = (i + 3 if i else 0), (end - 3 if end < len(rows) else end)
        parts = [row_html(r, left, right) for r in rows[i:max(end, i + 1)]]
        if end > i and last - first > 5:
            parts = parts[:first - i] + [f"<details><summary>{last - first} unchanged lines</summary>"] \
                + parts[first - i:last - i] + ["</details>"] + parts[last - i:]
        out += parts
        i = max(end, i + 1)
    return f'<div class="sides highlight" role="group" aria-label="before and after" tabindex="0">{"".join(out)}</div>'

def diff_page(chapter):
    path, doc = f"{chapter}/DIFF.md", f"{chapter}/DIFF"
    work = BOOK / "changes" / chapter
    shutil.rmtree(work, ignore_errors=True)
    (work / "new").mkdir(parents=True)
    subprocess.run(["tools/workshop/changes.sh", "--functions", chapter, str(work)], cwd=ROOT, check=True,
                   env={**os.environ, "CONTEXT": "100000"})

    def side_by_side(match):
        key = re.sub("[`:,]", "", match[1].split()[0])
        lines = (work / "new" / key).read_text().split("\n")[1:]
        rows = sides([x for x in lines if x != "@@" and x != ""])
        return f"## {match[1]}\n{match[2]}{raw(table_html(rows, doc, f'{chapter}/train.c'))}"

    text = linked((ROOT / path).read_text(), path, doc)
    base = BASES.get(chapter[:2], "01_single_gpu")
    legend = f"Left: {base}; right: {chapter}. Unchanged lines are folded.\n\n"
    text = text.replace("\n## ", f"\n{legend}## ", 1)
    text = re.sub(r"^## (.*?)\n(.*?)```diff\n.*?^```$", side_by_side, text, flags=re.M | re.S)
    write(doc, "---\nhide-toc: true\n---\n" + text)

# ---- pages that compute, and timelines ----
def native(*arguments):
    return subprocess.run([BOOK / "native", *arguments], capture_output=True, text=True, check=True).stdout

def play_pages():
    options = [line.split("\t") for line in native("options").splitlines()]
    compiled = (BOOK / "book.js").exists()
    if compiled:
        shutil.copy(BOOK / "book.js", EXTRA / "compute.js")
    script = '<script src="../compute.js"></script>\n' if compiled else ""
    note = "" if compiled else "Built without Emscripten: these are recorded results, for the values shown.\n\n"
    groups = {"1": "The model", "2": "Hardware and batch", "3": "Restrictions of the grid"}
    models = re.match(r"one of ([\w.|-]+)", options[0][4])[1].split("|")

    def field(name, label, value="", kind="text", help_text="", choices=()):
        if choices:
            control = "".join(f"<option{' selected' if c == value else ''}>{c}</option>" for c in choices)
            control = f'<select name="{name}">{control}</select>'
        else:
            more = ' min="1" max="64"' if kind in ("range", "number") else ""
            control = f'<input name="{name}" type="{kind}" value="{value}"{more}>'
        return f'<label title="{html.escape(help_text)}"><span>{label}</span>{control}</label>'

    def planner_field(name, kind, argument, meaning):
        choices = models if name == "model" else ["", *argument.split("|")] if "|" in argument else ()
        value = {"model": "8b", "gpus": "64"}.get(name, "1" if kind == "4" else "")
        return field(name, name, value, "checkbox" if kind == "4" else "text", meaning, choices)

    def page(name, title, text, fields, *default):
        form = f'<form class="play" id="{name}" autocomplete="off">{fields}</form>' if compiled else ""
        shown = html.escape(native(*default))
        write(f"play/{name}", f"---\nhide-toc: true\n---\n# {title}\n\n{text}\n\n{note}" + raw(
            f'{form}<div class="chart" aria-live="polite"></div><pre class="answer" tabindex="0">{shown}</pre>\n{script}'
            f'<script>document.addEventListener("DOMContentLoaded", () => playPage("{name}"))</script>'))

    kinds = ["afab", "1f1b", "interleaved", "zero-bubble", "zb-v", "dualpipe-v"]
    page("schedules", "Pipeline schedules", "[Chapter 06](../06_pipeline_parallel/index.md)'s schedules, drawn by its "
         "own schedule.c and simulation.c. Change a number, and see the bubble and what is in flight.",
         field("kind", "schedule", "1f1b", choices=kinds) + field("ranks", "ranks", 4, "range")
         + field("micro-batches", "micro-batches", 8, "range") + field("chunks", "model chunks", 1, "range")
         + field("times", "T_F, T_B, T_W, transfer", "1,1,1,0"), "schedule", "ranks=4")
    grid = {"tp": 2, "cp": 1, "pp": 2, "dp": 4, "ep": 1}
    explain = "tp=2,cp=1,pp=2,dp=4,ep=1,micro-batch=1,zero=1,recompute=none"
    page("memory", "Memory and time of a step", "What one rank stores, and what a step's time goes to, for a grid of "
         "ranks: [09](../09_combined/index.md)'s formulas, by which its program is checked to the byte, and for other "
         "models the playbook's. [The planner](planner.md) tries all grids.",
         field("model", "model", "1.3b", choices=models)
         + "".join(field(d, d, n, "range") for d, n in grid.items()) + field("micro-batch", "micro-batch", 1, "range")
         + field("zero", "ZeRO stage", "1", choices=["0", "1", "2", "3"])
         + field("recompute", "recompute", "none", choices=["none", "full"]) + field("seq", "sequence", ""),
         "plan", "model=1.3b", "gpus=16", f"explain={explain}")
    page("planner", "The planner", "Which grid of ranks for your model? [The planner](../tools/planner/index.md) "
         "computes memory and time of every grid. An empty field means the default; point at a name for its meaning.",
         "".join(f"<fieldset><legend>{title}</legend>" + "".join(planner_field(o[0], *o[2:]) for o in options if o[1] == g)
                 + "</fieldset>" for g, title in groups.items()), "plan", "model=8b", "gpus=64")

TRACES = {      # at most two seconds each, on simulated hardware
    "03": ("03_data_parallel", 4, "--layers 6 --hidden 64 --heads 4 --seq 32 --accumulate 1 --pretend 2,0.025,20"),
    "06": ("06_pipeline_parallel", 4, "--layers 8 --hidden 64 --heads 4 --seq 32 --accumulate 8 --pretend 0.5,0.5,20"),
    "09": ("09_combined", 8, "--tp 2 --cp 2 --pp 2 --layers 4 --hidden 64 --heads 8 --seq 64 --accumulate 4 "
           "--dtype fp32 --pretend 0.5,0.025,20")}

def timelines():
    body = ""
    (EXTRA / "traces").mkdir(parents=True)
    for number, (program, ranks, options) in TRACES.items():
        trace = EXTRA / "traces" / f"{number}.json"
        command = f"mpiexec -n {ranks} build/cpu/{program} --steps 1 --micro-batch 1 --threads 1 --quiet {options}"
        subprocess.run(f"{command} --trace {trace}", shell=True, cwd=ROOT, check=True, capture_output=True)
        (EXTRA / "traces" / f"{number}.js").write_text(f"trace({json.dumps(number)}, {trace.read_text()});\n")
        trace.unlink()
        body += f"## {program}\n\nOne step of `{program} {options}` on {ranks} ranks. " + \
            f'<a id="download-{number}" download="{program}.json">Download the trace</a> for ' \
            "[Perfetto](https://ui.perfetto.dev).\n\n" + raw(
                f'<div class="timeline" id="trace-{number}"></div><script src="../traces/{number}.js" defer></script>')
    write("play/timelines", "---\nhide-toc: true\n---\n# Timelines\n\nScroll or use + and - to zoom, drag or use the "
          f"arrow keys to move, and point at a span for its name and time.\n\n{body}")

# ---- all pages ----
def tree(title, docs, hidden=True):
    return f"```{{toctree}}\n:caption: {title}\n" + ":hidden:\n" * hidden + "\n".join([":maxdepth: 1", "", *docs]) + "\n```\n"

def chapter_tree(chapter):
    docs = [d for d in ("DIFF", "exercises") if f"{chapter}/{d}.md" in FILES]
    docs += ["train.c" if f"{chapter}/train.c" in FILES else "collectives.c"]
    docs += ["/tools/planner/index"] * (chapter == "09_combined") + ["ladder/index"] * (chapter == "08_fused_kernels")
    return "\n```{toctree}\n:hidden:\n\n" + "\n".join(docs) + "\n```\n"

for directory in (SOURCE, EXTRA):
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
for file in FILES:
    if file.endswith(".md") and not file.endswith("DIFF.md"):
        page_name = doc_of(file)
        page_text = linked((ROOT / file).read_text(), file, page_name)
        if page_name == "index":
            page_text += "\n" + tree("Chapters", [f"{c}/index" for c in CHAPTERS]) \
                + tree("To play with", [f"play/{p}" for p in PLAY]) \
                + tree("Reference", ["NOTATION", "common/index", "tools/index", "tools/workshop/index",
                                     "tools/simulator/index", "tests/bench/index", "tests/index", "CONTRIBUTING"])
        elif page_name.endswith("/index") and page_name.count("/") == 1 and page_name.split("/")[0] in CHAPTERS:
            page_text += chapter_tree(page_name.split("/")[0])
        elif page_name.startswith("tests/") and page_name not in ("tests/index", "tests/bench/index"):
            page_text = "---\norphan: true\n---\n" + page_text
        write(page_name, page_text)
for file in CODE:
    code_page(file)
for chapter_name in CHAPTERS:
    if f"{chapter_name}/DIFF.md" in FILES:
        diff_page(chapter_name)
play_pages()
timelines()

def bundle_theme(app, error):
    """Debian's Furo imports a module and a style by paths of a web server, which a page opened from a file cannot load."""
    static = Path(app.outdir) / "_static"
    script, style = static / "scripts/furo.js", static / "styles/furo.css"
    if error or "import Gumshoe" not in script.read_text():
        return
    module = (static / "scripts/gumshoe-patched.js").read_text()
    script.write_text(re.sub("export default Gumshoe;?", "", module) + re.sub("^import .*", "", script.read_text()))
    normalize = Path("/usr/share/javascript/normalize.css/normalize.css").read_text()
    style.write_text(re.sub("@import url.*?;", lambda _: normalize, style.read_text(), 1))

def setup(app):
    app.connect("build-finished", bundle_theme)
