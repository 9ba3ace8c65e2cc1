"""Adds what mkdocs does not do by itself.

Files outside docs/: the documents are written for the source tree, where links to such files work.
For the site, every linked file outside docs/ is added under project/: documents as pages, sources
as text. The README is the start page. A link to a folder becomes one to its README.md. A link that
leads nowhere stays, and --strict reports it. Headings get the anchors of code hosts, which
tests/docs_links.py checks.

The reference: pages made from the C++ headers exist in the site only. In documents,
<!-- reference: headers --> stands for the tables of headers, and <!-- reference: plan Plan --> for
the descriptions of these names of the Python package.
"""

import ast
import logging
import os
import pathlib
import re

import cpp_pages
import headers
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, InclusionLevel

LINK = re.compile(r"(\[[^\]]*\]\()([^)\s#>]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)
START = "start.md"
HEADERS = "<!-- reference: headers -->"
ANCHOR = re.compile(r' id="([^"]+)"')
HREF = re.compile(r'<a [^>]*href="([\w./-]*)#([^"]+)"')
NAMES = re.compile(r"<!-- reference: ([\w\s]+) -->")

log = logging.getLogger("mkdocs.hooks.site")
made = {}  # the Markdown of generated pages by their place in the site
tables = ""  # of all headers


def slug(text, separator):
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", separator)


def root_of(config):
    return pathlib.Path(config.config_file_path).parent


def on_config(config):
    global made, tables
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    try:
        made, tables = cpp_pages.pages(root_of(config))
    except headers.HeaderError as error:
        raise PluginError(str(error)) from error
    return config


def on_files(files, config):
    root = root_of(config)
    for uri, text in made.items():
        add(files, config, uri, text)
    waiting = [root / "README.md"]
    waiting += [source_of(file.src_uri, root) for file in files.documentation_pages()]
    seen = set(waiting)
    while waiting:
        source = waiting.pop()
        uri = site_uri(source, root)
        if source.suffix == ".md":
            text = made.get(uri) or source.read_text(encoding="utf-8")
            for target in targets(source, text, root):
                if target not in seen:
                    seen.add(target)
                    waiting.append(target)
        if files.get_file_from_path(uri) is None:
            file = add(files, config, uri, source.read_text(encoding="utf-8"))
            file.inclusion = InclusionLevel.NOT_IN_NAV  # the navigation may have it, and need not
    return files


def add(files, config, uri, text):
    file = File.generated(config, uri, content=text)
    file.edit_uri = None
    files.append(file)
    return file


def on_page_markdown(markdown, page, config, files):
    root = root_of(config)
    source = source_of(page.file.src_uri, root)
    folder = os.path.dirname(page.file.src_uri)

    def rewritten(match):
        target = resolved(source, match.group(2), root)
        if target is None:
            return match.group(0)
        uri = os.path.relpath(site_uri(target, root), folder or ".")
        return f"{match.group(1)}{uri}{match.group(3) or ''})"

    markdown = with_reference(markdown, root)
    parts = FENCE.split(markdown)  # the odd ones are code
    parts[::2] = [LINK.sub(rewritten, part) for part in parts[::2]]
    return "".join(parts)


def on_post_build(config):
    """Links inside signatures are HTML, which mkdocs does not check."""
    site = pathlib.Path(config.site_dir)
    names = {
        path: ANCHOR.findall(path.read_text(encoding="utf-8"))
        for path in site.glob("reference/**/*.html")
    }
    for path in names:
        for file, anchor in set(HREF.findall(path.read_text(encoding="utf-8"))):
            target = (path.parent / file).resolve() if file else path
            if target in names and anchor not in names[target]:
                log.warning("%s: %s has no place '%s'", path.relative_to(site), file, anchor)


def with_reference(markdown, root):
    """Fills in the tables of headers and the descriptions of names that the page asks for."""
    markdown = markdown.replace(HEADERS, tables)
    listed = [name for names in NAMES.findall(markdown) for name in names.split()]
    if not listed:
        return markdown
    places = python_names(root)
    for name, (_, public) in places.items():
        if public and name not in listed:
            log.warning("reprise.%s is on no page of the reference", name)
    for name in listed:
        if name not in places:
            log.warning("the reference lists reprise.%s, which does not exist", name)

    def descriptions(match):
        paths = (places[name][0] for name in match.group(1).split() if name in places)
        return "\n".join(f"::: {path}\n" for path in paths)

    return NAMES.sub(descriptions, markdown)


def python_names(root):
    """Returns by name the path in the package, and whether the package exports it."""
    package = root / "python" / "reprise"
    found = {}
    for file in sorted(package.glob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                found[node.name] = (f"reprise.{file.stem}.{node.name}", False)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                found[name] = (f"reprise.{file.stem}.{name}", False)
                if file.stem == "__init__" and name == "__all__":
                    exported = ast.literal_eval(node.value)
    found.update((name, (f"reprise.{name}", True)) for name in exported if name[0] != "_")
    return found


def targets(source, text, root):
    """Yields the files in the project that a document links to, outside its code."""
    prose = "".join(FENCE.split(text)[::2])
    found = (resolved(source, match.group(2), root) for match in LINK.finditer(prose))
    return [target for target in found if target is not None]


def resolved(source, link, root):
    """Returns the file of the project that a link leads to, or None if there is none."""
    if re.match(r"[a-z][a-z0-9+.-]*:", link):
        return None
    target = (source.parent / link).resolve()
    if target.is_dir():
        target /= "README.md"
    return target if target.is_file() and target.is_relative_to(root) else None


def site_uri(source, root):
    """Returns where the site has a file of the project."""
    path = source.relative_to(root)
    if path == pathlib.Path("README.md"):
        return START
    if path.parts[0] == "docs":
        return path.relative_to("docs").as_posix()
    return f"project/{path.as_posix()}" + ("" if path.suffix == ".md" else ".txt")


def source_of(uri, root):
    """Maps places in the site to files of the project, for pages."""
    if uri == START:
        return root / "README.md"
    if uri.startswith("project/"):
        return root / uri.removeprefix("project/")
    return root / "docs" / uri
