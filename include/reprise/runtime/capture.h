// Trains any model inside a byte budget, operation by operation: records one whole training step,
// plans it, and replays it.
//
//   auto step = reprise::runtime::capture([&](const Tensors& in) {
//     auto loss = torch::nn::functional::cross_entropy(model->forward(in[0]), in[1]);
//     loss.backward();
//     return loss;
//   }, {x, y});
//   step.plan({.budget = "700 MiB"});
//   at::Tensor loss = step.run({x, y});   // fills .grad, as the function does, to the last bit
#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "reprise/model/graph.h"
#include "reprise/model/profile.h"
#include "reprise/model/runlog.h"
#include "reprise/plan/plan.h"
#include "reprise/runtime/alternatives.h"
#include "reprise/runtime/approximate.h"
#include "reprise/runtime/measure.h"
#include "reprise/runtime/offload.h"
#include "reprise/runtime/optimizer.h"
#include "reprise/runtime/overhead.h"
#include "reprise/runtime/remat.h"
#include "reprise/runtime/shared_peak.h"
#include "reprise/runtime/watched_value.h"

namespace reprise::runtime {

// OnMiss says what run() does when its inputs, or the state that the step was captured in, have
// changed.
enum class OnMiss {
  kRefuse,     // It throws an InputError that says what differs.
  kRecapture,  // It captures, measures and plans again, with the same options.
};

// Lockstep says at which runs the function itself runs again, beside its recording, and is compared
// with it call by call: operators, shapes, numbers and literals. This finds state of the program
// that the recording depends on and that nothing else compares.
enum class Lockstep {
  kSparse,  // the first two runs after a capture, and then the runs 10, 100, 1,000, ...
  kAlways,  // every run
  kNever,
};

struct CaptureOptions {
  // These are the modules of the step. They are optional, because the step finds the memory that it
  // uses by itself. run() compares their train flags, parameters and buffers, which must stay as
  // they were. Operations are named after the child that they belong to ("12:gelu@blocks.0.mlp").
  // Gradients that the step drops by zero_grad() without reading their parameters are found only
  // here.
  std::vector<std::shared_ptr<torch::nn::Module>> modules = {};
  // Values of the program that the step depends on and that no tensor holds. run() compares them with
  // those at the capture before anything else, and a difference is a miss: see `on_miss`. A value that
  // is not named here is found by lockstep alone, so some runs later.
  std::vector<WatchedValue> watched = {};
  OnMiss on_miss = OnMiss::kRefuse;
  // Operators compute nothing when the function runs beside its recording, so a comparison takes as
  // long as the function's own code and autograd, and next to no memory. The function's own code
  // runs, and what it changes outside tensors stays changed. A difference is a miss: see `on_miss`.
  Lockstep lockstep = Lockstep::kSparse;
  // If true, the function runs at every run, as in plain training, and the plan does its work: side
  // effects of the program happen once a run, numbers that it reads out of tensors are those of the
  // run, and numbers and host data that have changed are used. The function's operators compute
  // nothing until the plan has computed what the program asks for. Where the function does something
  // else than it was recorded to do, the calls so far run once more as plain training runs them,
  // within the budget, and the function goes on by itself; CapturedStepReport::left counts these
  // runs. Nothing is a miss then, so `on_miss` and `lockstep` do nothing.
  //
  // Nothing runs at the capture. The first run is recorded while it runs, and so are later ones that
  // are new; up to `outcomes` recordings are kept. A step that cannot be recorded runs as it is. It
  // is not for steps of a process group, for share_work and for other_devices.
  bool follow = false;
  // Whether touch_gradient() is called whenever the function looks at a .grad. Without that, a
  // followed run that begins while gradients are there runs as it is.
  bool tells_gradients = false;
  // The limit on all bytes of tensors on the device while the step is captured, a number of bytes.
  // Plain training need not fit: each operation is recorded and measured on operands of its own, which
  // have made-up numbers. The default is no limit. It is then the default of StepPlanOptions::budget,
  // too.
  //
  // A step that depends on numbers which it has computed needs these numbers. With LibTorch 2.13 or
  // newer, it is recorded in online mode then (reprise/runtime/online.h): values are evicted when memory
  // runs short, and made again. It is refused where online mode does not work. Copies in host memory of
  // what the step writes outside itself (buffers, gradients that are there, literals) are not counted.
  // Works are measured one by one and not in their order, so predicted times are some per cent shorter
  // than without a budget.
  Budget budget = {};
  MeasureOptions measure = {.name = "step"};
  // A step may read booleans and whole numbers out of tensors on the host (item(), a tensor as a
  // condition, torch.equal(), the size of what a mask selects). Each list of numbers that it reads
  // is an outcome. With OnMiss::kRecapture so many outcomes are kept, each with its own plan; the
  // one that ran least recently makes room for another one.
  int outcomes = 4;
  // The function runs so many times while it is recorded; the least number is 2. The runs show
  // changes from run to run: 3 runs show those that come at every call, at every second or at every
  // third one. Two runs are enough where something else compares the state of the host with the
  // state at the capture before each run, as the guards of the Python package do.
  int runs = 3;
  // Measured costs are kept in this folder. A capture of the same step on the same machine takes them
  // from there, and runs the function twice (see `lockstep`). If empty: no folder. See cache_use().
  std::string cache = {};
  // These options choose the alternatives that the planner may run in place of the operations as
  // they were captured. By default these are all that leave the same bits.
  AlternativeOptions alternatives = {};
  // per_parameter(optimizer) makes the optimizer's step a part of this one. Each parameter is
  // updated when its gradient is complete and nothing in the step needs the parameter any more, and
  // the gradient is freed there. The result is equal to the last bit to that of the optimizer's own
  // step behind this one. Gradients must not be there before, and are not there afterwards. A function
  // that looks at all of them, as clipping by their common norm does, makes them wait for each other.
  std::shared_ptr<ParameterOptimizer> optimizer = {};
  // The name of a process group of c10d, in its registry (ProcessGroup::getGroupName()). If there is
  // one, the gradients of parameters are averaged over its ranks, as DistributedDataParallel averages
  // them; gradients of inputs are not. All ranks capture the same step, call plan() together, and run
  // the step the same number of times. At the capture, parameters and buffers get the bits that they
  // have on rank 0. Buffers are not copied after that.
  //
  // A rank that fails lets all others fail within the timeout of the group, by a PeerError
  // (reprise/runtime/peer_error.h). Nobody can use the step any more then. With OnMiss::kRecapture
  // the ranks ask each other before each run whether something differs, and capture together. Where
  // the step reads a number on the host, all ranks have to read the same one: they ask each other
  // then, and a difference is an InputError on all of them.
  std::string group = {};
  // Gradients are summed in buckets of at least so many bytes. 0 stands for the sizes of
  // DistributedDataParallel: 1 MiB for the first bucket, and 25 MiB for the others.
  Bytes bucket_cap = Bytes(0);
  // If true, each rank keeps the state of the optimizer for its own shard of the parameters only,
  // and updates only these (stage 1 of ZeRO). It needs `group` and `optimizer`. The shards are
  // whole parameters, with as equal bytes as the parameters allow. The gradients of a bucket are
  // averaged as ever; then each rank updates its shard of the bucket and gets the other shards from
  // their ranks. Parameters, and the state of all shards together, have the bits of the step that
  // does not shard.
  //
  // State of other shards that the optimizer has already is dropped at the capture, and before a
  // run. Throws InputError for an optimizer that cannot drop state
  // (ParameterOptimizer::keep_state_of()). Source: Rajbhandari et al., ZeRO: Memory Optimizations
  // Toward Training Trillion Parameter Models, SC 2020.
  bool shard_optimizer = false;
  // The name of a process group whose ranks share out the work of the step; `group` is empty then. All
  // ranks hold the same parameters and get the same inputs, the same random state included. The
  // capture lets each rank compute a part of each linear layer, convolution and attention (of their
  // forwards and backwards), lets the ranks gather the parts, and measures both together. The planner
  // may run an operation so (the alternative "shared") if the result has the same bits on all ranks
  // for the sample; with AlternativeOptions::allow of kRounding, results that are close are enough.
  //
  // At the capture, parameters and buffers get the bits that they have on rank 0. All ranks call
  // plan() and use() together, have one plan, and run the step the same number of times. Each run
  // begins with a comparison of inputs and random states; ranks that differ all throw InputError.
  // Failures are those of `group`. It is for the CPU, without other_devices and without a budget for
  // its capture.
  std::string share_work = {};
  // Other devices that may run operations of the step, beside that of its inputs: the CPU, and devices of
  // one other type with their numbers. The capture runs each operation there, too, on copies of its
  // operands, and measures it. One whose results have the same bits may run there; with
  // AlternativeOptions::allow of kRounding, results that are close are enough. Copies between the devices
  // are measured, too. plan() then decides what runs where. Results and gradients come back to the device
  // of the inputs, and parameters are copied from there in each step.
  //
  // StepPlanOptions::offload.machine, without a memory to move to, may give other bandwidths than the
  // measured ones, and capacities of the other devices. Its memories have the names of the devices
  // ("cuda:0", "cpu"), in this order, and a channel each way between the first one and each other one.
  //
  // Such a step has no arena, no device graph, no memory to offload to, no optimizer inside, and no
  // budget for its capture.
  std::vector<c10::Device> other_devices = {};
  // Returns the bytes that the program will take outside of the step and has not taken yet, such as the
  // state that an optimizer makes at its first step. They count as live before each run, so plans leave
  // room for them, and plain training's peak has them.
  std::function<Bytes()> foreseen = {};
};

struct StepPlanOptions {
  // The budget covers all device bytes during a step, as in RematOptions. The default is
  // CaptureOptions::budget, and without that no limit: plain training. A share becomes a number of bytes
  // when it is first named. It stays this number, whatever lives later and whatever else is captured.
  Budget budget = {};
  // A share is of this peak. The default is that of CapturedStep::shared_peak(), and without that plain
  // training's peak now.
  std::optional<SharedPeak> share_of = {};
  // Empty: "graph", "graph_levels" with `offload`, or "devices" with CaptureOptions::other_devices.
  std::string planner = {};
  // This is the time for all searches that plan() makes, together. The first steps may take as long
  // again, to plan an arena in which all memory has its place.
  Nanos time_limit{10'000'000'000};
  // The plan may use alternatives up to this exactness, among those that the step was captured
  // with.
  Exactness allow = Exactness::kApproximate;
  int threads = 0;      // of the planner; 0 for as many as the machine has
  // Whether a request beyond the budget throws BudgetError, where the memory of the device can be
  // limited (set_memory_limit()).
  bool enforce = true;
  // If true, all memory of the step lies in an arena at planned places, from the second step on.
  // Steps on the CPU have an arena, and on CUDA devices if Reprise was built for CUDA.
  bool arena = true;
  // If true, the step runs as a device graph (a CUDA graph) from the second step on, where it can:
  // the device starts all operations with one request. It takes an arena. The inputs are copied to
  // addresses that stay, and these copies and the workspace of the stream on which the graph is
  // recorded count in the budget. CapturedStepReport says whether the step runs so, and why not.
  bool device_graph = false;
  // Says where values may move while nothing reads them. The memory is opened and measured by
  // plan(). The plan decides for each value whether it stays, is made again, or moves. A run whose
  // copy fails ends with an InputError, as if it had not begun. It is not for
  // steps of a process group.
  OffloadOptions offload = {};
  // If true, the state of CaptureOptions::optimizer lies in that memory between the runs. It comes to the
  // device for each parameter's update, and goes back behind it, as planned copies; so the peak holds the
  // state of a few parameters, and the old state stays there until the run is over. It takes `offload` by
  // name. State below 4096 bytes stays on the device. An access to state that is away throws an exception
  // (a c10::Error): call fetch_optimizer_state() before.
  bool offload_optimizer = false;
  // If true, parameters lie in that memory between the runs, and come to the device as planned copies for
  // the operations that read them. Frozen ones, which want no gradient, are never written back. Those that
  // CaptureOptions::optimizer updates are, behind their update; the old ones stay there until the run is
  // over. Within a budget, parameters and state stay on the device where that makes the step faster. So do
  // parameters that the step trains and does not update, because somebody else updates them between runs.
  //
  // The parameters are those of CaptureOptions::modules and of the optimizer, of 4096 bytes or more. It
  // takes `offload` by name. An access to a parameter that is away throws an exception (a c10::Error):
  // call fetch_parameters() before.
  bool offload_parameters = false;
  Observer observer = {};
};

// An OtherDeviceReport says what a device of CaptureOptions::other_devices did in the last run.
struct OtherDeviceReport {
  std::string device = {};    // "cuda:1"
  int64_t runs = 0;           // of operations
  Bytes predicted_peak = {};  // of the step's bytes there, without what lay there before
  Bytes measured_peak = {};

