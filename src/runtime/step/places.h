// This is the memory that the tensors of a step lie in: values that the step makes, and externals
// that were there before it.
#pragma once

#include <c10/core/Storage.h>

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "runtime/step/audit.h"
#include "runtime/step/before_images.h"
#include "runtime/step/fingerprint.h"
#include "runtime/step/problems.h"
#include "runtime/step/recording.h"
#include "runtime/step/surroundings.h"

namespace reprise::runtime::internal::step {

// A tensor that the host writes inside the step is a literal up to this many bytes. A larger one is
// taken for the result of code that the capture cannot see.
inline constexpr size_t kLargestLiteral = 16384;
// Each byte of memory that nobody has written yet, where writes of the host are looked for.
inline constexpr int kUnwritten = 0xA5;

// Returns an external with the tensor's bytes as they are now. On the CPU it lies in memory that no
// budget counts, because the step itself has this memory only for a moment.
External literal_of(const at::Tensor& tensor);

// Places fill the recording's values and externals. They know storages by their address; a weak
// reference keeps the address from being used again. They keep in `images` what the step writes
// outside itself.
class Places {
 public:
  // The arguments are those of record().
  Places(Recording& recording, const Tensors& inputs, BeforeImages& images, const Audit* known,
         const Surroundings* surroundings, Problems& problems);
  Places(const Places&) = delete;
  Places& operator=(const Places&) = delete;

  // Returns a reference to the tensor's memory. Memory that is seen for the first time is a new
  // value if the tensor is a result, else an external.
  TensorRef refer(const at::Tensor& tensor, bool is_result, const Call& call);

  // Notes that the call has written the storage. Returns true if that makes a new version of a
  // value, and false if it is an effect on an external.
  bool write(const c10::Storage& storage, Call& call);

  // Keeps the image of an external that the step writes for the first time. `bytes()` returns the
  // bytes that it had.
  template <class Bytes>
  void keep_image(const c10::Storage& storage, Bytes&& bytes) {
    const External* external = external_at(storage);
    if (external == nullptr || !external->tensor.defined() || images_.has(external->tensor)) return;
    if (is_stand_in(storage)) return;
    images_.keep(external->tensor, bytes());
  }

  // Notes that the tensor is a leaf. Returns its position among the caller's inputs, or -1.
  int32_t note_leaf(const at::Tensor& tensor);
  // Notes that the step reads a tensor that wants no gradient. A result that the step makes of an
  // input has no history then, even if the input wants a gradient later.
  void note_read_without_gradient(const at::Tensor& tensor);
  // Notes that autograd saves tensors through functions of the caller, which no operation shows.
  void note_saved_by_hooks() { saved_by_hooks_ = true; }

  bool made_in_step(const c10::Storage& storage) const;

  // Notes where a storage lies that was met before.
  void note(const c10::Storage& storage, const TensorRef& place);
  // Notes a tensor that the program has made by itself: it is as memory from before the step.
  void add_host_data(const at::Tensor& tensor);

  // The function has returned. Adds the values that somebody else holds to the outputs of the
  // recording, each as the bytes of its storage.
  void add_kept();

  // These functions know the bytes of storages by their fingerprints. note_bytes() takes the
  // fingerprint of memory that has none yet.
  void note_bytes(const c10::Storage& storage);
  // Says whether bytes of this extent are other ones than when they were last looked at.
  bool changed(const c10::Storage& storage, const Extent& extent);
  // Looks for bytes of an operand that the host has written since the last call. If there are any,
  // the memory is a literal from now on. Refuses the call if there are too many.
  void find_literal(const at::Tensor& operand, const Call& call);

 private:
  struct InputExtent {
    int32_t owner;       // position of the first input with this storage
    int64_t begin, end;  // bytes from the start of the storage
  };
  struct Tracked {
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> alive;  // keeps the address
    TensorRef place;                                                 // the geometry is not set
    size_t bytes = 0;
    std::optional<Fingerprint> print;  // of the bytes when they were last looked at
    int64_t made = 0;                  // Surroundings::made_again() at that time
  };

  External* external_at(const c10::Storage& storage);
  bool is_stand_in(const c10::Storage& storage) const {
    return surroundings_ != nullptr && surroundings_->is_stand_in(storage);
  }
  // Returns the fingerprint from when the bytes were last looked at. Returns null if there was no
  // fingerprint, and takes it now, or if the bytes are absent.
  Fingerprint* comparable_print(Tracked& tracked, const c10::Storage& storage);
  void write_external(Call& call, int32_t index);
  void require_within_input(const TensorRef& ref, const Call& call);
  int32_t add_value(const c10::Storage& storage, int32_t previous);
  int32_t add(External external);
  int32_t add_literal(const at::Tensor& tensor, const Call& call);
  int32_t add_external(const at::Tensor& tensor, const Call& call);

  Recording& recording_;
  BeforeImages& images_;
  const Audit* known_;
  const Surroundings* surroundings_;
  Problems& problems_;
  const uint64_t first_serial_;                       // the allocator's, at the begin of the run
  std::unordered_map<const void*, Tracked> tracked_;  // by storage
  std::unordered_map<const void*, int32_t> inputs_, input_tensors_;
  std::vector<InputExtent> extents_;
  bool saved_by_hooks_ = false;
};

}  // namespace reprise::runtime::internal::step
