// A Pattern helps a row of the registry to look for calls that belong together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/rewrite/alternative.h"

namespace reprise::runtime::internal::rewrite {

class Pattern {
 public:
  explicit Pattern(const Rewriter& rewriter)
      : rewriter_(rewriter), recording_(rewriter.recording()) {}

  const step::Recording& recording() const { return recording_; }
  const step::Call& call(int32_t c) const { return recording_.calls[c]; }
  const std::string& name(int32_t c) const { return call(c).op.operator_name().name; }
  // Returns the argument of this name of call c, which must have one.
  const step::TensorRef& argument(int32_t c, const char* which) const {
    return argument_of(call(c), which)->tensors[0];
  }
  const c10::IValue& constant(int32_t c, const char* which) const {
    return argument_of(call(c), which)->constant;
  }

  const step::StepValue& value(const step::TensorRef& ref) const {
    return recording_.values[ref.index];
  }
  const std::vector<int32_t>& readers(const step::TensorRef& ref) const {
    return rewriter_.readers(ref.index);
  }
  bool is_result(const step::TensorRef& ref) const { return rewriter_.is_result(ref.index); }

  // Returns the call that makes the value in memory of its own; -1 if there is none.
  int32_t maker(const step::TensorRef& ref) const {
    if (ref.memory != step::Memory::kValue) return -1;
    return value(ref).previous < 0 ? value(ref).maker : -1;
  }
  // Returns the same call, if its name is `wanted`; else -1.
  int32_t maker(const step::TensorRef& ref, const char* wanted) const {
    const int32_t c = maker(ref);
    return c >= 0 && name(c) == wanted ? c : -1;
  }

  bool only_read_by(const step::TensorRef& ref, const std::vector<int32_t>& calls) const {
    return readers(ref) == calls && !is_result(ref);
  }
  // Says so of a log-soft-max that a loss, its backward and that of the soft-max read. The backward of the
  // loss asks for the shape alone, which counts as a read on devices.
  bool only_for_loss(const step::TensorRef& log, int32_t loss, int32_t backward,
                     int32_t softmax_backward) const {
    return only_read_by(log, {loss, softmax_backward}) ||
           only_read_by(log, {loss, backward, softmax_backward});
  }

 private:
  const Rewriter& rewriter_;
  const step::Recording& recording_;
};

}  // namespace reprise::runtime::internal::rewrite
