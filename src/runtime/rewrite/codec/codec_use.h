// A CodecUse is shared by the two works of a value that waits for the backward in few bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reprise/runtime/approximate.h"
#include "runtime/codec/host_codec.h"

namespace reprise::runtime::internal::rewrite {

struct CodecUse {
  std::string alternative;
  codec::GroupCodec codec;
  int64_t plain_bytes = 0, kept_bytes = 0;
  int32_t encode = -1, decode = -1;  // positions in Works::all

  CodecCheck check = CodecCheck::kNone;  // of the next run
  codec::Stated stated = {};             // by the last run of `encode`
  std::optional<double> error = {};  // found by the runs of `decode` since then, if they compared
  // The value as it was encoded, if something is checked. No allocator that is counted has it.
  std::vector<std::byte> copy = {};
};

}  // namespace reprise::runtime::internal::rewrite
