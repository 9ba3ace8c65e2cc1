#include "runtime/graph/stand_ins.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Allocator.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "runtime/arena/block_pool.h"
#include "runtime/device/compat.h"
#include "runtime/device/parallel.h"
#include "runtime/graph/words.h"
#include "runtime/lockstep/shells.h"
#include "runtime/online/session.h"
#include "runtime/step/operators.h"
#include "runtime/step/places.h"

namespace reprise::runtime::internal::graph {

using step::for_each_tensor;

namespace {

constexpr int64_t kPiece = 65536;   // bytes of different numbers; then they come again
constexpr size_t kSweepEach = 256;  // operations
constexpr const char* kNoBytes =
    "this tensor has no bytes, because a capture within a budget computes no values";

// Returns a piece of numbers of the type, which are the same in each call.
template <class T>
HostBytes numbers() {
  HostBytes bytes(kPiece);
  uint32_t state = 1;
  for (size_t at = 0; at < bytes.size(); at += sizeof(T)) {
    state = state * 1664525U + 1013904223U;  // Numerical Recipes, 2nd edition, section 7.1
    const T number(static_cast<float>((state >> 8) + 1) / 16777218.0F);
    std::memcpy(bytes.data() + at, &number, sizeof(T));
  }
  return bytes;
}

const HostBytes& piece_of(at::ScalarType dtype) {
  static const HostBytes zeros(kPiece, 0);
  static const HostBytes of_float = numbers<float>(), of_double = numbers<double>();
  static const HostBytes of_half = numbers<c10::Half>(), of_bfloat16 = numbers<c10::BFloat16>();
  switch (c10::toRealValueType(dtype)) {
    case at::kFloat:
      return of_float;
    case at::kDouble:
      return of_double;
    case at::kHalf:
      return of_half;
    case at::kBFloat16:
      return of_bfloat16;
    default:
      return zeros;
  }
}

void fill_on_host(char* data, int64_t bytes, const HostBytes& piece) {
  const auto fill = [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end;) {
      const int64_t from = at % kPiece, count = std::min(kPiece - from, end - at);
      std::memcpy(data + at, piece.data() + from, static_cast<size_t>(count));
      at += count;
    }
  };
  constexpr int64_t kGrain = int64_t{1} << 20;  // bytes for each thread
  if (bytes < 2 * kGrain) return fill(0, bytes);
  device::parallel_ranges(bytes, kGrain, fill);
}

// The bytes double on the device, so that few of them come from the host.
void fill_on_device(const c10::Storage& storage, const HostBytes& piece) {
  const at::NoGradGuard no_grad;
  const auto part = [&](int64_t begin, int64_t count) {
    return tensor_on(storage,
                     {.sizes = {count}, .strides = {1}, .offset = begin, .dtype = at::kChar});
  };
  const auto bytes = static_cast<int64_t>(storage.nbytes());
  int64_t done = std::min(bytes, kPiece);
  part(0, done).copy_(at::from_blob(const_cast<char*>(piece.data()), {done},
                                    at::TensorOptions(at::kChar)));
  for (; done < bytes; done *= 2) {
    const int64_t count = std::min(done, bytes - done);
    part(done, count).copy_(part(0, count));
  }
}

bool has_memory(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() && tensor.layout() == at::kStrided &&
         !tensor.key_set().has(c10::DispatchKey::Python);
}

// Says whether the operator gives the host what the tensor holds, or has a result whose size depends
// on that.
bool needs_numbers(const c10::OperatorHandle& op, const at::Tensor& tensor, size_t argument) {
  if (step::reads_on_host(op) || step::copies_for_host(op)) return true;
  if (op.operator_name().name == "aten::index") {
    const at::ScalarType type = tensor.scalar_type();  // A mask selects, and numbers do not.
    return argument == 1 && (type == at::kBool || type == at::kByte);
  }
  return step::sizes_by_count(op);
}

}  // namespace

