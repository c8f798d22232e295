"""Makes the documentation site from the Markdown files of the repository, which stay readable where they are.

READMEs, the changelog and the pages of the API and the command line become pages of the site, and so does the
report of the demo, which is made from its figures (see readme.py). Links between files of the repository
become links between pages; files that are not part of the site are named, not linked.
"""

import importlib
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from ziplm.results.report_page import render
from ziplm.results.run_data import read_runs

ROOT = Path(__file__).parents[1]
PACKAGES = ("obs-structured", "latency-profiler", "spdy-search", "token-distill", "ziplm")
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    **{f"packages/{name}/README.md": f"packages/{name}.md" for name in PACKAGES},
}
"""Pages of the site that are files outside of docs/, by their path in the repository."""

MADE = {"docs-site/demo": "demo.html"}
"""Other files of the site that are made from something in the repository."""

CLI = """# Command line

::: mkdocs-click
    :module: ziplm.cli
    :command: main
    :prog_name: ziplm
    :depth: 1
    :list_subcommands: True
    :style: table
"""
API_MEMBER = """::: {}.{}
    options:
      show_root_heading: true
      show_root_toc_entry: true
      show_root_full_path: false
      heading_level: 2
"""
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
FENCE = re.compile(r"(^(?:```|~~~).*?^(?:```|~~~)[^\n]*$|`[^`\n]+`(?!\]))", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not in docs/."""
    made = {page: (ROOT / source).read_text(encoding="utf-8") for source, page in PAGES.items()}
    made |= {f"api/{name}.md": api_page(name) for name in PACKAGES}
    made["cli.md"] = CLI
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    style = (ROOT / "docs-site" / "site.css").read_text(encoding="utf-8")
    files.append(File.generated(config, "site.css", content=style))
    for source, page in MADE.items():
        files.append(File.generated(config, page, content=render(read_runs([ROOT / source]))))
    return files


def api_page(package: str) -> str:
    """Return the page that mkdocstrings fills with the docstrings of a package: errors come last."""
    name = package.replace("-", "_")
    module = importlib.import_module(name)
    members = sorted(module.__all__, key=lambda each: place_of(getattr(module, each)))
    parts = [
        f"::: {name}\n    options:\n      members: false\n",
        *(API_MEMBER.format(name, each) for each in members),
    ]
    return f"# {package}: API\n\n" + "\n".join(parts)


def place_of(member: Any) -> int:
    """Return where a member stands on the page of its package: functions, then classes, then errors."""
    if not isinstance(member, type):
        return 0
    return 2 if issubclass(member, Exception) else 1


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    place = page.file.src_uri
    source = {site: repository for repository, site in PAGES.items()}.get(place, f"docs/{place}")
    parts = FENCE.split(markdown)  # code is left alone
    parts[::2] = [LINK.sub(lambda match: link(match, source, place), part) for part in parts[::2]]
    return "".join(parts)


def on_page_content(html: str, **_: Any) -> str:
    """Leave out defaults that are not set, which mkdocs-click names by click's internal value for them."""
    return html.replace("<code>Sentinel.UNSET</code>", "")


def link(match: re.Match[str], source: str, place: str) -> str:
    """Return a link of the site for one of the repository.

    Args:
        match: the link.
        source: path of its file in the repository.
        place: path of its page in the site.
    """
    image, text, target, anchor = match.groups(default="")
    if not target or ":" in target:
        return match.group()
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if not (ROOT / wanted).exists():
        raise FileNotFoundError(f"{source} links to {target}, which does not exist")
    found = PAGES.get(wanted) or PAGES.get(f"{wanted}/README.md") or MADE.get(wanted)
    if found is None and wanted.startswith("docs/"):
        found = wanted.removeprefix("docs/")
    if found is None:
        return text
    return f"{image}[{text}]({posixpath.relpath(found, posixpath.dirname(place) or '.')}{anchor})"
