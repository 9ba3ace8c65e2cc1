#include "report/moves.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "report/table.h"
#include "reprise/report/text.h"

namespace reprise::report {

std::string devices_table(const Explanation& explanation) {
  const int64_t time = explanation.timeline.time.count();
  Table table;
  table.column("device", Align::kLeft)
      .column("runs", Align::kRight)
      .column("busy", Align::kRight)
      .column("of the step", Align::kRight)
      .column("peak", Align::kRight);
  for (const DeviceUse& use : explanation.devices) {
    table.row({printable(use.name), std::to_string(use.runs), format_duration(use.busy),
               share(use.busy.count(), time), format_bytes(use.peak)});
  }
  return table.text();
}

std::string hidden_share(const ChannelUse& use) {
  return share((use.busy - std::min(use.busy, use.waited)).count(), use.busy.count());
}

std::string channels_table(const Explanation& explanation) {
  const int64_t time = explanation.timeline.time.count();
  Table table;
  table.column("channel", Align::kLeft)
      .column("copies", Align::kRight)
      .column("bytes", Align::kRight)
      .column("busy", Align::kRight)
      .column("of the step", Align::kRight)
      .column("runs wait", Align::kRight)
      .column("hidden", Align::kRight);
  for (const ChannelUse& use : explanation.channels) {
    table.row({printable(use.from + " -> " + use.to), std::to_string(use.copies),
               format_bytes(use.bytes), format_duration(use.busy), share(use.busy.count(), time),
               format_duration(use.waited), hidden_share(use)});
  }
  return table.text();
}

std::string moved_table(const Explanation& explanation, size_t rows) {
  Table table;
  table.column("value", Align::kLeft)
      .column("waits in", Align::kLeft)
      .column("bytes", Align::kRight)
      .column("copies", Align::kRight)
      .column("runs wait", Align::kRight);
  const std::vector<Moved>& all = explanation.moved;
  const size_t shown = all.size() <= rows + 1 ? all.size() : rows;
  for (size_t i = 0; i < shown; ++i) {
    table.row({printable(all[i].value), printable(all[i].memory), format_bytes(all[i].bytes),
               std::to_string(all[i].copies), format_duration(all[i].waited)});
  }
  if (shown < all.size()) {
    Bytes bytes;
    Nanos waited;
    for (size_t i = shown; i < all.size(); ++i) {
      bytes += all[i].bytes;
      waited += all[i].waited;
    }
    table.row({fmt::format("{} others", all.size() - shown), "", format_bytes(bytes), "",
               format_duration(waited)});
  }
  return table.text();
}

}  // namespace reprise::report
