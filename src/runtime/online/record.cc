#include "runtime/online/record.h"

#include <utility>

#include "runtime/step/tensors.h"

namespace reprise::runtime::internal::online {
namespace {

// Lets go of calls one after the other. A call that dies inside the destructor of another one would
// need stack for each call of a long step.
void let_go(CallPtr call) {
  thread_local std::vector<CallPtr>* waiting = nullptr;
  if (!call) return;
  if (waiting != nullptr) {
    waiting->push_back(std::move(call));
    return;
  }
  std::vector<CallPtr> calls;
  waiting = &calls;
  calls.push_back(std::move(call));
  while (!calls.empty()) {
    const CallPtr last = std::move(calls.back());
    calls.pop_back();
  }
  waiting = nullptr;
}

}  // namespace

Value::Value(const c10::Storage& storage)
    : home(storage.getWeakStorageImpl()),
      address(storage.unsafeGetStorageImpl()),
      bytes(static_cast<int64_t>(storage.nbytes())),
      device(storage.device()) {}

Value::~Value() {
  let_go(std::move(maker));
  let_go(std::move(blank_call));
}

View view_of(const at::Tensor& tensor) {
  View view;
  view.shape.set_sizes(tensor.sizes());
  view.shape.set_strides(tensor.strides());
  view.offset = tensor.storage_offset();
  view.dtype = tensor.scalar_type();
  view.wrapped_number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  view.conjugate = tensor.is_conj();
  view.negative = tensor.is_neg();
  return view;
}

at::Tensor tensor_on(c10::Storage storage, const View& view) {
  return step::tensor_on(std::move(storage), {.sizes = view.shape.sizes_arrayref().vec(),
                                              .strides = view.shape.strides_arrayref().vec(),
                                              .offset = view.offset,
                                              .dtype = view.dtype,
                                              .wrapped_number = view.wrapped_number,
                                              .conjugate = view.conjugate,
                                              .negative = view.negative});
}

void add_reader(Value& value, const CallPtr& call) {
  value.readers.push_back(call);
  if (value.readers.size() < value.sweep_readers_at) return;
  std::erase_if(value.readers, [](const auto& reader) { return reader.expired(); });
  value.sweep_readers_at = 32 + 2 * value.readers.size();
}

}  // namespace reprise::runtime::internal::online
