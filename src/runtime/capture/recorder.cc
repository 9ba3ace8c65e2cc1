#include "capture/recorder.h"

#include <ATen/SavedTensorHooks.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/node.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
#include <unordered_map>

#include "capture/operators.h"
#include "capture/tensors.h"
#include "random_state.h"
#include "reprise/model/errors.h"
#include "reprise/runtime/allocator.h"

namespace reprise::runtime {
namespace {

// Larger tensors that the host writes inside the step are taken for results of code that the capture
// cannot see, not for literals.
constexpr size_t kLargestLiteral = 16384;

constexpr const char* kRandomStateSet =
    "the state of the random generator is set inside it (torch.manual_seed(), or "
    "torch.utils.checkpoint of a part that draws random numbers): set it before the step, and "
    "leave "
    "it to the plan what runs again";

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

// One operand's memory, watched over one call.
struct Watched {
  c10::Storage storage;
  size_t argument;
  uint64_t hash;
  HostBytes before;  // of externals
};

struct LeafContext final : at::ObserverContext {
  explicit LeafContext(const c10::OperatorHandle& op) : call(op) {}
  Call call;
  bool within_leaf = false;
  std::vector<std::pair<c10::Storage, size_t>> written;  // storage, argument
  std::vector<Watched> watched;
  std::optional<RandomState> random;  // when it began
};

class Recorder {
 public:
  Recorder(c10::Device device, const Tensors& inputs, BeforeImages& images, Audit* learn,
           const Audit* known)
      : images_(images), learn_(learn), known_(known), first_serial_(cpu_allocation_serial()) {
    recording_.device = device;
    if (learn_ != nullptr) {
      learn_->begun = first_serial_;
      random_.emplace(device);
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      recording_.input_offsets.push_back(offset_bytes(inputs[i]));
      if (!inputs[i].defined()) continue;
      const auto entry =
          inputs_.emplace(inputs[i].storage().unsafeGetStorageImpl(), static_cast<int32_t>(i))
              .first;
      extents_.push_back(
          {entry->second, recording_.input_offsets.back(), extent_bytes(geometry_of(inputs[i]))});
      input_tensors_.emplace(inputs[i].unsafeGetTensorImpl(), static_cast<int32_t>(i));
    }
  }

  std::unique_ptr<LeafContext> begin(const c10::OperatorHandle& op,
                                     const at::RecordFunction& event) {
    auto context = std::make_unique<LeafContext>(op);
    Call& call = context->call;
    call.grad_mode = at::GradMode::is_enabled();
    call.phase = in_backward() ? Phase::kBackward : Phase::kForward;
    if (call.phase == Phase::kBackward) {
      if (const auto node = torch::autograd::get_current_node()) call.node = node->name();
    }
    if (const char* reason = reason_to_refuse(op)) refuse(call, reason);
    saved_by_hooks_ |= !at::SavedTensorDefaultHooks::get_tls_state().stack.empty();
    const auto all = event.inputs();
    const auto arguments = all.slice(all.size() - event.num_inputs());
    for (size_t a = 0; a < arguments.size(); ++a) read_argument(*context, a, arguments[a]);
    for (size_t a = 0; a < arguments.size(); ++a) {
      if (writes(call, a)) note_written(*context, a, arguments[a]);
    }
    if (const char* reason = reason_to_refuse_arguments(call)) refuse(call, reason);
    look_at_generators(*context, arguments);
    return context;
  }

