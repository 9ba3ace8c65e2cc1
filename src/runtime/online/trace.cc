#include "runtime/online/trace.h"

namespace reprise::runtime::internal::online {

Trace Trace::first(size_t count) const {
  Trace part;
  if (count == 0) return part;
  const auto some = static_cast<std::ptrdiff_t>(count);
  part.prints.assign(prints.begin(), prints.begin() + some);
  part.calls.assign(calls.begin(), calls.begin() + some);
  const TracedCall& last = part.calls.back();
  part.values_of_calls.assign(values_of_calls.begin(), values_of_calls.begin() + last.end);
  part.values.assign(values.begin(), values.begin() + last.values);
  for (const Hold& hold : holds) {
    if (hold.call < some) part.holds.push_back(hold);
  }
  for (TracedValue& value : part.values) {
    value.at_the_end = false;
    if (value.anchored > some) value.anchored = -1;
    if (value.gone > some) value.gone = -1;
  }
  return part;
}

}  // namespace reprise::runtime::internal::online