c10::Storage stand_in(int64_t bytes, at::ScalarType dtype, c10::Device device) {
  c10::Allocator* const allocator = c10::GetAllocator(device.type());
  c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes),
                       allocator->allocate(static_cast<size_t>(bytes)), allocator,
                       /*resizable=*/true);
  if (bytes == 0) return storage;
  if (device.is_cpu()) {
    fill_on_host(static_cast<char*>(storage.mutable_data()), bytes, piece_of(dtype));
  } else {
    fill_on_device(storage, piece_of(dtype));
  }
  return storage;
}

StandIns::StandIns(const Budget& budget, c10::Device device)
    : budget_((online::require_bytes(budget, "a capture"), budget.resolve(Bytes(0)).count())),
      device_(device) {}

void StandIns::run(c10::function_ref<void()> body) {
  const bool host = device_.is_cpu();
  const device::RoomMakerScope room(*this);
  failure_ = nullptr;
  begun_ = cpu_allocation_serial();
  operation_.clear();
  sweep();
  if (!host) reset_peak(device_);
  const int64_t live = memory_count(device_).live;
  if (live > budget_) {
    refused_ = true;
    throw BudgetError(fmt::format("the budget of {} bytes is exceeded before the step begins: {} "
                                  "bytes are live",
                                  budget_, live),
                      budget_, live, 0);
  }
  const BlockSourceScope pool(
      std::make_shared<arena::BlockPool>(host ? std::optional(budget_ - live) : std::nullopt));
  try {
    body();
  } catch (...) {
    if (!failure_) throw;
  }
  if (failure_) std::rethrow_exception(failure_);
}

std::string StandIns::make_room(int64_t) {
  refused_ = true;
  return operation_.empty() ? "" : "the last operation that began is " + operation_;
}

void StandIns::require_budget(int64_t more) {
  if (device::has_limits(device_)) return;
  const MemoryCount count = memory_count(device_);
  if (std::max(count.live + more, count.peak) <= budget_) return;
  refused_ = true;
  throw BudgetError(fmt::format("the budget of {} bytes is exceeded: {} bytes are live, {} were, "
                                "and {} more were requested; the last operation that began is {}",
                                budget_, count.live, count.peak, more, operation_),
                    budget_, count.live, more);
}

bool StandIns::is_present(const c10::Storage& storage) const {
  const Value* value = find(storage);
  return value == nullptr || value->present;
}

int64_t StandIns::made_again(const c10::Storage& storage) const {
  const Value* value = find(storage);
  return value == nullptr ? 0 : value->fills;
}

bool StandIns::is_stand_in(const c10::Storage& storage) const { return find(storage) != nullptr; }

void StandIns::take(const at::Tensor& tensor) {
  if (!has_memory(tensor) || tensor.storage().nbytes() == 0) return;
  drop(note(tensor.storage()), tensor.storage());
}

std::vector<c10::Storage> StandIns::lend(const c10::OperatorHandle& op,
                                         c10::ArrayRef<c10::IValue> arguments) {
  std::vector<c10::Storage> operands;
  if (failure_) return operands;  // The kernel throws at what has no bytes.
  if (++calls_ % kSweepEach == 0) sweep();
  operation_ = op.operator_name().name;
  const auto constants = [&](size_t a) { return a < arguments.size() ? &arguments[a] : nullptr; };
  const auto each = [&](auto&& visit) {
    for (size_t a = 0; a < arguments.size(); ++a) {
      for_each_tensor(arguments[a], [&](const at::Tensor& tensor) {
        if (has_memory(tensor)) visit(a, tensor);
      });
    }
  };
  try {
    std::vector<std::pair<Value*, c10::Storage>> of_shape_only;
    each([&](size_t a, const at::Tensor& tensor) {
      const c10::Storage& storage = tensor.storage();
      operands.push_back(storage);
      Value* const value = find(storage);
      if (value == nullptr) return;
      if (needs_numbers(op, tensor, a) && !value->stays) {
        throw InputError(fmt::format(
            "the step depends on a number that it has computed ({} reads it), and a capture "
            "within a budget computes none: leave the budget of the capture out, and give it to "
            "plan()",
            operation_));
      }
      ++value->users;
      if (device_.is_cpu() && step::reads_shape_only(op, constants, a)) {
        of_shape_only.emplace_back(value, storage);
      } else {
        give_bytes(*value, storage, tensor.scalar_type());
      }
    });
    for (const auto& [value, storage] : of_shape_only) {
      if (!value->present) give_address(storage);
    }
  } catch (...) {
    failure_ = std::current_exception();
    throw;
  }
  return operands;
}

