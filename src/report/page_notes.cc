// This file has the parts of the page that the caller writes.
#include <fmt/format.h>

#include "report/html_table.h"
#include "report/markup.h"
#include "report/page.h"

namespace reprise::report {

std::string notes_section(const Facts& facts) {
  constexpr size_t kLongest = 2000;  // characters of a text
  std::string page;
  for (const ReportNotes& notes : facts.input.notes) {
    HtmlTable table("");
    table.column("", Align::kLeft).column("", Align::kLeft);
    for (const auto& [name, text] : notes.rows) {
      table.row({escaped(shortened(name, 100)), escaped(shortened(text, kLongest))});
    }
    page += fmt::format("<section class=\"notes\">\n<h2>{}</h2>\n<p>{}</p>\n{}</section>\n",
                        escaped(notes.title), escaped(notes.about), table.take());
  }
  return page;
}

}  // namespace reprise::report
