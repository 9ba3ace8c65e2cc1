#!/usr/bin/env python3
"""Fails where the C++ reference (make docs) would not say what the public headers say.

- The scanner reads a header that has every kind of declaration, and finds what is written below.
- It refuses headers that it does not understand, and names the line.
- It understands every header in include/reprise.

Usage: docs_headers.py SOURCE_DIR
"""

import pathlib
import sys

HEADER = """\
// What the header is for.
//
//   an example;
#pragma once

#include <string>

namespace reprise {

namespace internal {
void hidden();
}

struct Later;

// A remark that belongs to nothing.

// A size.
struct Size {
  int64_t bytes = 0;  // in all,
                      // never negative
  // Above.
  std::vector<std::pair<int, int>> pairs{{1, 2}};
  Size (*make)(const Size&) = nullptr;  // null: none
  int a, b;

  bool operator==(const Size&) const = default;
};

enum class Kind { kOne, kTwo };
enum class Other {
  kFirst,  // the first
  kLast,
};

using Sizes = std::vector<Size>;  // many
inline constexpr const char* kName = "a;{name";

// Both.
Size grow(const Size& size, int64_t by = {});
Size grow(const Sizes& sizes);
Size shrink(const Size& size);  // smaller

template <class Unit>
class Box : public Base<Unit> {
 public:
  using Base<Unit>::Base;
  explicit Box(Unit unit) : unit_(unit), text_{"}"} { check(); }  // NOLINT: from a unit
  virtual ~Box() = default;
  const Unit& unit() const { return unit_; }
  friend Box operator+(Box a, Box b) { return a; }

 private:
  Unit unit_;  // hidden
};

namespace inner {
void deep();
}  // namespace inner

}  // namespace reprise
"""

# Each row is kind, name, code, comment above, comment behind, and whether the comment before is
# shared. Members stand below.
EXPECTED = [
    ("remark", "", "", "A remark that belongs to nothing.", "", False),
    ("record", "Size", "struct Size", "A size.", "", False),
    ("  variable", "bytes", "int64_t bytes = 0", "", "in all,|never negative", False),
    ("  variable", "pairs", "std::vector<std::pair<int, int>> pairs{{1, 2}}", "Above.", "", False),
    ("  variable", "make", "Size (*make)(const Size&) = nullptr", "", "null: none", True),
    ("  variable", "a, b", "int a, b", "", "", True),
    ("  function", "operator==", "bool operator==(const Size&) const = default", "", "", False),
    ("enum", "Kind", "enum class Kind", "", "", False),
    ("  enumerator", "kOne", "kOne", "", "", False),
    ("  enumerator", "kTwo", "kTwo", "", "", True),
    ("enum", "Other", "enum class Other", "", "", True),
    ("  enumerator", "kFirst", "kFirst", "", "the first", False),
    ("  enumerator", "kLast", "kLast", "", "", True),
    ("alias", "Sizes", "using Sizes = std::vector<Size>", "", "many", False),
    ("variable", "kName", 'inline constexpr const char* kName = "a;{name"', "", "", True),
    ("function", "grow", "Size grow(const Size& size, int64_t by = {})", "Both.", "", False),
    ("function", "grow", "Size grow(const Sizes& sizes)", "", "", True),
    ("function", "shrink", "Size shrink(const Size& size)", "", "smaller", True),
    ("record", "Box", "template <class Unit>\nclass Box : public Base<Unit>", "", "", False),
    ("  function", "Box", "explicit Box(Unit unit)", "", "from a unit", False),
    ("  function", "~Box", "virtual ~Box() = default", "", "", True),
    ("  function", "unit", "const Unit& unit() const", "", "", True),
    ("  function", "operator+", "friend Box operator+(Box a, Box b)", "", "", True),
    ("function", "deep", "void deep()", "", "", False),
]

REFUSED = {
    "namespace a {\n\nint b() {\n": 4,
    "struct A {};\n}\n": 2,
    "struct A {\n  int b;\n}\nint c;\n": 4,
    "struct {\n  int b;\n};\n": 1,
    "int a;\n+;\n": 2,
}


def rows(declarations, indent=""):
    for one in declarations:
        comment, trailing = "|".join(one.comment), "|".join(one.trailing).replace("| ", "|")
        yield (indent + one.kind, one.name, one.code, comment, trailing.strip(), one.joined)
        yield from rows(one.members, indent + "  ")


def check_sample(headers):
    header = headers.parse("a.h", HEADER)
    found = list(rows(header.declarations))
    for row in found + EXPECTED:
        if (row in found) != (row in EXPECTED) or found.count(row) != EXPECTED.count(row):
            yield f"{'found' if row in found else 'not found'}: {row}"
    if [row[:2] for row in found] != [row[:2] for row in EXPECTED]:
        yield "the declarations are in another order"
    if header.intro != ["What the header is for.", "", "  an example;"]:
        yield f"another introduction: {header.intro}"
    if header.declarations[-1].namespace != "reprise::inner":
        yield f"another namespace: {header.declarations[-1].namespace}"


def check_refusals(headers):
    for text, line in REFUSED.items():
        try:
            headers.parse("a.h", text)
            yield f"not refused: {text!r}"
        except headers.HeaderError as error:
            if f"include/a.h:{line}: " not in str(error):
                yield f"{text!r} is refused with '{error}', not in line {line}"


def check_headers(headers, folder):
    for path in sorted(folder.rglob("*.h")):
        try:
            header = headers.parse(
                path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8")
            )
        except headers.HeaderError as error:
            yield str(error)
            continue
        if not any(header.intro):
            yield f"include/{header.path}:1: a comment that says what the header is for is missing"


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    root = pathlib.Path(sys.argv[1])
    sys.path.insert(0, str(root / "scripts" / "docs"))
    sys.dont_write_bytecode = True
    import headers

    faults = [
        *check_sample(headers),
        *check_refusals(headers),
        *check_headers(headers, root / "include"),
    ]
    print("\n".join(faults) or "the reference can say what the headers say")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
