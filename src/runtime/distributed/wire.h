// The one encoding of what ranks tell each other: texts and whole numbers, one behind the other. The
// length stands before each, so that a text may hold any bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace reprise::runtime::internal::distributed {

class Packed {
 public:
  Packed& add(std::string_view text);
  Packed& add(int64_t number);
  // Returns all of it, and is empty afterwards.
  std::string take() { return std::exchange(all_, {}); }

 private:
  std::string all_;
};

// Takes apart what a Packed has put together, in the same order. Throws PeerError if the text is
// from another version of this library.
class Unpacked {
 public:
  explicit Unpacked(std::string all) : all_(std::move(all)) {}
  bool done() const { return at_ == all_.size(); }
  std::string text();
  int64_t number();

 private:
  std::string all_;
  size_t at_ = 0;
};

}  // namespace reprise::runtime::internal::distributed