  bool operator==(const OtherDeviceReport&) const = default;
};

// A CapturedStepReport is about the last run.
struct CapturedStepReport {
  Bytes budget;          // the largest Bytes if there is no limit
  Bytes predicted_peak;  // of live bytes; on the CPU equal to measured_peak, to the byte
  Bytes measured_peak;
  // The arena holds the memory of the step itself. These numbers are 0 while there is none.
  Bytes arena_height;            // size of the arena
  Bytes arena_live_bytes;        // the least that any placement needs
  int64_t served = 0;            // number of allocations at their planned places
  int64_t fallbacks = 0;         // number of allocations that the heap served beside an arena
  int64_t steps = 0, plans = 0;  // numbers of steps and plans so far
  int64_t compared = 0;          // number of steps so far that lockstep compared with the function
  int64_t graphed = 0;           // number of steps so far that ran as a device graph
  int64_t left = 0;              // number of steps so far that left all recordings (follow)
  std::string last_difference = {};  // why the last of them did
  // Says why the plan in force does not run as a device graph; empty if it does, or was not asked to.
  std::string no_device_graph = {};
  // To the memory of StepPlanOptions::offload or to other devices, and back.
  Bytes moved_out = {}, moved_in = {};
  Nanos waited = {};  // by the step, for copies and for sums over the ranks
  // The bytes that lie in the memory of StepPlanOptions::offload between the runs.
  Bytes homed_state = {}, homed_parameters = {};
  // The last captures, measurements and searches for plans, at most 32.
  std::vector<Overhead> overheads = {};
  std::string offload_choice = {};  // what OffloadOptions "auto" picked, and why; else empty
  std::vector<OtherDeviceReport> other_devices = {};

