"""What the scripts share that check sources and documents: a tree of files that breaks every rule once, and main()."""

import pathlib
import sys
import tempfile


def write(root, tree):
    """Writes files, given by name and text."""
    for name, text in tree.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")


def differences(check, tree, wrong):
    """Checks a tree of files. Returns where it does not find exactly the lines that are wrong, FILE:LINE."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        write(root, tree)
        found = {":".join(fault.split(":")[:2]) for fault in check(root)}
    return [f"{line}: {'not found' if line in wrong else 'found, but nothing is wrong there'}"
            for line in sorted(found ^ wrong)]


def report(faults, fine):
    """Prints the faults, or that all is fine, and returns the exit code."""
    print("\n".join(faults) or fine)
    return 1 if faults else 0


def main(doc, check, self_test, fine):
    """Runs `SCRIPT ROOT` or `SCRIPT --self-test`. Both functions return faults. Returns the exit code."""
    arguments = sys.argv[1:]
    if arguments == ["--self-test"]:
        return report(self_test(), "the self-test found every fault")
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(doc, file=sys.stderr)
        return 2
    return report(check(pathlib.Path(arguments[0]).resolve()), fine)
