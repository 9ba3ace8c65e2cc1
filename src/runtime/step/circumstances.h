// These are the circumstances that a captured step holds for. Any other circumstances need another
// capture.
#pragma once

#include <string>
#include <vector>

#include "reprise/runtime/capture.h"
#include "runtime/state/autocast.h"
#include "runtime/step/recording.h"
#include "runtime/step/settings.h"

namespace reprise::runtime::internal::step {

class Circumstances {
 public:
  // Takes the circumstances as they are now.
  Circumstances(const Tensors& inputs, const CaptureOptions& options);

  // Says in words what differs from `now`. The text is empty if nothing does. Inputs may begin at
  // other offsets of the same alignment, as batches do that are parts of one tensor.
  std::string difference(const Circumstances& now) const;
  // Says whether `now` is the same, but for inputs that are smaller or as large in each dimension.
  bool covers(const Circumstances& now) const;
  // Says what differs in settings and watched values alone.
  std::string difference_of_values(const Circumstances& now) const;
  // Returns the names of the settings and of the watched values.
  std::vector<std::string> names() const;
  // Lets an input want a gradient or not, because the step does the same for both.
  void allow_flag(size_t input) { inputs_[input].any_flag = true; }

 private:
  struct Input {
    Geometry geometry;
    std::string device;
    bool defined = false, requires_grad = false;
    bool any_flag = false;  // whether `requires_grad` may differ
    size_t owner = 0;       // position of the first input with the same storage

    bool operator==(const Input&) const = default;
  };
  struct ModuleState {
    bool training = false;
    std::vector<const void*> tensors;  // parameters and buffers

    bool operator==(const ModuleState&) const = default;
  };
  struct Value {
    std::string name, text;

    bool operator==(const Value&) const = default;
  };

  static std::string text_of(const Input& input);
  std::string difference_of_input(size_t i, const Circumstances& now) const;

  std::vector<Input> inputs_;
  std::vector<ModuleState> modules_;
  state::AutocastState autocast_;
  bool grad_mode_;
  std::vector<Setting> settings_;
  std::vector<Value> watched_;
};

// Residents are the tensors that a step reads and that are not among its inputs: parameters,
// buffers, constants.
class Residents {
 public:
  explicit Residents(const Recording& recording);

  // Says in words which tensor has changed. The text is empty if none has. Their data may be other
  // data.
  std::string difference() const;

 private:
  struct Resident {
    at::Tensor tensor;
    Geometry geometry;
    bool requires_grad;
    at::Tensor owner;  // the external whose storage it shares
  };
  void add(const at::Tensor& tensor, const at::Tensor& owner);
  static bool is_as_it_was(const Resident& resident);

  std::vector<Resident> all_;
};

}  // namespace reprise::runtime::internal::step