  void end(LeafContext& context, const at::RecordFunction& event) {
    Call& call = context.call;
    const size_t returns = call.op.schema().returns().size();
    const auto& all = event.outputs();
    if (all.size() < returns) {  // it threw, and so will the step
      for (const Watched& watched : context.watched) keep_if_changed(watched);
      return;
    }
    const size_t ordinal = ordinal_++;
    if (learn_ != nullptr) learn(context);
    if (learn_ != nullptr && gives_unwritten_memory(call.op)) {
      for (size_t r = all.size() - returns; r < all.size(); ++r) mark_unwritten(all[r]);
    }
    bool kept = write_values(context);
    for (size_t r = all.size() - returns; r < all.size(); ++r) {
      auto& list = call.outputs.emplace_back();
      for_each_tensor(all[r], [&](const at::Tensor& tensor) {
        const size_t before = recording_.values.size();
        list.push_back(refer(tensor, true, call));
        kept = kept || recording_.values.size() > before;
      });
    }
    if (learn_ != nullptr) {
      RandomState now(recording_.device);
      const bool draws = !(now == *context.random);
      if (draws && !(*context.random == *random_)) fail(kRandomStateSet);
      if (draws) random_ = std::move(now);
      learn_->draws.push_back(draws);
      call.random = draws;
    } else {
      call.random = ordinal < known_->draws.size() && known_->draws[ordinal];
    }
    for (size_t a = 0; a < call.arguments.size(); ++a) {
      Argument& argument = call.arguments[a];
      // Only the CPU has address space without memory, for values that are not there.
      const bool can_be_absent =
          recording_.device.is_cpu() ||
          std::none_of(argument.tensors.begin(), argument.tensors.end(),
                       [](const TensorRef& ref) { return ref.memory == Memory::kValue; });
      argument.shape_only = can_be_absent && reads_shape_only(call, a);
    }
    // What only looks at memory in another way is in the geometry of the tensors already.
    if (kept || call.random || !call.effects.empty()) recording_.calls.push_back(std::move(call));
  }

  void fail(const std::string& problem) {
    if (problem_.empty()) problem_ = problem;
  }

  Recording finish(const Tensors& outputs) {
    const Call nobody(*c10::Dispatcher::singleton().findSchema({"aten::detach", ""}));
    if (random_ && !(*random_ == RandomState(recording_.device))) fail(kRandomStateSet);
    if (images_.moved()) {
      fail("it replaces the data of a parameter (.data = ...): do that between two steps");
    }
    // A leaf that the step makes goes with the step.
    std::erase_if(recording_.gradients, [&](const LeafGradient& leaf) {
      const auto found = tracked_.find(leaf.target.storage().unsafeGetStorageImpl());
      return found == tracked_.end() || made_here(found->second);
    });
    for (const at::Tensor& output : outputs) {
      recording_.outputs.push_back(refer(output, false, nobody));
    }
    for (LeafGradient& leaf : recording_.gradients) {
      leaf.gradient = refer(leaf.target.grad(), false, nobody);
    }
    require_gradients(outputs);
    if (!problem_.empty()) throw InputError("the step cannot be captured: " + problem_);
    return std::move(recording_);
  }

  c10::Device device() const { return recording_.device; }

 private:
  struct InputExtent {
    int32_t owner;       // the first input on this storage
    int64_t begin, end;  // bytes in it
  };
  struct Tracked {
    std::optional<WeakStorage> alive;  // keeps the address unique, not the memory
    TensorRef place;                   // without geometry
    size_t bytes = 0;
    uint64_t hash = 0;  // after the last call that touched it
  };

  bool made_here(const Tracked& tracked) const {
    if (tracked.place.memory == Memory::kValue) return true;
    return tracked.place.memory == Memory::kExternal &&
           recording_.externals[static_cast<size_t>(tracked.place.index)].is_constant;
  }

  // A model in place of a training step, or one whose backward() was forgotten.
  void require_gradients(const Tensors& outputs) {
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
        "step, "
        "too");
  }

  // The host may set the state of the generator, which no operation shows. That matters to what draws then.
  void look_at_generators(LeafContext& context, c10::ArrayRef<c10::IValue> arguments) {
    for (const c10::IValue& argument : arguments) {
      if (!argument.isGenerator() || !argument.toGenerator().defined()) continue;
      const at::Generator own = argument.toGenerator();
      if (own == at::globalContext().defaultGenerator(own.device())) continue;
      refuse(context.call,
             "draws from a generator of its own, whose state is not replayed; use the default one");
    }
    if (learn_ != nullptr) context.random.emplace(recording_.device);
  }

