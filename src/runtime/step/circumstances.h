// What a captured step holds for: anything else needs another capture.
#pragma once

#include <string>
#include <vector>

#include "runtime/state/autocast.h"
#include "runtime/step/recording.h"
#include "reprise/runtime/capture.h"

namespace reprise::runtime::internal::step {

class Circumstances {
 public:
  // As they are now.
  Circumstances(const Tensors& inputs, const CaptureOptions& options);

  // What is not as `now`, in words; empty when nothing is. Inputs may begin at other offsets of the same
  // alignment (batches that are parts of one tensor).
  std::string difference(const Circumstances& now) const;

 private:
  struct Input {
    Geometry geometry;
    std::string device;
    bool defined = false, requires_grad = false;
    size_t owner = 0;  // the first input with the same storage

    bool operator==(const Input&) const = default;
  };
  struct ModuleState {
    bool training = false;
    std::vector<const void*> tensors;  // parameters and buffers

    bool operator==(const ModuleState&) const = default;
  };

  // What ATen and oneDNN choose their algorithms by, and so the order of their sums.
  struct Kernels {
    int threads = 1;  // within an operation
    bool onednn = true, nnpack = true;

    bool operator==(const Kernels&) const = default;
  };

  static Kernels kernels_now();
  static std::string text_of(const Input& input);
  std::string difference_of_input(size_t i, const Circumstances& now) const;

  std::vector<Input> inputs_;
  std::vector<ModuleState> modules_;
  state::AutocastState autocast_;
  bool grad_mode_;
  Kernels kernels_;
};

// The tensors that a step reads and nobody hands to it: parameters, buffers, constants.
class Residents {
 public:
  explicit Residents(const Recording& recording);

  // Which one is not what it was, in words; empty when all are. Their data may be other.
  std::string difference() const;

 private:
  struct Resident {
    at::Tensor tensor;
    Geometry geometry;
    bool requires_grad;
    at::Tensor owner;  // whose storage it shares
  };
  void add(const at::Tensor& tensor, const at::Tensor& owner);
  static bool is_as_it_was(const Resident& resident);

  std::vector<Resident> all_;
};

}  // namespace reprise::runtime::internal::step