  bool operator==(const CapturedStepReport&) const = default;
};

// A CacheUse says what CaptureOptions::cache was good for at the last capture.
struct CacheUse {
  bool found = false;  // The costs were taken from there.
  // Says in one line what was wrong with the folder or the entry; empty if nothing was. The capture
  // has measured the costs then. The observer of MeasureOptions hears of it, too.
  std::string warning = {};

  bool operator==(const CacheUse&) const = default;
};

using StepFunction = std::function<Tensors(const Tensors& inputs)>;

// A CapturedStep is a training step that was recorded. run() computes what the function computes,
// to the last bit unless CaptureOptions::alternatives allows less:
//
// - the gradients of all leaf tensors that the step reads, added to those in .grad or put there,
// - the tensors that the function returns, without history,
// - buffers and the random state.
//
// A number that the step reads out of a tensor is read again at each run, in its place, and
// compared with that of the capture (see CaptureOptions::outcomes). If it is another one, the run
// ends as if it had not begun, and `on_miss` says what follows. Nothing that cannot be taken back
// happens before the last of these reads.
//
// Numbers of the host language, such as a learning rate or a dropout probability, are those of the
// capture. Lockstep compares them at some runs, by running the function again (Lockstep). If
// something differs, the run throws StepMiss (reprise/runtime/miss.h) and changes nothing, or with
// OnMiss::kRecapture the step is captured again; differences() says what was found. The runs since
// the last comparison are those of the recording. Hooks on parameters are not called.
//
// Threads that call one captured step take turns: runs, plans and captures wait for each other, and
// so does last_step(). graph(), planned() and the like return references, which belong between two
// calls. Between two steps it holds the arena, in which the last gradients lie.
class CapturedStep {
 public:
  CapturedStep(StepFunction step, Tensors sample, CaptureOptions options);
  ~CapturedStep();
  CapturedStep(CapturedStep&&) noexcept;
  CapturedStep& operator=(CapturedStep&&) noexcept;