  void refuse(const Call& call, const std::string& reason) {
    fail(fmt::format("operation {} ({}{}) {}", ordinal_, call.name(),
                     call.node.empty() ? "" : ", in " + call.node, reason));
  }

  void read_argument(LeafContext& context, size_t a, const c10::IValue& value) {
    Call& call = context.call;
    Argument argument;
    argument.kind = value.isTensor()               ? ArgumentKind::kTensor
                    : value.isTensorList()         ? ArgumentKind::kTensorList
                    : value.isOptionalTensorList() ? ArgumentKind::kOptionalTensorList
                                                   : ArgumentKind::kConstant;
    // An empty list of optional tensors cannot be told from other lists; as a constant it is the same.
    if (argument.kind == ArgumentKind::kConstant) argument.constant = value;
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      argument.tensors.push_back(refer(tensor, false, call));
      if (!tensor.defined() || !tensor.has_storage()) return;
      if (learn_ != nullptr) watch(context, a, tensor, argument.tensors.back());
      note_leaf(tensor);
    });
    call.arguments.push_back(std::move(argument));
  }

  bool writes(const Call& call, size_t a) const {
    // Only the way to look at memory changes: detach_(), t_().
    if (call.op.hasTag(at::Tag::inplace_view)) return false;
    const auto* alias = call.op.schema().arguments().at(a).alias_info();
    if ((alias != nullptr && alias->isWrite()) || is_known_to_write(call, a)) return true;
    return known_ != nullptr &&
           known_->writes.contains({c10::toString(call.op.operator_name()), a});
  }

  void note_written(LeafContext& context, size_t a, const c10::IValue& value) {
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (!tensor.defined() || !tensor.has_storage()) return;
      context.written.emplace_back(tensor.storage(), a);
      keep_image(tensor.storage(), [&] { return copy_to_host(tensor.storage()); });
    });
  }

  // Tensors that will want their gradient in .grad.
  void note_leaf(const at::Tensor& tensor) {
    if (!tensor.requires_grad() || !tensor.is_leaf()) return;
    if (!leaves_.insert(tensor.unsafeGetTensorImpl()).second) return;
    images_.keep_place(tensor);
    images_.keep_gradient(tensor);
    LeafGradient leaf{.target = tensor};
    const auto input = input_tensors_.find(tensor.unsafeGetTensorImpl());
    if (input != input_tensors_.end()) leaf.input = input->second;
    recording_.gradients.push_back(std::move(leaf));
    Tracked& tracked = tracked_.at(tensor.storage().unsafeGetStorageImpl());
    if (tracked.place.memory != Memory::kExternal) return;
    External& external = recording_.externals[static_cast<size_t>(tracked.place.index)];
    // What autograd saved of a leaf may come back as another tensor of the same memory.
    if (std::exchange(external.requires_grad, true) || external.input >= 0) return;
    external.tensor = tensor;
    external.offset = offset_bytes(tensor);
  }

  void watch(LeafContext& context, size_t a, const at::Tensor& tensor, const TensorRef& ref) {
    Watched watched{tensor.storage(), a, hash_of(tensor.storage()), {}};
    if (ref.memory == Memory::kExternal) watched.before = copy_to_host(watched.storage);
    Tracked& tracked = tracked_.at(watched.storage.unsafeGetStorageImpl());
    if (ref.memory == Memory::kValue && watched.hash != tracked.hash) {
      found_host_write(context.call, watched.storage, ref.index);
    }
    context.watched.push_back(std::move(watched));
  }

  static bool gives_unwritten_memory(const c10::OperatorHandle& op) {
    const std::string& name = op.operator_name().name;
    return name.starts_with("aten::empty") || name.starts_with("aten::new_empty");
  }

  // Memory that was used before may hold what the host is about to write, such as the same literal of an
  // earlier run; that would not show. So it gets bytes that no literal has.
  static void mark_unwritten(const c10::IValue& result) {
    constexpr int kUnlikely = 0xA5;
    for_each_tensor(result, [](const at::Tensor& tensor) {
      if (!tensor.defined() || !tensor.has_storage() || !tensor.device().is_cpu()) return;
      const c10::Storage& storage = tensor.storage();
      if (storage.nbytes() > 0) std::memset(storage.mutable_data(), kUnlikely, storage.nbytes());
    });
  }

  // Bytes that came without an operator: a literal, or code that the capture cannot see.
  void found_host_write(const Call& call, const c10::Storage& storage, int32_t value) {
    if (storage.nbytes() > kLargestLiteral) {
      refuse(call,
             fmt::format("reads {} bytes that were written inside the step by code that calls no "
                         "operation",
                         storage.nbytes()));
    }
    learn_->host_written.insert(value);
  }

  // An operation that fails may have written before it did.
  void keep_if_changed(const Watched& watched) {
    if (hash_of(watched.storage) == watched.hash) return;
    keep_image(watched.storage, [&] { return watched.before; });
  }

  void learn(LeafContext& context) {
    for (const Watched& watched : context.watched) {
      const uint64_t hash = hash_of(watched.storage);
      tracked_.at(watched.storage.unsafeGetStorageImpl()).hash = hash;
      if (hash == watched.hash) continue;
      keep_image(watched.storage, [&] { return watched.before; });
      bool declared = false;  // by this argument or by another one on the same memory
      for (const auto& [storage, argument] : context.written) {
        declared = declared || storage.is_alias_of(watched.storage);
      }
      if (declared) continue;
      learn_->writes.insert({c10::toString(context.call.op.operator_name()), watched.argument});
      context.written.emplace_back(watched.storage, watched.argument);
    }
  }

  // What the call has written over: new versions of values, effects on externals.
  bool write_values(LeafContext& context) {
    bool wrote = false;
    Call& call = context.call;
    std::set<const void*> done;
    for (const auto& [storage, argument] : context.written) {
      if (!done.insert(storage.unsafeGetStorageImpl()).second) continue;
      Tracked& tracked = tracked_.at(storage.unsafeGetStorageImpl());
      if (tracked.place.memory == Memory::kValue) {
        const int32_t previous = tracked.place.index;
        tracked.place.index = add_value(storage, previous);
        wrote = true;
      } else {
        write_external(call, tracked.place.index);
      }
    }
    return wrote;
  }

  void write_external(Call& call, int32_t index) {
    const External& external = recording_.externals[static_cast<size_t>(index)];
    if (external.requires_grad) {
      refuse(call, "writes a parameter; keep the optimizer out of the captured step");
    } else if (external.input >= 0) {
      refuse(call, fmt::format("writes input {} of the step in place; give the step a copy",
                               external.input));
    } else if (external.is_constant) {
      refuse(call, "writes a literal in place");
    }
    call.effects.push_back(index);
  }

  int32_t add_value(const c10::Storage& storage, int32_t previous) {
    recording_.values.push_back({.bytes = static_cast<int64_t>(storage.nbytes()),
                                 .maker = static_cast<int32_t>(recording_.calls.size()),
                                 .previous = previous});
    return static_cast<int32_t>(recording_.values.size()) - 1;
  }

  TensorRef refer(const at::Tensor& tensor, bool is_output, const Call& call) {
    if (!tensor.defined()) return {};
    if (!tensor.has_storage() || tensor.layout() != at::kStrided) {
      refuse(call, fmt::format("uses a tensor of layout {}", c10::toString(tensor.layout())));
      return {};
    }
    if (tensor.key_set().has(c10::DispatchKey::Python)) {
      refuse(call, "uses a tensor of a class written in Python");
      return {};
    }
    const c10::Storage& storage = tensor.storage();
    auto [entry, fresh] = tracked_.try_emplace(storage.unsafeGetStorageImpl());
    Tracked& tracked = entry->second;
    if (fresh) {
      tracked.alive = storage.getWeakStorageImpl();
      tracked.bytes = storage.nbytes();
      if (is_output) {
        tracked.place = {Memory::kValue, add_value(storage, -1), {}};
        if (learn_ != nullptr) tracked.hash = hash_of(storage);
      } else {
        tracked.place = {Memory::kExternal, add_external(tensor, call), {}};
      }
    } else if (tracked.bytes != storage.nbytes()) {
      refuse(call, "uses memory that was resized inside the step");
    } else if (!is_output && is_literal(tracked)) {
      tracked.place = {Memory::kExternal, add_literal(tensor, call), {}};
    }
    TensorRef ref = tracked.place;
    ref.geometry = geometry_of(tensor);
    require_within_input(ref, call);
    return ref;
  }

  // Inputs may be other parts of a tensor at each step: what the step reads of that tensor by itself would
  // move with them.
  void require_within_input(const TensorRef& ref, const Call& call) {
    if (ref.memory != Memory::kExternal) return;
    const int32_t owner = recording_.externals[static_cast<size_t>(ref.index)].input;
    if (owner < 0) return;
    const int64_t begin =
        ref.geometry.offset * static_cast<int64_t>(c10::elementSize(ref.geometry.dtype));
    const auto lies_in = [&](const InputExtent& input) {
      return input.owner == owner && begin >= input.begin &&
             extent_bytes(ref.geometry) <= input.end;
    };
    if (std::any_of(extents_.begin(), extents_.end(), lies_in)) return;
    refuse(call, fmt::format("reads more of the tensor that input {} is a part of than that part; "
                             "give the step a copy of the input",
                             owner));
  }

  bool is_literal(const Tracked& tracked) const {
    return learn_ == nullptr && tracked.place.memory == Memory::kValue &&
           known_->host_written.contains(tracked.place.index);
  }

  int32_t add(External external) {
    recording_.externals.push_back(std::move(external));
    return static_cast<int32_t>(recording_.externals.size()) - 1;
  }

  // The bytes as they are now, in memory of our own; on the CPU in memory that no budget counts, as the
  // step has it only for a moment.
  int32_t add_literal(const at::Tensor& tensor, const Call& call) {
    if (saved_by_hooks_ && call.phase == Phase::kBackward) {
      refuse(call,
             "reads what a function of torch.autograd.graph.saved_tensors_hooks made, which no "
             "operation shows; leave it to the plan what is kept");
    }
    const HostBytes bytes = copy_to_host(tensor.storage());
    c10::DataPtr memory;
    if (tensor.device().is_cpu()) {
      void* data = std::aligned_alloc(64, (bytes.size() + 63) / 64 * 64);
      if (data == nullptr && !bytes.empty()) throw std::bad_alloc();
      memory = c10::DataPtr(data, data, &std::free, tensor.device());
    } else {
      memory = c10::GetAllocator(tensor.device().type())->allocate(bytes.size());
    }
    c10::Storage copy(c10::Storage::use_byte_size_t(), bytes.size(), std::move(memory));
    copy_from_host(bytes, copy);
    return add({.tensor = tensor_on(copy, geometry_of(tensor)), .is_constant = true});
  }

  int32_t add_external(const at::Tensor& tensor, const Call& call) {
    const c10::Storage& storage = tensor.storage();
    const auto input = inputs_.find(storage.unsafeGetStorageImpl());
    if (input != inputs_.end()) return add({.input = input->second});
    const bool known_age = storage.device().is_cpu() && storage.nbytes() > 0;
    const uint64_t serial = known_age ? cpu_allocation_serial(storage.data()) : 0;
    if (serial <= first_serial_) {
      if (learn_ == nullptr && serial > known_->begun) {
        refuse(call,
               "reads a tensor that the run of the step before this one made: the step keeps state "
               "outside its inputs and buffers (an attribute that it sets?). Make that a buffer "
               "which it writes in place, or an input and an output");
      }
      const bool has_history = tensor.requires_grad() && !tensor.is_leaf();
      return add({.tensor = has_history ? tensor_on(storage, geometry_of(tensor)) : tensor,
                  .offset = offset_bytes(tensor)});
    }
    if (storage.nbytes() > kLargestLiteral) {
      refuse(call,
             fmt::format("reads {} bytes that were made inside the step by code that calls no "
                         "operation",
                         storage.nbytes()));
    }
    return add_literal(tensor, call);
  }

  // Of an external, before the step writes it for the first time.
  template <class Bytes>
  void keep_image(const c10::Storage& storage, Bytes&& bytes) {
    const Tracked& tracked = tracked_.at(storage.unsafeGetStorageImpl());
    if (tracked.place.memory != Memory::kExternal) return;
    const External& external = recording_.externals[static_cast<size_t>(tracked.place.index)];
    if (!external.tensor.defined() || images_.has(external.tensor)) return;
    images_.keep(external.tensor, bytes());
  }

  BeforeImages& images_;
  Audit* learn_;
  const Audit* known_;
  uint64_t first_serial_;
  Recording recording_;
  size_t ordinal_ = 0;                                // of the leaf event, views included
  std::unordered_map<const void*, Tracked> tracked_;  // by storage
  std::unordered_map<const void*, int32_t> inputs_, input_tensors_;
  std::vector<InputExtent> extents_;
  std::set<const void*> leaves_;
  std::optional<RandomState> random_;  // after the last operation that drew; with `learn_`
  bool saved_by_hooks_ = false;        // autograd saved through functions of the caller's
  std::string problem_;
};

