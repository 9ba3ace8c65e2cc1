#include "runtime/distributed/wire.h"

#include <fmt/format.h>

#include <charconv>

#include "reprise/runtime/peer_error.h"

namespace reprise::runtime::internal::distributed {
namespace {

[[noreturn]] void refuse() {
  throw PeerError(
      "another rank says what this rank does not understand: start the same program with the same "
      "version of Reprise on all ranks");
}

// Returns the number that all of the text is.
template <class Number>
Number number_in(std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) refuse();
  return number;
}

}  // namespace

Packed& Packed::add(std::string_view text) {
  all_ += fmt::format("{} {}", text.size(), text);
  return *this;
}

Packed& Packed::add(int64_t number) { return add(std::to_string(number)); }

std::string Unpacked::text() {
  const size_t space = all_.find(' ', at_);
  if (space == std::string::npos) refuse();
  const auto length = number_in<size_t>(std::string_view(all_).substr(at_, space - at_));
  if (length > all_.size() - space - 1) refuse();
  at_ = space + 1 + length;
  return all_.substr(space + 1, length);
}

int64_t Unpacked::number() { return number_in<int64_t>(text()); }

}  // namespace reprise::runtime::internal::distributed
