#include "runtime/lockstep/follower.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "reprise/model/errors.h"
#include "runtime/lockstep/words.h"
#include "runtime/step/host_reads.h"
#include "runtime/step/operators.h"
#include "runtime/step/places.h"
#include "runtime/step/same_constant.h"
#include "runtime/step/source_place.h"
#include "runtime/step/storage_bytes.h"
#include "runtime/step/tensors.h"

namespace reprise::runtime::internal::lockstep {

using step::Argument;
using step::ArgumentKind;
using step::Call;
using step::External;
using step::Geometry;
using step::LeafGradient;
using step::LeftOut;
using step::Memory;
using step::Recording;
using step::same_constant;
using step::TensorRef;

namespace {

constexpr std::string_view kDetach = "aten::detach";

std::string name_of(const c10::OperatorHandle& op) { return Call(op).name(); }

std::string at_place(const std::string& place) { return place.empty() ? "" : " at " + place; }

std::vector<at::Tensor> tensors_in(const c10::IValue& value) {
  std::vector<at::Tensor> all;
  step::for_each_tensor(value, [&](const at::Tensor& tensor) { all.push_back(tensor); });
  return all;
}

// A Differs leaves the call that is not the recorded one.
class Differs : public InputError {
 public:
  using InputError::InputError;
};

// Says whether the two are numbers of one type, or lists of as many of them.
bool are_alike(const c10::IValue& a, const c10::IValue& b) {
  if (!a.isList() || !b.isList()) return a.tagKind() == b.tagKind() && !a.isNone();
  const auto x = a.toListRef().vec(), y = b.toListRef().vec();
  return std::equal(x.begin(), x.end(), y.begin(), y.end(), are_alike);
}

// Says whether an argument is a number that has no effect on the shape and the type of a result.
bool may_be_another_number(const Call& call, size_t argument, const c10::IValue& now) {
  const std::string& name = call.op.operator_name().name;
  if (name.starts_with("aten::arange") || name.starts_with("aten::range")) return false;
  c10::TypePtr type = call.op.schema().arguments()[argument].type();
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  if (const auto list = type->cast<c10::ListType>()) type = list->getElementType();
  const bool number =
      type->kind() == c10::TypeKind::NumberType || type->kind() == c10::TypeKind::FloatType;
  return number && are_alike(call.arguments[argument].constant, now);
}

bool holds_tensors(const c10::IValue& value) {
  return value.isTensor() || !tensors_in(value).empty();
}

// Returns where the storage lies; null for one without bytes.
const void* address_of(const c10::Storage& storage) {
  try {
    return storage.data();
  } catch (const c10::Error&) {  // It is a shell.
    return nullptr;
  }
}

// Returns the position of the argument that a return value is: that of an operation in place, or an
// `out` tensor. Returns -1 for a return value of its own.
int64_t argument_returned(const c10::FunctionSchema& schema, size_t result) {
  const c10::AliasInfo* alias = schema.returns()[result].alias_info();
  if (alias == nullptr || !alias->isWrite()) return -1;
  const auto& arguments = schema.arguments();
  for (size_t a = 0; a < arguments.size(); ++a) {
    const c10::AliasInfo* other = arguments[a].alias_info();
    if (other != nullptr && other->isWrite() && other->beforeSets() == alias->beforeSets()) {
      return static_cast<int64_t>(a);
    }
  }
  return -1;
}

}  // namespace

FunctionFollower::FunctionFollower(const Recording& recording, const Tensors& inputs,
                                   ReplayBeside* beside, std::function<void()> on_leaving)
    : recording_(&recording), inputs_(inputs), beside_(beside), on_leaving_(std::move(on_leaving)) {
  begin(recording);
}

// Follows this recording. What was compared so far is the same in it.
void FunctionFollower::begin(const Recording& recording) {
  recording_ = &recording;
  written_.assign(recording.calls.size(), {});
  added_by_others_.clear();
  for (size_t v = 0; v < recording.values.size(); ++v) {
    const step::StepValue& value = recording.values[v];
    if (value.maker < 0 || value.previous < 0) continue;
    written_.at(value.maker).push_back(static_cast<int32_t>(v));
  }
  if (!recording.held) return;
  for (const Call& call : recording.calls) {
    if (call.name() != "add.Tensor") continue;
    for (const step::Argument& argument : call.arguments) {
      for (const TensorRef& ref : argument.tensors) {
        if (ref.memory == Memory::kValue) added_by_others_.insert(ref.index);
      }
    }
  }
}

// --- The calls of the recording, in order -------------------------------------------------------

FunctionFollower::Next FunctionFollower::peek() const {
  size_t c = call_;
  while (c < recording_->calls.size() && step::is_guard(recording_->calls[c])) ++c;
  if (left_out_ < recording_->left_out.size() && recording_->left_out[left_out_].before <= c) {
    const LeftOut& left = recording_->left_out[left_out_];
    return {&left.call, -1, left.failed, left.same_as};
  }
  if (c == recording_->calls.size()) return {};
  return {&recording_->calls[c], static_cast<int32_t>(c)};
}

// Returns how many calls the function has made. A number that it got last stands behind its guard.
size_t FunctionFollower::calls_done() const {
  return left_out_ == 0 ? call_ : std::max(call_, recording_->left_out[left_out_ - 1].before);
}

void FunctionFollower::advance(const Next& next) {
  ++number_;
  if (next.position < 0) {
    ++left_out_;
  } else {
    call_ = static_cast<size_t>(next.position) + 1;
  }
}

// Says whether the call may not come here although the function makes it. torch.tensor() hides the
// request for the memory of a literal, and detach_() is done by autograd alone. A checkpoint detaches
// what it saves in some runs and not in others. None of them computes anything.
bool FunctionFollower::may_be_hidden(const Next& next) {
  if (next.call == nullptr) return false;
  const std::string& name = next.call->op.operator_name().name;
  return step::gives_unwritten_memory(next.call->op) || name == kDetach || name == "aten::detach_";
}

// Returns the next call of the recording, which is one of this operator.
FunctionFollower::Next FunctionFollower::next_call(const c10::OperatorHandle& op) {
  Next next = peek();
  // A call may fail before it comes here: a shape is wrong, for example.
  while ((next.failed || may_be_hidden(next)) &&
         next.call->op.operator_name() != op.operator_name()) {
    advance(next);
    next = peek();
  }
  if (next.call == nullptr) {
    differ(fmt::format("calls {}", name_of(op)), "ends there", nullptr);
  }
  if (next.call->op.operator_name() != op.operator_name()) {
    differ(fmt::format("calls {}", name_of(op)), fmt::format("calls {}", next.call->name()),
           next.call);
  }
  return next;
}

void FunctionFollower::note(const std::string& now, const std::string& recorded, const Call* at) {
  if (!difference_.empty()) return;
  difference_ = fmt::format("operation {}{}: the function {}, and the recording {}{}", number_,
                            at_place(step::source_place()), now, recorded,
                            at == nullptr || at->place.empty() ? "" : " (" + at->place + ")");
}

void FunctionFollower::differ(const std::string& now, const std::string& recorded, const Call* at) {
  note(now, recorded, at);
  throw Differs("the captured step differs from its recording: " + difference_);
}

void FunctionFollower::take(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  if (left_) return call_plainly(op, stack);
  if (beside_ == nullptr) {
    if (!difference_.empty()) differ("", "", nullptr);
    return follow(op, stack);
  }
  do {
    try {
      return follow(op, stack);
    } catch (const Differs&) {
    }
  } while (begin_other());
  leave(difference_);
  call_plainly(op, stack);
}

// Goes on beside another recording of what the function has done so far, if there is one.
bool FunctionFollower::begin_other() {
  const Recording* other = beside_->other(calls_done(), left_out_);
  if (other == nullptr) return false;
  difference_.clear();
  begin(*other);
  return true;
}

void FunctionFollower::leave(const std::string& difference) {
  if (left_ || beside_ == nullptr) return;
  left_ = true;
  const bool adds = gradients_aside_ != nullptr &&
                    (gradients_aside_->has_unseen() || gradients_aside_->is_mixed());
  Leaving leaving{.calls = calls_done(),
                  .left_out = left_out_,
                  .shells = held(),
                  .difference = difference,
                  .adds = adds,
                  .random_states = random_marks_,
                  .random_at = random_at_};
  if (random_at_) leaving.random_states.insert(*random_at_);
  beside_->leave(leaving);
  on_leaving_();
}

// The state itself is not there, because nothing has drawn from it yet.
int64_t FunctionFollower::mark_random_state() {
  // On another device the backward has a thread of its own, where nobody tells of random states.
  if (left_ || beside_ == nullptr || !recording_->device.is_cpu()) return -1;
  const size_t mark = random_at_.value_or(calls_done());
  random_marks_.insert(mark);
  return static_cast<int64_t>(mark);
}

void FunctionFollower::return_to_random_state(int64_t mark) {
  const auto call = static_cast<size_t>(mark);
  if (left_) return beside_->set_random_state(call);
  random_at_ = call;
  if (is_same_random_state(call, calls_done())) random_at_.reset();
}

// Says whether no call draws between these two.
bool FunctionFollower::is_same_random_state(size_t a, size_t b) const {
  const auto begin = recording_->calls.begin() + static_cast<std::ptrdiff_t>(std::min(a, b));
  const auto end = recording_->calls.begin() + static_cast<std::ptrdiff_t>(std::max(a, b));
  return std::none_of(begin, end, [](const Call& call) { return call.random; });
}

// A call that makes its values again draws in the state of the first time. All others go on with the
// state.
void FunctionFollower::follow_draw(const Next& next) {
  const bool again = next.same_as >= 0;
  const bool as_recorded =
      again ? random_at_ && is_same_random_state(*random_at_, static_cast<size_t>(next.same_as))
            : !random_at_;
  if (!as_recorded) {
    differ("draws in another random state", "does not", next.call);
  }
  if (again) random_at_ = static_cast<size_t>(next.same_as) + 1;
}

void FunctionFollower::touch_gradient(const at::Tensor& leaf) {
  if (left_ || gradients_aside_ == nullptr || gradients_aside_->show(leaf)) return;
  leave("the function looks at a gradient that was there before");
}

void FunctionFollower::end(const Tensors& outputs) {
  if (left_) return;
  do {
    finish(outputs);
    added_to_.clear();
    if (difference_.empty()) return look_at_held();
  } while (begin_other());
  leave(difference_);
}

// The plan keeps what the program kept when the step was captured, and gradients.
void FunctionFollower::look_at_held() {
  std::set<int32_t> known;
  const auto add = [&](const TensorRef& ref) {
    if (ref.memory == Memory::kValue) known.insert(ref.index);
  };
  for (const TensorRef& ref : recording_->outputs) add(ref);
  for (const LeafGradient& leaf : recording_->gradients) add(leaf.gradient);
  int32_t last = -1;
  for (const HeldShell& shell : held()) {
    if (shell.value == std::exchange(last, shell.value)) {
      return leave("the function keeps what a checkpoint has made, and what it has made again");
    }
    if (known.contains(shell.value)) continue;
    const Call& call = recording_->calls[recording_->values[shell.value].maker];
    return leave(fmt::format("the function keeps the result of {}{}, and the recording does not",
                             call.name(), at_place(call.place)));
  }
}

ReplayBeside& FunctionFollower::beside() const {
  if (gradients_aside_ != nullptr) gradients_aside_->forget_dropped();
  return *beside_;
}

std::vector<HeldShell> FunctionFollower::held() const {
  std::vector<HeldShell> all = homes_.held();
  std::erase_if(all, [&](const HeldShell& shell) { return given_.contains(shell.value); });
  return all;
}

void FunctionFollower::follow(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  if (op.operator_name().name == kDetach) {
    op.callBoxed(stack);  // It looks at the same memory, and no recording need have it.
    return;
  }
  const size_t arity = op.schema().arguments().size();
  const std::vector<c10::IValue> arguments(stack.end() - static_cast<std::ptrdiff_t>(arity),
                                           stack.end());
  if (beside_ != nullptr && step::draws_apart(arguments)) return call_plainly(op, stack);
  const Next next = next_call(op);
  if (beside_ != nullptr && next.position < 0 && !next.failed && next.same_as < 0 &&
      !step::reads_on_host(op) && looks_at_real_memory(arguments)) {
    for (size_t a = 0; a < arity && a < next.call->arguments.size(); ++a) {
      const bool tensors = next.call->arguments[a].kind != ArgumentKind::kConstant;
      if (tensors) compare(next, a, arguments[a]);
    }
    advance(next);
    return call_plainly(op, stack);
  }
  for (size_t a = 0; a < arity && a < next.call->arguments.size(); ++a) {
    compare(next, a, arguments[a]);
  }
  if (next.failed) {
    advance(next);
    // The program may catch what LibTorch throws, and go on.
    TORCH_CHECK(false, next.call->name(), " fails, as when the step was captured");
  }
  if (op.hasTag(at::Tag::inplace_view)) {
    advance(next);
    op.callBoxed(stack);  // It changes the way in which the tensor looks at its memory.
    return;
  }
  if (beside_ != nullptr) replay_counts(next);
  if (beside_ != nullptr && next.call->random) follow_draw(next);
  std::vector<c10::IValue> results = results_of(next, arguments);
  if (beside_ != nullptr) replay_reads(next, results);
  advance(next);
  torch::jit::drop(stack, arity);
  for (c10::IValue& result : results) stack.push_back(std::move(result));
}

// Says whether all tensors of a call lie in memory that was there before the step, so that the call,
// which only looks at it, may be made.
bool FunctionFollower::looks_at_real_memory(const std::vector<c10::IValue>& arguments) const {
  bool any = false, all = true;
  for (const c10::IValue& argument : arguments) {
    step::for_each_tensor(argument, [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      any = true;
      all = all && tensor.has_storage() && homes_.of(tensor.storage()).memory != Memory::kValue &&
            address_of(tensor.storage()) != nullptr;
    });
  }
  return any && all;
}

// The size of the call's result is that of the recording only if masks select as many elements.
void FunctionFollower::replay_counts(const Next& next) {
  if (next.position < 0) return;
  for (size_t c = call_; c < static_cast<size_t>(next.position); ++c) {
    if (!step::is_guard(recording_->calls[c])) continue;
    try {
      beside().expect(c);
    } catch (const step::ReadMiss& miss) {
      const step::HostRead read = step::host_read(recording_->calls[c]);
      differ(fmt::format("has {}", step::text_of(read, miss.found())),
             fmt::format("{}, {}", step::text_of(read, read.expected), read.what), next.call);
    }
  }
}

// Gives the function what the host reads in this run.
void FunctionFollower::replay_reads(const Next& next, std::vector<c10::IValue>& results) {
  if (next.position < 0 && step::reads_on_host(next.call->op)) {
    results.at(0) = beside().number(recording_->left_out[left_out_].before - 1);
  }
  if (next.position >= 0 && step::copies_for_host(next.call->op)) {
    const TensorRef& ref = next.call->outputs.at(0).at(0);
    c10::Storage bytes = beside().copied(static_cast<size_t>(next.position), ref.index);
    homes_.put(bytes, {ref.memory, ref.index});
    given_.insert(ref.index);
    results.at(0) = step::tensor_on(std::move(bytes), ref.geometry);
  }
}

// --- Arguments ------------------------------------------------------------------------------------

void FunctionFollower::compare(const Next& next, size_t a, const c10::IValue& value) {
  const Argument& recorded = next.call->arguments[a];
  const std::string& name = next.call->op.schema().arguments()[a].name();
  const auto refuse = [&](const std::string& now, const std::string& before) {
    differ(fmt::format("gives {} as {} to {}", now, name, next.call->name()),
           fmt::format("has {}", before), next.call);
  };
  if (recorded.kind == ArgumentKind::kConstant) {
    if (holds_tensors(value)) refuse("a tensor", words_of(recorded.constant));
    // A call that makes its values again has the number of the first time.
    const auto first = next.same_as >= 0
                           ? numbers_.find({static_cast<size_t>(next.same_as), a})
                           : numbers_.end();
    const c10::IValue& expected = first == numbers_.end() ? recorded.constant : first->second;
    if (!same_constant(expected, value)) {
      const auto position = static_cast<size_t>(next.position);
      if (beside_ != nullptr && next.position >= 0 && may_be_another_number(*next.call, a, value) &&
          beside_->use(position, a, value)) {
        numbers_.insert_or_assign({position, a}, value);
        return;
      }
      refuse(words_of(value), words_of(expected));
    }
    return;
  }
  if (!holds_tensors(value) && !recorded.tensors.empty()) {
    refuse(words_of(value), text_of(recorded.tensors.front()));
  }
  const std::vector<at::Tensor> now = tensors_in(value);
  if (now.size() != recorded.tensors.size()) {
    refuse(fmt::format("{} tensors", now.size()), fmt::format("{}", recorded.tensors.size()));
  }
  for (size_t i = 0; i < now.size(); ++i) {
    const auto [found, expected] = difference_of(recorded.tensors[i], now[i]);
    if (!found.empty()) refuse(found, expected);
    // Calls that are left out only look at the memory.
    const TensorRef& ref = recorded.tensors[i];
    if (next.position >= 0 && ref.memory == Memory::kExternal) seen_.insert(ref.index);
  }
}

std::pair<std::string, std::string> FunctionFollower::difference_of(const TensorRef& recorded,
                                                                    const at::Tensor& now) {
  if (!now.defined() && recorded.memory == Memory::kNone) return {};
  if (!now.defined() || recorded.memory == Memory::kNone || !now.has_storage() ||
      now.layout() != at::kStrided) {
    return {text_of(now), text_of(recorded)};
  }
  if (recorded.memory == Memory::kExternal) {
    const External& external = recording_->externals[recorded.index];
    if (external.is_constant) {
      if (!is_same_literal(external, now) && !takes_the_place(recorded, now)) {
        return {text_of(now), text_of(recorded)};
      }
      homes_.put(now.storage(), {recorded.memory, recorded.index});
    }
  }
  const Geometry expected = geometry_in(recorded), found = step::geometry_of(now);
  if (!(expected == found) && recorded.memory == Memory::kExternal &&
      takes_the_place(recorded, now)) {
    return {};
  }
  if (!(expected == found)) {
    if (expected.sizes != found.sizes || expected.dtype != found.dtype) {
      return {"a tensor " + shape_of(found), shape_of(expected)};
    }
    return {
        fmt::format("a tensor {} with strides [{}] from element {} on", shape_of(found),
                    words_of(c10::IValue(found.strides)), found.offset),
        fmt::format("[{}] from {} on", words_of(c10::IValue(expected.strides)), expected.offset)};
  }
  if (now.numel() == 0 && homes_.of(now.storage()).memory == Memory::kNone) {
    // Without elements there is nothing that could be written elsewhere.
    homes_.put(now.storage(), {recorded.memory, recorded.index});
  }
  if (!is_at_home(recorded, now)) return {text_of(now), text_of(recorded)};
  return {};
}

// Says whether the tensor lies where the recording says.
bool FunctionFollower::is_at_home(const TensorRef& recorded, const at::Tensor& now) {
  const Home home = homes_.of(now.storage());
  if (home == Home{recorded.memory, recorded.index}) return true;
  if (home.memory != Memory::kNone || recorded.memory != Memory::kExternal) return false;
  const c10::Storage& storage = now.storage();
  const c10::Storage wanted = storage_of(recording_->externals[recorded.index]);
  // Host memory may be made a tensor anew in each step, as torch.from_numpy() does.
  if (!wanted || storage.is_alias_of(wanted)) return wanted;
  const void* address = address_of(storage);
  if (address != nullptr && address == address_of(wanted)) return true;
  return recording_->externals[recorded.index].input < 0 && takes_the_place(recorded, now);
}

// Says whether another tensor than at capture takes the place of an external in this run.
bool FunctionFollower::takes_the_place(const TensorRef& recorded, const at::Tensor& now) {
  if (beside_ == nullptr || address_of(now.storage()) == nullptr || now.requires_grad())
    return false;
  const External& external = recording_->externals[recorded.index];
  const Home home = homes_.of(now.storage()), wanted{recorded.memory, recorded.index};
  // The memory may be the same, where the function looks at another part of it.
  if (home.memory != Memory::kNone && home != wanted) return false;
  if (external.requires_grad || seen_.contains(recorded.index)) return false;
  if (external.is_constant && now.storage().nbytes() != external.tensor.storage().nbytes()) {
    return false;
  }
  Geometry found = step::geometry_of(now);
  const int64_t later =
      (found.offset - recorded.geometry.offset) * static_cast<int64_t>(now.element_size());
  found.offset = recorded.geometry.offset;
  if (!(found == recorded.geometry)) return false;
  if (!beside_->use(static_cast<size_t>(recorded.index), now, later)) return false;
  if (now.device().is_cpu() && now.storage().nbytes() <= step::kLargestLiteral) {
    host_data_.insert_or_assign(recorded.index, step::copy_to_host(now.storage()));
  }
  later_[recorded.index] = later;
  seen_.insert(recorded.index);
  homes_.put(now.storage(), {recorded.memory, recorded.index});
  return true;
}

bool FunctionFollower::is_same_literal(const External& literal, const at::Tensor& now) const {
  const Home home = homes_.of(now.storage());
  const int32_t index = static_cast<int32_t>(&literal - recording_->externals.data());
  if (home == Home{Memory::kExternal, index}) return true;
  const c10::Storage &written = now.storage(), &recorded = literal.tensor.storage();
  if (written.nbytes() != recorded.nbytes() || now.scalar_type() != literal.tensor.scalar_type()) {
    return false;
  }
  if (recorded.nbytes() == 0) return true;
  if (address_of(written) == nullptr) return false;
  const auto other = host_data_.find(index);
  return step::copy_to_host(written) ==
         (other == host_data_.end() ? step::copy_to_host(recorded) : other->second);
}

c10::Storage FunctionFollower::storage_of(const External& external) const {
  if (external.input < 0) return external.tensor.storage();
  const at::Tensor& input = inputs_[external.input];
  return input.defined() ? input.storage() : c10::Storage();
}

// Returns the geometry that a tensor has now where the recording has this one. Inputs and
// parameters may begin elsewhere in their storages than at capture.
Geometry FunctionFollower::geometry_in(const TensorRef& recorded) const {
  Geometry geometry = recorded.geometry;
  if (recorded.memory != Memory::kExternal) return geometry;
  const External& external = recording_->externals[recorded.index];
  if (const auto other = later_.find(recorded.index); other != later_.end()) {
    geometry.offset += other->second / static_cast<int64_t>(c10::elementSize(geometry.dtype));
    return geometry;
  }
  if (external.is_constant) return geometry;
  const auto input = static_cast<size_t>(external.input);
  const int64_t moved = external.input >= 0
                            ? step::offset_bytes(inputs_[input]) - recording_->input_offsets[input]
                            : step::offset_bytes(external.tensor) - external.offset;
  geometry.offset += moved / static_cast<int64_t>(c10::elementSize(geometry.dtype));
  return geometry;
}

std::string FunctionFollower::text_of(const TensorRef& recorded) const {
  switch (recorded.memory) {
    case Memory::kNone:
      return "nothing";
    case Memory::kExternal: {
      const External& external = recording_->externals[recorded.index];
      if (external.is_constant) {
        return numbers_in(step::tensor_on(external.tensor.storage(), recorded.geometry));
      }
      break;
    }
    case Memory::kValue:
      break;
  }
  return shape_of(recorded.geometry) + maker_of({recorded.memory, recorded.index});
}

std::string FunctionFollower::text_of(const at::Tensor& now) const {
  if (!now.defined()) return "nothing";
  if (!now.has_storage() || now.layout() != at::kStrided) {
    return fmt::format("a tensor of layout {}", c10::toString(now.layout()));
  }
  const Home home = homes_.of(now.storage());
  if (home.memory != Memory::kExternal && now.storage().nbytes() <= step::kLargestLiteral &&
      address_of(now.storage()) != nullptr) {
    return numbers_in(now);
  }
  return "a tensor " + shape_of(step::geometry_of(now)) + maker_of(home);
}

// Says in words where memory comes from.
std::string FunctionFollower::maker_of(Home home) const {
  if (home.memory == Memory::kExternal) {
    const int32_t input = recording_->externals[home.index].input;
    return input >= 0 ? fmt::format(", input {}", input) : ", from before the step";
  }
  if (home.memory == Memory::kNone) return " of its own";
  const int32_t maker = recording_->values[home.index].maker;
  if (maker < 0) return "";
  const Call& call = recording_->calls[maker];
  return fmt::format(", the result of {}{}", call.name(), at_place(call.place));
}

// --- Results --------------------------------------------------------------------------------------

void FunctionFollower::hold_if_needed(int32_t value) {
  if (!added_by_others_.contains(value)) return;
  if (c10::Storage storage = homes_.storage_of({Memory::kValue, value})) {
    added_to_.push_back(std::move(storage));
  }
}

c10::Storage FunctionFollower::storage_for(const TensorRef& ref, const Call& call) {
  const Home home{ref.memory, ref.index};
  if (c10::Storage known = homes_.storage_of(home)) return known;
  if (ref.memory == Memory::kExternal) {
    return storage_of(recording_->externals[ref.index]);
  }
  return new_storage(ref.index, call);
}

c10::Storage FunctionFollower::new_storage(int32_t position, const Call& call) {
  const step::StepValue& value = recording_->values[position];
  // The program may write numbers into it.
  const bool blank = value.device.is_cpu() && step::gives_unwritten_memory(call.op) &&
                     value.bytes <= static_cast<int64_t>(step::kLargestLiteral);
  c10::Storage storage = blank ? blank_memory(value.bytes) : shell(value.bytes, value.device);
  homes_.put(storage, {Memory::kValue, position});
  hold_if_needed(position);
  return storage;
}

// Gives what the call writes over the next versions of the values.
void FunctionFollower::note_writes(const Next& next, const std::vector<c10::IValue>& arguments) {
  const int32_t maker = next.position >= 0 ? next.position : next.same_as;
  if (maker < 0) return;
  for (const int32_t v : written_[maker]) {
    const Home before{Memory::kValue, recording_->values[v].previous};
    c10::Storage written;
    for (const c10::IValue& argument : arguments) {
      step::for_each_tensor(argument, [&](const at::Tensor& tensor) {
        if (!tensor.defined() || !tensor.has_storage()) return;
        if (homes_.of(tensor.storage()) == before) written = tensor.storage();
      });
    }
    if (!written) written = homes_.storage_of(before);
    if (written) homes_.move(written, {Memory::kValue, v});
    hold_if_needed(v);
  }
}

at::Tensor FunctionFollower::tensor_for(const TensorRef& ref, const Call& call) {
  if (ref.memory == Memory::kNone) return {};
  return step::tensor_on(storage_for(ref, call), geometry_in(ref));
}

std::vector<c10::IValue> FunctionFollower::results_of(const Next& next,
                                                      const std::vector<c10::IValue>& arguments) {
  const Call& call = *next.call;
  note_writes(next, arguments);
  // Values that are made again have memory of their own.
  std::map<int32_t, c10::Storage> again;
  for (const auto& list : call.outputs) {
    for (const TensorRef& ref : list) {
      if (next.same_as < 0 || ref.memory != Memory::kValue || again.contains(ref.index)) continue;
      const step::StepValue& value = recording_->values[ref.index];
      if (value.maker != next.same_as || value.previous >= 0) continue;
      again.emplace(ref.index, new_storage(ref.index, call));
    }
  }
  const auto& returns = call.op.schema().returns();
  std::vector<c10::IValue> results;
  for (size_t r = 0; r < returns.size(); ++r) {
    const int64_t argument = argument_returned(call.op.schema(), r);
    if (argument >= 0) {
      results.push_back(arguments[argument]);
    } else if (!call.results.empty() && call.outputs[r].empty()) {
      results.push_back(call.results[r]);
    } else if (returns[r].type()->isSubtypeOf(*c10::ListType::ofTensors())) {
      c10::List<at::Tensor> list;
      for (const TensorRef& ref : call.outputs[r]) list.push_back(tensor_for(ref, call));
      results.emplace_back(std::move(list));
    } else {
      results.emplace_back(tensor_for(call.outputs[r].at(0), call));
    }
  }
  return results;
}

// --- The end --------------------------------------------------------------------------------------

void FunctionFollower::finish(const Tensors& outputs) {
  Next next = peek();
  while (next.failed || may_be_hidden(next)) {
    advance(next);
    next = peek();
  }
  if (next.call != nullptr) {
    note("ends there", fmt::format("calls {}", next.call->name()), next.call);
    return;
  }
  const size_t returned = recording_->outputs.size() - recording_->kept;
  if (outputs.size() != returned) {
    note(fmt::format("returns {} tensors", outputs.size()), fmt::format("{}", returned), nullptr);
    return;
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto [found, expected] = difference_of(recording_->outputs[i], outputs[i]);
    if (!found.empty()) {
      note(fmt::format("returns {} as tensor {}", found, i), "has " + expected, nullptr);
    }
  }
  for (const LeafGradient& leaf : recording_->gradients) {
    const at::Tensor& target = leaf.input < 0 ? leaf.target : inputs_[leaf.input];
    const auto [found, expected] = difference_of(leaf.gradient, target.grad());
    if (!found.empty()) {
      note(fmt::format("leaves {} as the gradient of a leaf {}", found,
                       shape_of(step::geometry_of(target))),
           "has " + expected, nullptr);
    }
  }
}

}  // namespace reprise::runtime::internal::lockstep