void StandIns::take_back(const c10::OperatorHandle& op, const std::vector<c10::Storage>& operands,
                         c10::ArrayRef<c10::IValue> results) {
  const auto is_operand = [&](const c10::Storage& storage) {
    return std::any_of(operands.begin(), operands.end(), [&](const c10::Storage& operand) {
      return operand.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl();
    });
  };
  for (const c10::Storage& operand : operands) {
    if (Value* const value = find(operand)) --value->users;
  }
  for (const c10::Storage& operand : operands) {
    Value* const value = find(operand);
    if (value != nullptr && value->users == 0) drop(*value, operand);
  }
  for (const c10::IValue& result : results) {
    for_each_tensor(result, [&](const at::Tensor& tensor) {
      if (!has_memory(tensor)) return;
      const c10::Storage& storage = tensor.storage();
      if (storage.nbytes() == 0 || is_operand(storage) || find(storage) != nullptr) return;
      // A step does not drop values that were there before it.
      if (storage.device().is_cpu() && cpu_allocation_serial(storage.data()) <= begun_) return;
      Value& value = note(storage);
      // The program may write literals there.
      value.stays = step::gives_unwritten_memory(op) && storage.nbytes() <= step::kLargestLiteral;
      drop(value, storage);
    });
  }
  try {
    if (!failure_) require_budget();
  } catch (...) {
    failure_ = std::current_exception();
  }
}

StandIns::Value& StandIns::note(const c10::Storage& storage) {
  return values_
      .try_emplace(storage.unsafeGetStorageImpl(), Value{.alive = storage.getWeakStorageImpl()})
      .first->second;
}

StandIns::Value* StandIns::find(const c10::Storage& storage) {
  const auto found = values_.find(storage.unsafeGetStorageImpl());
  return found == values_.end() ? nullptr : &found->second;
}

const StandIns::Value* StandIns::find(const c10::Storage& storage) const {
  return const_cast<StandIns*>(this)->find(storage);
}

void StandIns::give_bytes(Value& value, const c10::Storage& storage, at::ScalarType dtype) {
  if (value.present) return;
  const auto bytes = static_cast<int64_t>(storage.nbytes());
  if (!device_.is_cpu()) require_budget(device::counted_bytes(bytes, device_));
  lockstep::fill(storage, stand_in(bytes, dtype, storage.device()));
  value.present = true;
  ++value.fills;
}

// Gives a value that nobody reads an address.
void StandIns::give_address(const c10::Storage& storage) {
  const auto bytes = static_cast<int64_t>(storage.nbytes());
  if (reserved_.empty() || reserved_.back()->bytes() < bytes) {
    reserved_.push_back(std::make_unique<device::ReservedSpace>(2 * bytes));
  }
  c10::StorageImpl& to = *storage.unsafeGetStorageImpl();
  device::give_address_again(to);
  to.set_data_ptr_noswap({reserved_.back()->address(), c10::Device(c10::kCPU)});
}

void StandIns::drop(Value& value, const c10::Storage& storage) {
  if (value.stays) return;
  c10::StorageImpl& from = *storage.unsafeGetStorageImpl();
  from.set_data_ptr_noswap({nullptr, from.device()});
  from.release_data_and_set_meta_custom_data_ptr_error_msg_(std::string(kNoBytes));
  value.present = false;
}

void StandIns::sweep() {
  std::erase_if(values_, [](const auto& entry) { return entry.second.alive.expired(); });
}

}  // namespace reprise::runtime::internal::graph
