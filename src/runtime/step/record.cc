#include "runtime/step/record.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <mutex>
#include <optional>
#include <utility>

#include "reprise/model/errors.h"
#include "runtime/step/first_calls.h"
#include "runtime/step/host_reads.h"
#include "runtime/step/operators.h"
#include "runtime/step/recorder.h"

namespace reprise::runtime::internal::step {
namespace {

// The callbacks of RecordFunction are plain functions, so the recorder that they work on is global.
std::mutex active_mutex;
Recorder* active = nullptr;
thread_local bool recording_here = false;
thread_local bool inside_leaf = false;
thread_local bool inside_callback = false;  // because a callback may call operators itself

// Passes an exception on to the recorder, because the dispatcher swallows exceptions of callbacks.
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

// Says whether the operator is a clone that autograd makes. The kernels of autograd for operators
// in place clone the old values that their backward needs. All other operators below a leaf are the
// leaf's own work.
bool is_clone_by_autograd(const c10::OperatorName& name) {
  return name.name == "aten::clone" &&
         !c10::impl::tls_local_dispatch_key_set().excluded_.has_any(c10::autograd_dispatch_keyset);
}

// Says whether a transform of torch.func takes operators over. It calls others in their place, down
// to those of plain tensors.
bool is_transformed() {
  return c10::impl::tls_local_dispatch_key_set().included_.has(
      c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& event) {
  if (inside_callback) return nullptr;
  const auto name = event.operator_name();
  if (!name || name->name.empty()) return nullptr;  // It is no operator.
  if (inside_leaf && !is_clone_by_autograd(*name)) return nullptr;
  const auto op = c10::Dispatcher::singleton().findSchema(*name);
  if (!op) return nullptr;
  std::unique_ptr<LeafContext> context;
  guarded([&](Recorder& recorder) {
    if (is_transformed() || is_transparent(*op, recorder.device())) return;
    std::vector<c10::Storage> lent;
    if (Surroundings* const around = recorder.surroundings()) {
      const auto all = event.inputs();
      lent = around->lend(*op, all.slice(all.size() - event.num_inputs()));
    }
    context = recorder.begin(*op, event);
    context->lent = std::move(lent);
    context->within_leaf = std::exchange(inside_leaf, true);
  });
  return context;
}

void on_end(const at::RecordFunction& event, at::ObserverContext* context) {
  if (context == nullptr) return;
  auto& leaf = static_cast<LeafContext&>(*context);
  inside_leaf = leaf.within_leaf;
  guarded([&](Recorder& recorder) {
    const c10::OperatorHandle op = leaf.call.op;
    recorder.end(leaf, event);
    if (Surroundings* const around = recorder.surroundings()) {
      const c10::ArrayRef<c10::IValue> all = event.outputs();
      const size_t returns = op.schema().returns().size();  // There are fewer if it has failed.
      around->take_back(op, leaf.lent,
                        all.slice(all.size() - (all.size() < returns ? 0 : returns)));
    }
  });
}

// Recording is on while a Session lives.
class Session {
 public:
  explicit Session(Recorder& recorder) {
    {
      std::lock_guard<std::mutex> lock(active_mutex);
      if (active != nullptr) throw InputError("another capture is under way in this process");
      active = &recorder;
    }
    inside_leaf = false;
    recording_here = true;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(on_start, on_end)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
  }
  ~Session() {
    at::removeCallback(handle_);
    recording_here = false;
    std::lock_guard<std::mutex> lock(active_mutex);
    active = nullptr;
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

 private:
  at::CallbackHandle handle_;
};

}  // namespace

struct RestOfStep::State {
  BeforeImages images;
  Audit audit;
  Audit known;
  Recorder recorder;
  std::optional<AsFollowed> followed;
  std::optional<Session> session;

  State(Recording begun, const Tensors& inputs, Audit writes, Surroundings* surroundings)
      : known(std::move(writes)),
        recorder(begun.device, inputs, images, Scrutiny::kSmall, audit, &known, surroundings) {
    recorder.go_on_behind(std::move(begun));
  }
};

RestOfStep::RestOfStep(Recording begun,
                       const std::vector<std::pair<c10::Storage, TensorRef>>& places,
                       const Tensors& inputs, const Audit& known, Surroundings* surroundings)
    : state_(std::make_unique<State>(std::move(begun), inputs, known, surroundings)) {
  for (const auto& [storage, place] : places) state_->recorder.note_place(storage, place);
  state_->followed.emplace(true);
  state_->session.emplace(state_->recorder);
}

RestOfStep::~RestOfStep() = default;

Recording RestOfStep::finish(Tensors outputs) {
  state_->session.reset();
  return state_->recorder.finish(std::move(outputs));
}

bool is_recording() { return recording_here; }

AsRecorded::AsRecorded() : before_(std::exchange(recording_here, true)) {}
AsRecorded::~AsRecorded() { recording_here = before_; }

Recording record(const StepFunction& step, const Tensors& inputs, c10::Device device,
                 BeforeImages& images, Scrutiny scrutiny, Audit& audit, const Audit* known,
                 Surroundings* surroundings) {
  Recorder recorder(device, inputs, images, scrutiny, audit, known, surroundings);
  Recording recording;
  const auto run = [&] {
    Tensors outputs;
    {
      Session session(recorder);
      outputs = step(inputs);
    }
    recording = recorder.finish(std::move(outputs));
  };
  if (surroundings != nullptr) {
    surroundings->run(run);
  } else {
    run();
  }
  return recording;
}

}  // namespace reprise::runtime::internal::step