// RecordFunction's callbacks are plain functions: what they work on is global.
std::mutex active_mutex;
Recorder* active = nullptr;
thread_local bool inside_leaf = false;
thread_local bool inside_callback = false;  // a callback may call operators itself

// The dispatcher swallows exceptions of callbacks.
template <class Work>
void guarded(Work&& work) {
  std::lock_guard<std::mutex> lock(active_mutex);
  if (active == nullptr) return;
  inside_callback = true;
  try {
    work(*active);
  } catch (const std::exception& error) {
    active->fail(error.what());
  }
  inside_callback = false;
}

// Autograd's kernels of operators in place clone what their backward needs of the old values. All else
// below a leaf is the leaf's own work.
bool is_clone_by_autograd(const c10::OperatorName& name) {
  return name.name == "aten::clone" &&
         !c10::impl::tls_local_dispatch_key_set().excluded_.has_any(c10::autograd_dispatch_keyset);
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& event) {
  if (inside_callback) return nullptr;
  const auto name = event.operator_name();
  if (!name || name->name.empty()) return nullptr;  // an autograd node, a user's scope
  if (inside_leaf && !is_clone_by_autograd(*name)) return nullptr;
  const auto op = c10::Dispatcher::singleton().findSchema(*name);
  if (!op) return nullptr;
  std::unique_ptr<LeafContext> context;
  guarded([&](Recorder& recorder) {
    if (is_transparent(*op, recorder.device())) return;
    context = recorder.begin(*op, event);
    context->within_leaf = std::exchange(inside_leaf, true);
  });
  return context;
}

void on_end(const at::RecordFunction& event, at::ObserverContext* context) {
  if (context == nullptr) return;
  auto& leaf = static_cast<LeafContext&>(*context);
  inside_leaf = leaf.within_leaf;
  guarded([&](Recorder& recorder) { recorder.end(leaf, event); });
}

// Recording is on while it lives.
class Session {
 public:
  explicit Session(Recorder& recorder) {
    {
      std::lock_guard<std::mutex> lock(active_mutex);
      if (active != nullptr) throw InputError("another capture is under way in this process");
      active = &recorder;
    }
    inside_leaf = false;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(on_start, on_end)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
  }
  ~Session() {
    at::removeCallback(handle_);
    std::lock_guard<std::mutex> lock(active_mutex);
    active = nullptr;
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

 private:
  at::CallbackHandle handle_;
};

}  // namespace

Recording record(const StepFunction& step, const Tensors& inputs, c10::Device device,
                 BeforeImages& images, Audit* learn, const Audit* known) {
  Recorder recorder(device, inputs, images, learn, known);
  Tensors outputs;
  {
    Session session(recorder);
    outputs = step(inputs);
  }
  return recorder.finish(outputs);
}

}  // namespace reprise::runtime