  // Plans the step. Throws BudgetError when the budget is infeasible, with the smallest peak that
  // some plan reaches. An earlier plan stays in force then.
  const PlanResult& plan(const StepPlanOptions& options = {});
  // Plans a followed step (CaptureOptions::follow) that has no recording yet, as soon as it has one.
  void plan_ahead(const StepPlanOptions& options);
  // Says whether there is a recording. A followed step has none before its first run.
  bool is_recorded() const;
  // Lets the runs that follow have these modules (CaptureOptions::modules). Recordings for other
  // modules stay.
  void use_modules(std::vector<std::shared_ptr<torch::nn::Module>> modules);
  // Does the same, but returns an answer without a plan in place of throwing BudgetError.
  PlanResult try_plan(const StepPlanOptions& options = {});
  // Takes a plan from elsewhere, for graph(). Throws InputError with all violations if the plan is
  // not valid. `options.offload` names the memory and the machine of a plan that moves values.
  void use(const Plan& plan, const StepPlanOptions& options = {});
  // Returns what shares of this step's budgets are of, or nothing if no share was named yet.
  std::optional<SharedPeak> shared_peak() const;

  // Runs the step. run() returns the first tensor that the function returns, run_all() returns all
  // of them. Without a plan the step is planned first, for plain training.
  //
  // After an exception gradients, buffers and the random state are as before the step. With
  // CaptureOptions::optimizer parameters may be updated by then. The exception says which ones; it
  // is a BudgetError if the budget was the reason, else an Error.
  at::Tensor run(const Tensors& inputs);
  Tensors run_all(const Tensors& inputs);

