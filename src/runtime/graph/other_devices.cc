#include "runtime/graph/other_devices.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "reprise/model/errors.h"
#include "reprise/run/interpreter.h"
#include "reprise/runtime/allocator.h"
#include "runtime/graph/lower.h"
#include "runtime/graph/replay.h"
#include "runtime/graph/words.h"
#include "runtime/step/operators.h"

namespace reprise::runtime::internal::graph {

using step::gives_unwritten_memory;
using step::is_host_number;

namespace {

// Results that are close differ by at most this part of the largest element, or by four units in
// the last place of it, where the type has fewer digits.
constexpr double kClose = 1e-4;
constexpr double kUnits = 4;

// Returns a unit in the last place of a number between 1 and 2; 0 for types with more digits than
// kClose.
double unit_of(at::ScalarType type) {
  if (type == at::kBFloat16) return 1.0 / 128;
  return type == at::kHalf ? 1.0 / 1024 : 0;
}

[[noreturn]] void refuse_together(const std::string& option) {
  throw InputError(fmt::format(
      "a step with other_devices, whose operations run there, too, cannot have {}: leave one out",
      option));
}

// Returns the work of the call on another device, or nothing if its arguments name a third one.
std::optional<Work> work_on(const Work& here, c10::Device first, c10::Device other) {
  Work there = here;
  for (Argument& argument : there.arguments) {
    argument.shape_only = false;  // only memory that is there has a shape on every device
    if (argument.kind != ArgumentKind::kConstant || !argument.constant.isDevice()) continue;
    if (argument.constant.toDevice() != first) return std::nullopt;
    argument.constant = other;
  }
  return there;
}

class Trial {
 public:
  Trial(RewrittenStep& step, WorkCosts& costs, const CaptureOptions& options)
      : step_(step),
        costs_(costs),
        options_(options),
        recording_(step.recording),
        calls_(recording_.calls.size()),
        written_(recording_.externals.size(), false),
        lowered_(lower(step, costs.by_work, /*inputs=*/{}, /*name=*/"")),
        replay_(recording_, step.works, lowered_) {
    for (const Call& call : recording_.calls) {
      for (const int32_t e : call.effects) written_[e] = true;
    }
  }

  void run(const Tensors& inputs) {
    const ReplayScope scope;
    const RandomScope random(recording_.device);
    const std::vector<Run> runs = plain_runs(lowered_.graph);
    const Program program(lowered_.graph, with_frees(lowered_.graph, runs));
    std::vector<std::pair<c10::Storage, HostBytes>> outside;
    for (size_t e = 0; e < written_.size(); ++e) {
      if (!written_[e]) continue;
      const c10::Storage storage = recording_.externals[e].tensor.storage();
      outside.emplace_back(storage, copy_to_host(storage));
    }
    const auto put_back = [&] {
      for (const auto& [storage, bytes] : outside) copy_from_host(bytes, storage);
    };
    replay_.begin(inputs);
    try {
      Walk walk(*this);
      execute(program, walk);
    } catch (...) {
      replay_.clear();
      put_back();
      throw;
    }
    replay_.clear();
    put_back();
    for (Found& found : found_) {
      found.variant.work = static_cast<int32_t>(step_.works.all.size());
      step_.works.all.push_back(std::move(found.work));
      costs_.by_work.push_back(found.cost);
      step_.alternatives.variants.push_back(std::move(found.variant));
    }
  }

 private:
  struct Found {
    CallVariant variant;
    Work work;
    WorkCost cost;
  };
  // A Tried is a work that ran on another device.
  struct Tried {
    int32_t memory = 0;
    Work work;
    WorkCost cost;
    Tensors results;  // as many as there are in the first place of the step
  };

  class Walk final : public Backend {
   public:
    explicit Walk(Trial& trial) : trial_(trial) {}
    void run(const RunAction& action) override { trial_.run_op(action); }
    void free(ValueIndex value, int32_t memory) override { trial_.replay_.free(value, memory); }

   private:
    Trial& trial_;
  };

