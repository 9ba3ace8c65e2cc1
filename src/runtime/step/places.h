// Which memory the tensors of a step lie in: values that the step makes, and what was there before it.
#pragma once

#include <c10/core/Storage.h>

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "runtime/step/audit.h"
#include "runtime/step/before_images.h"
#include "runtime/step/problems.h"
#include "runtime/step/recording.h"

namespace reprise::runtime::internal::step {

// Larger tensors that the host writes inside the step are taken for results of code that the capture
// cannot see, not for literals.
inline constexpr size_t kLargestLiteral = 16384;

// Fills the recording's values and externals. Storages are known by their address, which a weak reference keeps
// from being used again. What the step writes outside itself is kept in `images`.
class Places {
 public:
  // As record(): one of `learn` and `known` is there.
  Places(Recording& recording, const Tensors& inputs, BeforeImages& images, const Audit* learn,
         const Audit* known, Problems& problems);
  Places(const Places&) = delete;
  Places& operator=(const Places&) = delete;

  // A result that is seen for the first time is a new value, any other tensor an external.
  TensorRef refer(const at::Tensor& tensor, bool is_result, const Call& call);

  // The call has written the storage: a new version of a value (true), or an effect on an external.
  bool write(const c10::Storage& storage, Call& call);

  // Of an external, before the step writes it for the first time. `bytes()` are those that it had.
  template <class Bytes>
  void keep_image(const c10::Storage& storage, Bytes&& bytes) {
    const External* external = external_at(storage);
    if (external == nullptr || !external->tensor.defined() || images_.has(external->tensor)) return;
    images_.keep(external->tensor, bytes());
  }

  // The tensor is a leaf. The caller's input that it is; -1: none.
  int32_t note_leaf(const at::Tensor& tensor);
  // Autograd saves through functions of the caller's, which no operation shows.
  void note_saved_by_hooks() { saved_by_hooks_ = true; }

  bool made_in_step(const c10::Storage& storage) const;
  uint64_t& last_hash(const c10::Storage& storage);  // after the last call that touched it

 private:
  struct InputExtent {
    int32_t owner;       // the first input on this storage
    int64_t begin, end;  // bytes in it
  };
  struct Tracked {
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> alive;  // not the memory
    TensorRef place;                                                 // without geometry
    size_t bytes = 0;
    uint64_t hash = 0;
  };

  External* external_at(const c10::Storage& storage);
  void write_external(Call& call, int32_t index);
  void require_within_input(const TensorRef& ref, const Call& call);
  bool is_literal(const Tracked& tracked) const;
  int32_t add_value(const c10::Storage& storage, int32_t previous);
  int32_t add(External external);
  int32_t add_literal(const at::Tensor& tensor, const Call& call);
  int32_t add_external(const at::Tensor& tensor, const Call& call);

  Recording& recording_;
  BeforeImages& images_;
  const Audit* learn_;
  const Audit* known_;
  Problems& problems_;
  const uint64_t first_serial_;                       // of the allocator, when the run began
  std::unordered_map<const void*, Tracked> tracked_;  // by storage
  std::unordered_map<const void*, int32_t> inputs_, input_tensors_;
  std::vector<InputExtent> extents_;
  bool saved_by_hooks_ = false;
};

}  // namespace reprise::runtime::internal::step