  // Brings the optimizer's state back to the device until the next run, if a plan with offload_optimizer
  // has moved it away, so that it can be read and saved. No budget counts these bytes. Throws InputError
  // if a read fails; what is back by then stays. The end of the step brings the state back, too.
  void fetch_optimizer_state();
  // Does the same for parameters that a plan with offload_parameters has moved away.
  void fetch_parameters();

  // Returns in words the differences that lockstep has found so far and for which the step was captured
  // again, with the runs that may have computed something that the function did not say any more.
  const std::vector<std::string>& differences() const;
  // Says whether the function runs now beside the recording, for functions that bindings wrap.
  bool comparing() const;

  // Says for a step of a process group whether the runs that follow average gradients. If they do not,
  // run() adds the gradients of this rank to .grad, and nothing is sent; the next run that averages
  // includes them.
  // All ranks do the same. Throws InputError for a step with an optimizer, and without a group.
  void synchronize(bool averages);
  // Lets the other ranks of the group fail, because this one cannot go on with the step.
  void tell_failure(const std::string& reason) noexcept;

  // Takes what this process has found to differ from the capture, an empty text for nothing. If ranks
  // of a group capture their step again (on_miss), all of them call this before each run, and each
  // gets the first text by rank that is not empty. Otherwise returns `mine`.
  std::string first_difference(const std::string& mine);

  // These are the parts of run_all(), for steps in which the step reads numbers on the host, or
  // where lockstep finds a difference. run_captured() returns nothing if none of the outcomes that
  // were captured fits; all is then as before. It throws StepMiss for a difference, whatever
  // on_miss says. capture_outcome() captures the outcome for these inputs and this random state,
  // beside the others. forget_outcome() drops it again, if there are others.
  std::optional<Tensors> run_captured(const Tensors& inputs);
  void capture_outcome(const Tensors& inputs);
  void forget_outcome();
  // Returns the numbers of the outcomes that are kept, the one that ran or was captured last in
  // front. Captures are counted from 1.
  std::vector<int64_t> outcomes() const;
  // Returns the names of what is compared with the capture before each run, beside the inputs, the
  // modules and the tensors: settings of LibTorch, and CaptureOptions::watched.
  std::vector<std::string> guards() const;
  // Returns what this outcome reads on the host, in order: "True, a number that the step reads out
  // of a tensor at train.py:41".
  std::vector<std::string> host_reads() const;
  // Returns what alternatives found in this outcome and do not offer, and why: "fused-regions:
  // sigmoid+mul: result 1 of 1 has other bits, 24 times".
  const std::vector<std::string>& refusals() const;

