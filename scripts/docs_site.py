"""What mkdocs does not do by itself: the site has the files outside docs/ that documents link to.

The documents are written for the source tree, where such links work. For the site, every linked
file outside docs/ is added under project/: documents as pages, sources as text. The README is the
start page. Links to folders become those to their README.md. What leads nowhere stays, and --strict
reports it. Headings get the anchors of code hosts, which tests/docs_links.py checks.
"""

import os
import pathlib
import re

from mkdocs.structure.files import File

LINK = re.compile(r"(\[[^\]]*\]\()([^)\s#>]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)
START = "start.md"


def slug(text, separator):
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", separator)


def on_config(config):
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    return config


def on_files(files, config):
    root = pathlib.Path(config.config_file_path).parent
    waiting = [root / "README.md"]
    waiting += [pathlib.Path(file.abs_src_path) for file in files.documentation_pages()]
    seen = set(waiting)
    while waiting:
        source = waiting.pop()
        uri = site_uri(source, root)
        if source.suffix == ".md":
            for target in targets(source, root):
                if target not in seen:
                    seen.add(target)
                    waiting.append(target)
        if files.get_file_from_path(uri) is None:
            text = source.read_text(encoding="utf-8")
            file = File.generated(config, uri, content=text)
            file.edit_uri = None
            files.append(file)
    return files


def on_page_markdown(markdown, page, config, files):
    root = pathlib.Path(config.config_file_path).parent
    source = source_of(page.file, root)
    folder = os.path.dirname(page.file.src_uri)

    def rewritten(match):
        target = resolved(source, match.group(2), root)
        if target is None:
            return match.group(0)
        uri = os.path.relpath(site_uri(target, root), folder or ".")
        return f"{match.group(1)}{uri}{match.group(3) or ''})"

    parts = FENCE.split(markdown)  # the odd ones are code
    parts[::2] = [LINK.sub(rewritten, part) for part in parts[::2]]
    return "".join(parts)


def targets(source, root):
    """The files in the project that a document links to, outside its code."""
    prose = "".join(FENCE.split(source.read_text(encoding="utf-8"))[::2])
    found = (resolved(source, match.group(2), root) for match in LINK.finditer(prose))
    return [target for target in found if target is not None]


def resolved(source, link, root):
    """The file of the project that a link leads to; None for what is elsewhere, or not there."""
    if re.match(r"[a-z][a-z0-9+.-]*:", link):
        return None
    target = (source.parent / link).resolve()
    if target.is_dir():
        target /= "README.md"
    return target if target.is_file() and target.is_relative_to(root) else None


def site_uri(source, root):
    """Where the site has a file of the project."""
    path = source.relative_to(root)
    if path == pathlib.Path("README.md"):
        return START
    if path.parts[0] == "docs":
        return path.relative_to("docs").as_posix()
    return f"project/{path.as_posix()}" + ("" if path.suffix == ".md" else ".txt")


def source_of(file, root):
    """The other way round, for pages."""
    if file.src_uri == START:
        return root / "README.md"
    if file.src_uri.startswith("project/"):
        return root / file.src_uri.removeprefix("project/")
    return root / "docs" / file.src_uri