  void run_op(const RunAction& action) {
    const auto w = static_cast<size_t>(lowered_.works[action.op][action.variant]);
    std::vector<Tried> tried;
    if (w < calls_ && may_move(w)) {
      for (size_t m = 1; m < step_.devices.size(); ++m) {
        if (auto one = try_on(w, static_cast<int32_t>(m))) tried.push_back(*std::move(one));
      }
    }
    // A work that belongs to no call may be impossible to undo. It stays on the first device.
    if (const Work& work = step_.works.all[w]; work.apart) return replay_.pass_over(work);
    replay_.run(action);
    if (options_.measure.observer) {
      const double done =
          static_cast<double>(action.op + 1) / static_cast<double>(lowered_.graph.ops.size());
      options_.measure.observer({"profile", done, "on other devices"});
    }
    for (Tried& one : tried) {
      const std::optional<Exactness> exactness = exactness_of(one);
      if (!exactness) continue;
      const std::string name = "default@" + step_.devices[one.memory].str();
      found_.push_back({{.call = static_cast<int32_t>(w),
                         .name = name.c_str(),
                         .exactness = *exactness,
                         .memory = one.memory},
                        std::move(one.work),
                        one.cost});
    }
  }

  bool may_move(size_t c) const {
    const Call& call = recording_.calls[c];
    if (call.random || !call.effects.empty() || !call.results.empty() || is_host_read(call) ||
        sizes_by_values(call) || gives_unwritten_memory(call.op)) {
      return false;
    }
    const auto here = [&](const TensorRef& ref) {
      const auto position = static_cast<size_t>(ref.index);
      switch (ref.memory) {
        case Memory::kNone:
          return true;
        case Memory::kValue:
          return recording_.values[position].device == recording_.device;
        case Memory::kExternal:
          break;
      }
      const External& external = recording_.externals[position];
      if (is_host_number(external)) return true;
      if (external.is_constant || written_[position]) return false;
      return external.input >= 0 || external.tensor.device() == recording_.device;
    };
    for (const Argument& argument : call.arguments) {
      if (!std::all_of(argument.tensors.begin(), argument.tensors.end(), here)) return false;
    }
    for (const std::vector<TensorRef>& outputs : call.outputs) {
      if (!std::all_of(outputs.begin(), outputs.end(), here)) return false;
    }
    return !step::values_written(step_.works.all[c]).empty();
  }

  // Runs the call on the other device. Returns nothing if that fails for whatever reason, such as
  // an operator that the device lacks, or memory.
  std::optional<Tried> try_on(size_t c, int32_t memory) {
    const c10::Device device = step_.devices[memory];
    std::optional<Work> work = work_on(step_.works.all[c], recording_.device, device);
    if (!work) return std::nullopt;
    std::optional<Tried> tried;
    try {
      tried = tried_on(*std::move(work), memory, device);
    } catch (const c10::Error&) {
      tried.reset();
    } catch (const InternalError&) {
      tried.reset();  // it returns something else there
    }
    replay_.drop_results();
    replay_.drop_others();
    return tried;
  }

  std::optional<Tried> tried_on(Work work, int32_t memory, c10::Device device) {
    Tried tried;
    tried.memory = memory;
    std::vector<Nanos> times;
    const std::string kind = step::kind_of(work) + device.str();
    const auto known = times_.find(kind);
    const int repeats = known == times_.end() ? std::max(1, options_.measure.min_repeats) : 1;
    for (int repeat = 0; repeat < repeats; ++repeat) {
      replay_.drop_results();
      replay_.drop_others();
      if (!replay_.bring_operands(work, memory)) return std::nullopt;
      device::synchronize(device);
      reset_peak(device);
      times.push_back(time_run(device, [&] { replay_.invoke(work, memory); }).wall);
      const MemoryCount count = memory_count(device);
      tried.cost.workspace = Bytes(count.peak - count.live);
    }
    tried.cost.time = known == times_.end() ? times_[kind] = median(times) : known->second;
    replay_.keep_results(work, memory);
    for (const int32_t value : step::values_written(work)) {
      const c10::Storage& storage = replay_.storage_in(value, memory);
      if (storage.device() != device) return std::nullopt;
      tried.results.push_back(whole(storage, value));
    }
    tried.work = std::move(work);
    return tried;
  }