  CacheUse cache_use() const;

  // Returns the graph of this outcome, as planned() returns its plan.
  const Graph& graph() const;
  // Returns the graph with the record of how it was measured.
  Profile profile() const;
  // Returns the plan in force. Throws InputError when nothing was planned yet. In the plan of a process
  // group a copy to "ranks" stands for each sum, so that its time is that of the step with its sums.
  const PlanResult& planned() const;
  // Returns the memories of StepPlanOptions::offload; it has no channels if the plan in force was made
  // without. A process group has the link between its ranks as a channel, as measured at the capture.
  Machine machine() const;
  CapturedStepReport last_step() const;
  // Returns how many captures and searches there were so far (CapturedStepReport::overheads).
  int64_t overhead_count() const;

  // Says how the runs that follow treat values that the plan encodes (AlternativeOptions::allow). What
  // is compared or bypassed is held in memory beside the budget.
  void check_codecs(CodecCheck check);
  // Returns the values that the plan in force encodes, in the order in which it decodes them.
  std::vector<ApproximateValue> approximate_values() const;

  // These are like the functions of Remat with the same names.
  void log_steps(int64_t steps);
  std::optional<RunLog> run_log() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

// Sets the function that says where the caller's program is, as a text like "train.py:41". Messages
// of capture() name this place. Bindings of another language set it; C++ programs have none. The
// function runs in the thread of the step at each operation that is recorded.
void find_sources_with(std::function<std::string()> finder);

// Returns a text in the message of the exception that meets whoever takes the pointer of a tensor
// that lockstep made, because such a tensor has no bytes. It is a c10::Error, or what a binding makes
// of one.
std::string no_bytes_text();

// These are for bindings of another language, and for code inside a followed step
// (CaptureOptions::follow) that does what no operator shows. Elsewhere they do nothing special.
//
// Returns a copy of the tensor's bytes in host memory, which are there when the plan has made them.
at::Tensor host_copy(const at::Tensor& tensor);
// Lets the step that runs on this thread go on as plain training runs it: the function reads the
// random state, for example.
void leave_recording(const std::string& reason);
// Says that the function looks at the .grad of this leaf, or sets it. A gradient from before the run is
// there then. The run leaves its plan if the step has made another one by now.
void touch_gradient(const at::Tensor& leaf);

// Captures a step at plain training's memory, or within CaptureOptions::budget. Runs the step
// CaptureOptions::runs times on `sample`, to see which bytes each operation touches and to record it.
// A step that writes memory although no schema says so, or that fills a cache in its first run, runs
// some times more. Then walks through the step to measure it: once with all alternatives, where operations that have alternatives
// are repeated, and on the CPU at least once more in order. MeasureOptions says how many repetitions
// and walks there are, as far as time is left.
//
// Time: about eight steps of plain training for a step of more than 100 ms, and up to 2 s for a
// shorter one. Each kind of operation and of alternative is measured at least once, so that a step
// with many different alternatives may take longer.
//
// Parameters, gradients, buffers and the random state are left as they were. Installs the counting
// allocator when the inputs are on the CPU.
//
// Throws InputError for a step that cannot be replayed, with the operation that is the reason:
// numbers that are read out of tensors and are not whole, sizes that depend on data in other ways
// than by a mask, parameters that are written, communication, or tensors that are not strided.
template <class Step>
CapturedStep capture(Step step, Tensors sample, CaptureOptions options = {}) {
  if constexpr (std::is_same_v<std::invoke_result_t<Step&, const Tensors&>, at::Tensor>) {
    auto list = [step = std::move(step)](const Tensors& in) mutable { return Tensors{step(in)}; };
    return CapturedStep(std::move(list), std::move(sample), std::move(options));
  } else {
    return CapturedStep(std::move(step), std::move(sample), std::move(options));
  }
}

}  // namespace reprise::runtime
