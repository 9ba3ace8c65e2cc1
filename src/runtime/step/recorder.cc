#include "runtime/step/recorder.h"

#include <ATen/SavedTensorHooks.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <cstring>

#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"
#include "runtime/device/plain_tensors.h"
#include "runtime/step/drop_reruns.h"
#include "runtime/step/host_reads.h"
#include "runtime/step/operators.h"
#include "runtime/step/source_place.h"

namespace reprise::runtime::internal::step {

using device::is_plain;
using state::RandomState;

namespace {

constexpr const char* kRandomStateSet =
    "the state of the random generator is set inside it (torch.manual_seed(), or "
    "torch.utils.checkpoint of a part that draws random numbers): set it before the step, and "
    "leave it to the plan what runs again. Or another thread draws random numbers meanwhile: let "
    "it "
    "wait for the capture";

// Gives fresh memory bytes that no literal has. Memory that was used before may hold what the host
// is about to write, such as the same literal of an earlier run, and then the write would not show.
void mark_unwritten(const at::Tensor& tensor) {
  if (!tensor.device().is_cpu()) return;
  const c10::Storage& storage = tensor.storage();
  // This pointer is no sign to anybody that the host writes the memory.
  void* const data = storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
  if (storage.nbytes() > 0) std::memset(data, kUnwritten, storage.nbytes());
}

// Keeps what the call returns besides tensors.
void note_results(Call& call, c10::ArrayRef<c10::IValue> returned) {
  const auto has_tensors = [](const c10::IValue& value) {
    return value.isTensor() || value.isTensorList() || value.isOptionalTensorList();
  };
  if (std::all_of(returned.begin(), returned.end(), has_tensors)) return;
  for (const c10::IValue& value : returned) {
    call.results.push_back(has_tensors(value) ? c10::IValue() : value);
  }
}

}  // namespace

Recorder::Recorder(c10::Device device, const Tensors& inputs, BeforeImages& images,
                   Scrutiny scrutiny, Audit& audit, const Audit* known,
                   Surroundings* surroundings)
    : images_(images),
      scrutiny_(scrutiny),
      audit_(audit),
      known_(known),
      surroundings_(surroundings),
      places_(recording_, inputs, images, known, surroundings, problems_),
      random_(device) {
  recording_.device = device;
  audit_.begun = cpu_allocation_serial();
}

void Recorder::go_on_behind(Recording begun) {
  begun.input_offsets = recording_.input_offsets;
  recording_ = std::move(begun);
  for (const LeafGradient& leaf : recording_.gradients) {
    leaves_.insert(leaf.target.unsafeGetTensorImpl());
  }
  for (const Call& call : recording_.calls) {
    if (expects_number(call)) {
      ++reads_;
    } else if (is_guard(call)) {
      ++gifts_;
    }
  }
}

std::unique_ptr<LeafContext> Recorder::begin(const c10::OperatorHandle& op,
                                             const at::RecordFunction& event) {
  auto context = std::make_unique<LeafContext>(op);
  Call& call = context->call;
  call.grad_mode = at::GradMode::is_enabled();
  call.place = source_place();
  call.phase = in_backward() ? Phase::kBackward : Phase::kForward;
  if (call.phase == Phase::kBackward) {
    if (const auto node = torch::autograd::get_current_node()) call.node = node->name();
  }
  if (const char* reason = reason_to_refuse(op)) problems_.refuse(call, reason);
  if (!at::SavedTensorDefaultHooks::get_tls_state().stack.empty()) places_.note_saved_by_hooks();
  const auto all = event.inputs();
  const auto arguments = all.slice(all.size() - event.num_inputs());
  for (size_t a = 0; a < arguments.size(); ++a) read_argument(*context, a, arguments[a]);
  for (size_t a = 0; a < arguments.size(); ++a) {
    if (writes(call, a)) note_written(*context, a, arguments[a]);
  }
  if (const char* reason = is_followed() ? nullptr : reason_to_refuse_arguments(call)) {
    problems_.refuse(call, reason);
  }
  context->apart = is_followed() && draws_apart(arguments);
  if (context->apart) return context;
  expect_counts(call, arguments);
  look_at_generators(*context, arguments);
  return context;
}

void Recorder::end(LeafContext& context, const at::RecordFunction& event) {
  Call& call = context.call;
  const size_t returns = call.op.schema().returns().size();
  const auto& all = event.outputs();
  if (all.size() < returns) {  // The operation threw, and so will the step.
    for (const Watched& watched : context.watched) keep_if_changed(watched);
    leave_out(std::move(call), /*failed=*/true);
    return;
  }
  if (context.apart) {
    for (const c10::IValue& value : all) {
      for_each_tensor(value, [&](const at::Tensor& made) { places_.add_host_data(made); });
    }
    return;
  }
  const bool computes = surroundings_ == nullptr || surroundings_->computes();
  call.random = draws(context) || (!computes && draws_by_numbers(call));
  learn_writes(context);
  if (gives_unwritten_memory(call.op)) {
    for (size_t r = all.size() - returns; r < all.size(); ++r) {
      for_each_tensor(all[r], [&](const at::Tensor& tensor) {
        if (tensor.defined() && is_plain(tensor) && watches(tensor.storage())) {
          mark_unwritten(tensor);
        }
      });
    }
  }
  bool kept = write_values(context);
  for (size_t r = all.size() - returns; r < all.size(); ++r) {
    auto& list = call.outputs.emplace_back();
    for_each_tensor(all[r], [&](const at::Tensor& tensor) {
      const size_t before = recording_.values.size();
      list.push_back(places_.refer(tensor, true, call));
      if (tensor.defined() && is_plain(tensor) && watches(tensor.storage())) {
        places_.note_bytes(tensor.storage());
      }
      kept = kept || recording_.values.size() > before;
      note_made(context, tensor);
    });
  }
  note_results(call, c10::ArrayRef<c10::IValue>(all).slice(all.size() - returns));
  for (size_t a = 0; a < call.arguments.size(); ++a) {
    Argument& argument = call.arguments[a];
    // Only the CPU has address space without memory for values that are not live.
    const bool can_be_absent =
        recording_.device.is_cpu() ||
        std::none_of(argument.tensors.begin(), argument.tensors.end(),
                     [](const TensorRef& ref) { return ref.memory == Memory::kValue; });
    argument.shape_only = can_be_absent && reads_shape_only(call, a);
  }
  problems_.next_operation();
  if (reads_on_host(call.op)) expect_number(call, all.back());
  // A call that only looks at memory in another way is left out, because the geometry of tensors
  // has it already.
  if (kept || call.random || !call.effects.empty()) {
    recording_.calls.push_back(std::move(call));
  } else {
    leave_out(std::move(call), /*failed=*/false);
  }
}

void Recorder::leave_out(Call call, bool failed) {
  recording_.left_out.push_back(
      {.before = recording_.calls.size(), .call = std::move(call), .failed = failed});
}

Recording Recorder::finish(Tensors outputs) {
  const Call nobody(*c10::Dispatcher::singleton().findSchema({"aten::detach", ""}));
  audit_.ended = cpu_allocation_serial();
  if (!random_.is_now()) fail(kRandomStateSet);
  if (images_.moved()) {
    fail("it replaces the data of a parameter (.data = ...): do that between two steps");
  }
  // A leaf that the step itself makes needs no gradient after the step.
  std::erase_if(recording_.gradients, [&](const LeafGradient& leaf) {
    return places_.made_in_step(leaf.target.storage());
  });
  for (const at::Tensor& output : outputs) {
    recording_.outputs.push_back(places_.refer(output, false, nobody));
  }
  for (LeafGradient& leaf : recording_.gradients) {
    leaf.gradient = places_.refer(leaf.target.grad(), false, nobody);
  }
  require_gradients(outputs);
  if (is_followed()) {
    // Their history is not kept.
    for (at::Tensor& output : outputs) output = output.defined() ? output.detach() : output;
    places_.add_kept();
    drop_reruns();
  }
  if (!problems_.first().empty()) {
    throw InputError("the step cannot be captured: " + problems_.first());
  }
  return std::move(recording_);
}

// Lets the step expect the number that the call has read out of a tensor.
void Recorder::expect_number(const Call& call, const c10::IValue& result) {
  if (!problems_.first().empty()) return;  // The number may be one that is refused.
  note_host_read();
  recording_.calls.push_back(is_followed() ? guard_that_gives(call, gifts_++)
                                           : guard_of_read(call, result, reads_++));
}

// Lets the step expect as many elements in the masks of the call as there are now. The guards stand
// before the call, whose result has a size of its own for each other count.
void Recorder::expect_counts(const Call& call, c10::ArrayRef<c10::IValue> arguments) {
  if (!problems_.first().empty()) return;
  for (const Mask& mask : masks_of(call)) {
    const c10::IValue& argument = arguments[mask.argument];
    const at::Tensor tensor =
        argument.isTensor() ? argument.toTensor() : argument.toListRef()[mask.item].toTensor();
    note_host_read();
    recording_.calls.push_back(guard_of_count(call, mask, count_of(tensor), reads_++));
  }
}

// Refuses a model in place of a training step, and a step that forgot backward().
void Recorder::require_gradients(const Tensors& outputs) {
  const auto is_backward = [](const Call& call) { return call.phase == Phase::kBackward; };
  const auto has_history = [](const at::Tensor& output) {
    return output.defined() && output.requires_grad() && !output.is_leaf();
  };
  if (std::any_of(recording_.calls.begin(), recording_.calls.end(), is_backward) ||
      std::none_of(outputs.begin(), outputs.end(), has_history)) {
    return;
  }
  fail(
      "it makes no gradients. What is captured is a whole training step, which calls "
      "loss.backward(), not a model; without gradients (torch.no_grad()) a model alone is a "
      "step, too");
}

// Refuses a generator of the call's own. Keeps the random state from before the call if the host has
// set it without an operation that shows it.
void Recorder::look_at_generators(LeafContext& context, c10::ArrayRef<c10::IValue> arguments) {
  for (const c10::IValue& argument : arguments) {
    if (!argument.isGenerator() || !argument.toGenerator().defined()) continue;
    const at::Generator own = argument.toGenerator();
    if (own == at::globalContext().defaultGenerator(own.device())) continue;
    problems_.refuse(
        context.call,
        "draws from a generator of its own, whose state is not replayed; use the default one");
  }
  if (!random_.is_now()) context.random.emplace(recording_.device);
}

void Recorder::read_argument(LeafContext& context, size_t a, const c10::IValue& value) {
  Call& call = context.call;
  Argument argument;
  argument.kind = value.isTensor()               ? ArgumentKind::kTensor
                  : value.isTensorList()         ? ArgumentKind::kTensorList
                  : value.isOptionalTensorList() ? ArgumentKind::kOptionalTensorList
                                                 : ArgumentKind::kConstant;
  // An empty list of optional tensors cannot be told from other lists. As a constant it does the
  // same.
  if (argument.kind == ArgumentKind::kConstant) argument.constant = value;
  for_each_tensor(value, [&](const at::Tensor& tensor) {
    const bool plain = tensor.defined() && is_plain(tensor);
    // The host may have written the memory since the last call.
    const bool looks =
        plain && (scrutiny_ == Scrutiny::kTwice || tensor.storage().nbytes() <= kLargestLiteral);
    if (looks) places_.find_literal(tensor, call);
    argument.tensors.push_back(places_.refer(tensor, false, call));
    if (!plain) return;
    if (watches(tensor.storage())) watch(context, a, tensor, argument.tensors.back());
    context.operands.insert(tensor.unsafeGetTensorImpl());
    note_leaf(tensor);
  });
  call.arguments.push_back(std::move(argument));
}

bool Recorder::writes(const Call& call, size_t a) const {
  // detach_(), t_() and the like change only the way to look at memory.
  if (call.op.hasTag(at::Tag::inplace_view)) return false;
  const auto* alias = call.op.schema().arguments().at(a).alias_info();
  if ((alias != nullptr && alias->isWrite()) || is_known_to_write(call, a)) return true;
  return known_ != nullptr && known_->writes.contains({c10::toString(call.op.operator_name()), a});
}

void Recorder::note_written(LeafContext& context, size_t a, const c10::IValue& value) {
  for_each_tensor(value, [&](const at::Tensor& tensor) {
    if (!tensor.defined() || !is_plain(tensor)) return;
    // Behind the call nobody could say which bytes the host has written.
    if (watches(tensor.storage())) places_.find_literal(tensor, context.call);
    context.written.emplace_back(tensor.storage(), a);
    places_.keep_image(tensor.storage(), [&] { return copy_to_host(tensor.storage()); });
  });
}

// Notes a tensor that the step makes, be it a view of memory from before the step. An operation in
// place returns its operand, which it has not made. A tensor from before the step keeps its address
// until the step ends, so an address in `made_` stays one of a tensor that the step made.
void Recorder::note_made(const LeafContext& context, const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  const void* address = tensor.unsafeGetTensorImpl();
  if (!context.operands.contains(address)) made_.insert(address);
}

// Notes a leaf tensor that will want its gradient in .grad. The gradient of a leaf that the step
// makes dies with the step.
void Recorder::note_leaf(const at::Tensor& tensor) {
  if (!tensor.requires_grad()) {
    if (at::GradMode::is_enabled()) places_.note_read_without_gradient(tensor);
    return;
  }
  if (!tensor.is_leaf() || made_.contains(tensor.unsafeGetTensorImpl())) return;
  if (!leaves_.insert(tensor.unsafeGetTensorImpl()).second) return;
  images_.keep_place(tensor);
  images_.keep_gradient(tensor);
  recording_.gradients.push_back({.target = tensor, .input = places_.note_leaf(tensor)});
}

// Says whether the call has advanced a random generator.
bool Recorder::draws(const LeafContext& context) {
  const RandomState& before = context.random ? *context.random : random_;
  if (before.is_now()) return false;
  const size_t call = recording_.calls.size();
  if (is_followed()) found_.emplace(call, before);
  if (context.random) {
    // A checkpoint sets the state of the forward pass, and puts back that of the backward.
    set_before_.insert(call);
    if (is_followed()) return true;
    fail(kRandomStateSet);
  }
  random_ = RandomState(recording_.device);
  return true;
}

// Leaves out what a checkpoint makes again.
void Recorder::drop_reruns() {
  const auto dropped = step::drop_reruns(recording_, [&](size_t first, size_t again) {
    const auto a = found_.find(first), b = found_.find(again);
    return a != found_.end() && b != found_.end() && a->second == b->second;
  });
  if (!std::includes(dropped.begin(), dropped.end(), set_before_.begin(), set_before_.end())) {
    fail(kRandomStateSet);
  }
}

// Notes what the call has written over. Returns true if that made new versions of values.
bool Recorder::write_values(LeafContext& context) {
  bool wrote = false;
  std::set<const void*> done;
  for (const auto& [storage, argument] : context.written) {
    if (!done.insert(storage.unsafeGetStorageImpl()).second) continue;
    wrote |= places_.write(storage, context.call);
  }
  return wrote;
}

void Recorder::watch(LeafContext& context, size_t a, const at::Tensor& tensor,
                     const TensorRef& ref) {
  if (surroundings_ != nullptr && !surroundings_->is_present(tensor.storage())) return;
  Watched watched{tensor.storage(), a, extent_of(ref.geometry), {}};
  places_.note_bytes(watched.storage);
  if (ref.memory == Memory::kExternal) watched.before = copy_to_host(watched.storage);
  context.watched.push_back(std::move(watched));
}

// Keeps the image of memory that an operation wrote before it failed.
void Recorder::keep_if_changed(const Watched& watched) {
  if (!places_.changed(watched.storage, watched.extent)) return;
  places_.keep_image(watched.storage, [&] { return watched.before; });
}

void Recorder::learn_writes(LeafContext& context) {
  std::set<const void*> changed;
  for (const Watched& watched : context.watched) {
    const void* storage = watched.storage.unsafeGetStorageImpl();
    if (places_.changed(watched.storage, watched.extent)) changed.insert(storage);
    if (!changed.contains(storage)) continue;
    places_.keep_image(watched.storage, [&] { return watched.before; });
    // The schema may declare the write for this argument or for another one on the same memory.
    bool declared = false;
    for (const auto& [written, argument] : context.written) {
      declared = declared || written.is_alias_of(watched.storage);
    }
    if (declared) continue;
    if (scrutiny_ == Scrutiny::kOnce && watched.storage.nbytes() > kLargestLiteral) {
      audit_.unclear = true;  // The host may have written it before the call.
      continue;
    }
    audit_.writes.insert({c10::toString(context.call.op.operator_name()), watched.argument});
    context.written.emplace_back(watched.storage, watched.argument);
  }
}

}  // namespace reprise::runtime::internal::step