  // Returns the storage as a tensor of the type in which the step first sees the value.
  at::Tensor whole(const c10::Storage& storage, int32_t value) const {
    at::ScalarType type = at::kByte;
    const auto maker = recording_.values[value].maker;
    for (const auto& outputs : recording_.calls[maker].outputs) {
      for (const TensorRef& ref : outputs) {
        if (ref.memory == Memory::kValue && ref.index == value) type = ref.geometry.dtype;
      }
    }
    const auto size = static_cast<int64_t>(c10::elementSize(type));
    return tensor_on(
        storage,
        {.sizes = {static_cast<int64_t>(storage.nbytes()) / size}, .strides = {1}, .dtype = type});
  }

  // Compares what the work did with what the call has left in the step.
  std::optional<Exactness> exactness_of(const Tried& tried) const {
    Exactness worst = Exactness::kBitwise;
    const std::vector<int32_t> values = step::values_written(tried.work);
    for (size_t k = 0; k < values.size(); ++k) {
      const at::Tensor first = whole(replay_.storage_of(values[k]), values[k]);
      worst = std::max(worst, agreement(first, tried.results[k]));
    }
    const Exactness allowed = std::min(options_.alternatives.allow, Exactness::kRounding);
    return worst <= allowed ? std::optional(worst) : std::nullopt;
  }

  RewrittenStep& step_;
  WorkCosts& costs_;
  const CaptureOptions& options_;
  const Recording& recording_;
  const size_t calls_;
  std::vector<bool> written_;  // by external
  LoweredStep lowered_;
  Replay replay_;
  std::map<std::string, Nanos> times_;  // by kind of work, and device
  std::vector<Found> found_;
};

}  // namespace

Exactness agreement(const at::Tensor& first, const at::Tensor& other) {
  const at::Tensor a = first.contiguous().cpu(), b = other.contiguous().cpu();
  if (a.numel() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0) {
    return Exactness::kBitwise;
  }
  if (!at::isFloatingType(a.scalar_type())) return Exactness::kApproximate;
  const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
  // The same elements are not finite, and equal.
  const at::Tensor finite = x.isfinite().logical_and(y.isfinite());
  const at::Tensor nowhere = x.eq(y).logical_or(x.isnan().logical_and(y.isnan()));
  if (!finite.logical_or(nowhere).all().item<bool>()) return Exactness::kApproximate;
  const double allowed = std::max(kClose, kUnits * unit_of(a.scalar_type()));
  const at::Tensor largest = x.abs().masked_fill(finite.logical_not(), 0).max();
  const at::Tensor off = (x - y).abs().masked_fill(finite.logical_not(), 0).max();
  return off.item<double>() <= allowed * largest.item<double>() ? Exactness::kRounding
                                                                : Exactness::kApproximate;
}

void require_other_devices(const CaptureOptions& options, c10::Device first) {
  if (options.other_devices.empty()) return;
  if (options.optimizer) refuse_together("an optimizer inside (optimizer)");
  if (!options.budget.unlimited())
    refuse_together("a budget for its capture (CaptureOptions::budget)");
  std::set<std::string> seen = {first.str()};
  std::optional<c10::Device> type;
  if (!first.is_cpu()) type = first;
  for (const c10::Device device : options.other_devices) {
    if (!seen.insert(device.str()).second) {
      throw InputError(fmt::format(
          "{} is named twice among the devices of a step: other_devices are those beside {}, where "
          "the inputs lie",
          device.str(), first.str()));
    }
    if (device.is_cpu()) continue;
    const bool exists = at::accelerator::getAccelerator() == device.type() && device.has_index() &&
                        device.index() < at::accelerator::deviceCount();
    if (!exists) {
      throw InputError(fmt::format(
          "there is no device {} for other_devices: name the CPU, or a device of this machine with "
          "its number",
          device.str()));
    }
    if (type && type->type() != device.type()) {
      throw InputError(fmt::format(
          "other_devices names devices of two types, {} and {}: operations run on the CPU and on "
          "devices of one other type",
          type->str(), device.str()));
    }
    type = device;
  }
}

void add_other_devices(RewrittenStep& step, WorkCosts& costs, const Tensors& inputs,
                       const CaptureOptions& options) {
  if (options.other_devices.empty()) return;
  step.devices = {step.recording.device};
  step.devices.insert(step.devices.end(), options.other_devices.begin(),
                      options.other_devices.end());
  Trial(step, costs, options).run(inputs);
}

}  // namespace reprise::runtime::internal::graph
